"""Sizes of a manifest, checked against the tensors of the file before anything is built.

Three lines of defence, since a file that was edited may have a right checksum:

1. Every size that is the shape of a tensor of the file is compared with that tensor (`_SIZES`).
2. Any other number of an architecture is at most the largest size of the file's tensors, or the limit of its name (`_LIMITS`).
3. While networks are built, `Budget` counts what is allocated, and refuses more than a multiple of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fmcpe._errors import FileError

REQUIRED = {"report", "x_shape", "theta_dim", "base", "posterior", "target_prior", "conformal"}
MAX_DEPTH, MAX_VALUES = 64, 2_000_000
"""Of the manifest: nesting, and numbers and texts in all."""
MAX_X = 2_000_000
"""Numbers of one observation. Convolutions take any size, so no tensor need have this one."""
_LIMITS = {
    "num_samples": 1_000_000, "num_draws": 1_000_000, "num_pairs": 1_000_000_000, "components": 100_000, "proposals": 100_000,
    "modes": 1_000, "degree": 8, "steps": 100_000, "num_transforms": 200, "num_layers": 200, "num_bins": 1_000,
    "num_components": 10_000, "padding": 10_000, "stride": 10_000, "dilation": 10_000, "start_dim": 16, "end_dim": 16,
    "max_steps": 1_000_000,
}  # fmt: skip
"""Limits of numbers that no tensor's shape determines."""
MAX_TERMS = 100_000
"""Of polynomials."""
SMALL = 64
"""Numbers up to this one are always allowed."""

_SIZES: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {
    "Adjusted": [("summaries.scale.mean", itemgetter("summary")), ("pool", itemgetter("pool"))],
    "Denoised": [("summaries.scale.mean", itemgetter("summary")), ("means", itemgetter("size"))],
    "GaussianTransported": [("matrix", lambda c: [c["size"], c["size"]])],
    "InductiveMixture": [(name, itemgetter(name)) for name in ("pool", "features", "company")],
    "JointFlowed": [("x_scale.mean", lambda c: c["shape"]), ("y_scale.mean", lambda c: c["shape"])],
    "Shifted": [
        ("y_scale.mean", lambda c: c["shape"]),
        ("ridge.weight", lambda c: [math.prod(c["shape"]), c["numbers"]]),
    ],
    "SyntheticPosterior": [("directions.matrix", lambda c: c["directions"])],
    "TransportMixture": [(name, itemgetter(name)) for name in ("pool", "features", "company")],
    "Recalibrated": [("scale", lambda c: [c["dim"]])],
    "WithinRange": [("usual.matrix", lambda c: c["ranges"][0][:2]), ("usual.distances", lambda c: c["ranges"][0][2:])],
}
"""By class: a tensor of the posterior's state, and its shape by the manifest."""


def check_sizes(manifest: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
    """Refuse a manifest whose numbers cannot belong to these tensors."""
    missing = REQUIRED - set(manifest)
    if missing:
        raise _refused(path, f"a manifest with {', '.join(sorted(missing))}", "none")
    for count, (_, _, depth) in enumerate(_walk(manifest)):
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise _refused(path, f"at most {MAX_DEPTH} levels and {MAX_VALUES} values", "more")
    try:
        _check_numbers(manifest, tensors, path)
        _check_frame(manifest, tensors, path)
        for name, value in tensors.items():
            if name.startswith(("posterior.", "space.", "base.", "pool")) and bool(value.isnan().any()):
                raise _refused(path, f"numbers in the tensor {name}", "NaN")
        for name, shape, found in _declared(manifest, tensors):
            if list(found) != list(shape):
                raise _refused(path, f"the tensor {name} of shape {tuple(shape)}", str(tuple(found)))
    except FileError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise _refused(path, "descriptions of posteriors", f"{type(error).__name__}: {str(error)[:100]}") from error


def _check_numbers(manifest: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
    """Numbers of architectures: finite, and no larger than the tensors allow."""
    largest = max([SMALL, *(size for value in tensors.values() for size in (*value.shape, value.numel()))])
    for part in ("x_shape", "theta_dim", "base", "target_prior", "posterior", "conformal"):
        for name, number, _ in _walk(manifest[part], part):
            if isinstance(number, float) and not math.isfinite(number):
                raise _refused(path, f"a finite {name}", str(number))
            if type(number) is int and not -SMALL <= number <= _LIMITS.get(name, largest):
                raise _refused(path, f"{name} of at most {_LIMITS.get(name, largest)}", str(number)[:40])


def _check_frame(manifest: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
    """Shapes of x and θ, which every part shares."""
    dim, shape, pool = manifest["theta_dim"], manifest["x_shape"], tensors.get("pool")
    if type(dim) is not int or dim < 1:
        raise _refused(path, "a number of parameters", str(dim)[:40])
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise _refused(path, "a shape of x", str(shape)[:40])
    if pool is None or pool.ndim != 2 or pool.shape[1] != dim or pool.dtype != torch.float32:
        raise _refused(
            path, f"a pool of shape (N, {dim})", "none" if pool is None else f"{tuple(pool.shape)} {pool.dtype}"
        )
    statistics = tensors.get("space.standardiser.mean")
    if statistics is None or list(statistics.shape) != [dim]:
        raise _refused(path, f"statistics of {dim} parameter(s)", "others, or none")
    numbers, net = math.prod(shape), manifest["base"].get("embedding")
    if numbers > MAX_X:
        raise _refused(path, f"x of at most {MAX_X} numbers", str(numbers))
    if manifest["base"].get("kind") == "npe" and len(shape) == 1 and net is None:
        shown = {n for name, value in tensors.items() if name.startswith("base.") for n in value.shape} | {1}
        if numbers not in shown:
            raise _refused(path, "an x_shape that a tensor of the base posterior has", f"{shape}")
    default = tensors.get("default_x")
    if default is not None and list(default.shape[-len(shape) :] if shape else []) != shape:
        raise _refused(path, f"a default observation of shape {tuple(shape)}", str(tuple(default.shape)))


def _declared(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> Iterator[tuple[str, list[int], torch.Size]]:
    """(tensor, its shape by the manifest, its shape) for every posterior of the file."""
    roots = [("posterior.", manifest["posterior"])]
    conformal = manifest["conformal"] or {}
    roots += [(f"conformal.model.{k}.", each["posterior"]) for k, each in enumerate(conformal.get("models", ()))]
    while roots:
        prefix, config = roots.pop()
        for name, shape_of in _SIZES.get(config["class"], ()):
            if prefix + name not in tensors:
                raise ValueError(f"no tensor {prefix + name}")
            yield prefix + name, shape_of(config), tensors[prefix + name].shape
        if math.comb(manifest["theta_dim"] + config.get("degree", 0), config.get("degree", 0)) > MAX_TERMS:
            raise ValueError("polynomials of too many terms")
        if "inner" in config:
            roots.append((f"{prefix}inner.", config["inner"]))
        roots += [(f"{prefix}_members.{k}.", each) for k, each in enumerate(config.get("members", ()))]


def _walk(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any, int]]:
    """All values of a JSON document with the nearest name above each, without recursion."""
    stack = [(name, value, depth)]
    while stack:
        name, value, depth = stack.pop()
        if isinstance(value, dict):
            stack += [(key, each, depth + 1) for key, each in value.items()]
        elif isinstance(value, list):
            stack += [(name, each, depth + 1) for each in value]
        else:
            yield name, value, depth
        if depth > MAX_DEPTH:
            yield name, None, depth


def _refused(path: Path, expected: str, got: str) -> FileError:
    return FileError(f"Expected {expected} in {path}, got {got}. Load only files written by posterior.save(...).")


_CREATES = re.compile(r"aten::(empty|zeros|ones|full|rand|randn|arange|linspace|eye|new_\w+|empty_strided)$")


class Budget(TorchDispatchMode):
    """Counts bytes that torch allocates, and refuses more than a file of these tensors can need.

    Creations of tensors are refused before they happen; results of other operations, which are as large as what they were
    computed from, afterwards.
    """

    def __init__(self, tensors: dict[str, Tensor], factor: int = 64, extra: int = 100_000_000) -> None:
        super().__init__()
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        # a single tensor: no larger than all of the file, but for the pool's transforms and probes of 64 rows
        self.left, self.single = factor * size + extra, 16 * size + extra // 4

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _CREATES.match(func.name().split(".")[0])
        if found and args:
            sizes = next((a for a in args if isinstance(a, list | tuple | torch.Size)), None)
            numbers = [a for a in args if type(a) is int]
            asked = (
                math.prod(sizes) if sizes is not None else max(numbers, default=0) ** (2 if "eye" in found[0] else 1)
            )
            self._refuse_over(4 * asked)
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor) and not value._is_view():
                size = value.numel() * value.element_size()
                self._refuse_over(size)
                self.left -= size if found else 0
        return out

    def _refuse_over(self, size: int) -> None:
        if size > self.single or size > self.left:
            raise FileError(
                f"Expected networks as large as the tensors of the file, got a description that needs {size / 1e6:.0f} MB. "
                "Load only files written by posterior.save(...)."
            )
