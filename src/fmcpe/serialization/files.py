"""Saved posteriors: one safetensors file of tensors, without pickled objects.

A JSON manifest in the header holds the versions of the format and of the libraries, the record of the fit, and the
architecture of each part (`to_config`). The file contains the base posterior if `fmcpe.train_npe` made it, or sbi's factories
(`fmcpe.serialization.sbi_estimator`); `save` warns where it does not, and `load` then needs it as an argument.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fmcpe._ambient import settled
from fmcpe._disk import as_path, write_whole
from fmcpe._errors import FileError, FMCPEWarning
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Shared
from fmcpe.nn.describe import build_prior, describe_prior, under
from fmcpe.record import HeldOut, Record
from fmcpe.serialization.base_posterior import build_base, build_support, describe_base
from fmcpe.serialization.container import FORMAT, read, to_bytes
from fmcpe.serialization.limits import Budget, check_sizes
from fmcpe.serialization.registry import from_config, to_config
from fmcpe.spaces import ParameterSpace

if TYPE_CHECKING:
    from fmcpe.diagnostics.conformal import Conformal
    from fmcpe.posterior import CorrectedPosterior


def save(posterior: CorrectedPosterior, path: str | Path) -> Path:
    """Write `posterior` to `path` atomically."""
    path, shared = as_path(path), posterior.shared
    base, tensors = describe_base(shared.base)
    target = None if shared.target_prior is shared.base.prior else describe_prior(shared.target_prior)
    described = target is not None or shared.target_prior is shared.base.prior
    if base["kind"] == "external" or not described:
        warnings.warn(
            "Expected a base posterior that a file can describe, got one that it cannot: "
            f"{base.get('why', 'its target prior is of an unknown family')}. The file does not contain it. Keep it, and load "
            "with fmcpe.load(path, posterior=the_base_posterior).",
            FMCPEWarning,
            stacklevel=3,
        )
    manifest = {
        "format": FORMAT,
        "versions": {name: version(name) for name in ("fmcpe", "torch", "sbi", "zuko")},
        "report": posterior.record.to_config(),
        "x_shape": list(posterior.observation_shape),
        "theta_dim": posterior.space.dim,
        "base": base,
        "target_prior": None if target is None else target[0],
        "posterior": to_config(posterior.inner),
        "conformal": None,
    }
    tensors |= {f"posterior.{k}": v for k, v in posterior.inner.state_dict().items()} | {"pool": shared.pool}
    tensors |= {f"space.{k}": v for k, v in posterior.space.state_dict().items()}
    tensors |= {f"target_prior.{k}": v for k, v in (target[1] if target is not None else {}).items()}
    if posterior.held_out is not None:
        tensors |= {f"held_out.{k}": v for k, v in posterior.held_out.tensors().items()}
    if posterior.conformal is not None:
        says, kept = posterior.conformal.to_config()
        manifest["conformal"] = {"kind": posterior.conformal.kind} | says
        tensors |= {f"conformal.{k}": v for k, v in kept.items()}
    if posterior.default_x is not None:
        tensors["default_x"] = posterior.default_x
    # a tensor of one number counts as contiguous, whatever its stride is; a copy in this format has the stride 1
    contiguous = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}

    if path.is_dir() or not path.parent.is_dir():
        raise FileNotFoundError(f"Expected a file name in a folder that exists, got {path}. Create the folder first.")
    write_whole(path, to_bytes(manifest, contiguous))
    return path


def load(path: str | Path, posterior: Any = None, embedding_net: nn.Module | None = None) -> CorrectedPosterior:
    """Read a posterior written by `CorrectedPosterior.save`. No code from the file runs.

    Args:
        path: The file.
        posterior: The base posterior, if the file does not contain it.
        embedding_net: The embedding of y, if the file cannot describe it; its weights come from the file.

    Raises:
        FileError: If the file is damaged, malformed, of another format, or lacks a part that must be passed.
        FileNotFoundError: If there is no such file.
        OSError: If the system does not let it be read.

    Example:
        >>> path = posterior.save(folder / "run.fmcpe")
        >>> again = fmcpe.load(path)
        >>> bool((again.sample((5,), x=y_obs, seed=0) == posterior.sample((5,), x=y_obs, seed=0)).all())
        True
    """
    path = as_path(path)
    with settled():
        manifest, tensors = read(path)
        check_sizes(manifest, tensors, path)
        # the initial weights of networks, which are overwritten, consume random numbers
        with seeded(0), Budget(tensors):
            if posterior is not None:
                with _fitting_together(path):
                    support = build_support(manifest, tensors)
                posterior = as_base_posterior(posterior, support)
            with _fitting_together(path, posterior is not None or embedding_net is not None):
                return _build(manifest, tensors, path, posterior, embedding_net)


@contextmanager
def _fitting_together(path: Path, given: bool = False) -> Iterator[None]:
    """Errors of parts that do not fit together as `FileError`; `given` says whether some of them are arguments."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        line = (str(error).splitlines() or [""])[0][:300]
        advice = (
            "Pass the posterior and the embedding_net that it was made with" if given else "Save the posterior again"
        )
        raise FileError(
            f"Expected a file as posterior.save(...) wrote it, got {path}, whose parts do not fit together "
            f"({type(error).__name__}: {line}). {advice}."
        ) from error


def _build(
    manifest: dict[str, Any],
    tensors: dict[str, Tensor],
    path: Path,
    posterior: BasePosterior | None,
    embedding_net: nn.Module | None,
) -> CorrectedPosterior:
    from fmcpe.posterior import CorrectedPosterior

    base = build_base(manifest, tensors, posterior, path)
    target = base.prior
    if manifest["target_prior"] is not None:
        target = build_prior(manifest["target_prior"], under(tensors, "target_prior."))
    space = ParameterSpace(base.prior, base.prior.sample(torch.Size((2,))).to(torch.float32))
    space.load_state_dict(under(tensors, "space."))
    shared = Shared(base, space, target, tensors["pool"], embedding_net)
    inner = from_config(manifest["posterior"], shared)
    inner.load_state_dict(under(tensors, "posterior."))
    kept = under(tensors, "held_out.")
    held_out = HeldOut.from_tensors(kept) if kept else None
    record = Record.from_config(manifest["report"])
    loaded = CorrectedPosterior(inner, shared, manifest["x_shape"], record, held_out)
    loaded.conformal = _conformal(manifest["conformal"], tensors, loaded)
    loaded.summary()  # a record with values of other types fails here, not later
    return loaded.set_default_x(tensors["default_x"]) if "default_x" in tensors else loaded


def _conformal(says: dict[str, Any] | None, tensors: dict[str, Tensor], loaded: CorrectedPosterior) -> Conformal | None:
    """The calibrated intervals of a file."""
    from fmcpe.diagnostics.conformal import SplitConformal
    from fmcpe.diagnostics.cv_plus import CVPlusConformal
    from fmcpe.diagnostics.label_shift import LabelShiftConformal

    if says is None:
        return None
    kind, kept = says.get("kind", "split"), under(tensors, "conformal.")
    if kind == CVPlusConformal.kind:
        return CVPlusConformal.from_config(says, kept, loaded)
    if kind == LabelShiftConformal.kind:
        return LabelShiftConformal(**kept, num_draws=says["num_draws"], num_samples=says["num_samples"])
    if kind == SplitConformal.kind:
        return SplitConformal(kept["scores"] if kept else tensors["conformal"], says["num_samples"])
    raise FileError(f"Expected conformal intervals of this library, got {kind!r}. Save the posterior again.")
