"""Checks of user input. Every message has three parts: "Expected X, got Y. Do Z."."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._random import seeded


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether `value` is an integer, Python's or numpy's, of at least `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_positive(value: Any) -> bool:
    """Whether `value` is a positive, finite number, Python's or numpy's."""
    return isinstance(value, Real) and 0 < float(value) < math.inf


def check_option(options: Any, name: str, ok: bool, expected: str) -> None:
    """Refuse a field of a dataclass unless `ok`; the message suggests its default."""
    if not ok:
        default = options.__dataclass_fields__[name].default
        raise ValueError(f"Expected {name} to be {expected}, got {getattr(options, name)!r}. Try {name}={default!r}.")


def check_numbers(options: Any, least: Mapping[str, int] | None = None) -> None:
    """Refuse numeric fields of a dataclass that are not of their default's kind: whole numbers, or positive, finite ones.

    Args:
        options: The dataclass.
        least: Smallest value of some whole numbers; 1 for all others. Shares (``validation...``) are below one.
    """
    for field in fields(options):
        value, low = getattr(options, field.name), (least or {}).get(field.name, 1)
        if isinstance(field.default, bool):
            continue
        if isinstance(field.default, int):
            check_option(options, field.name, is_whole(value, low), f"a whole number of at least {low}")
        elif isinstance(field.default, float):
            check_option(options, field.name, is_positive(value), "a positive number")
            share = field.name.startswith("validation")
            check_option(options, field.name, not share or value < 1, "a number between 0 and 1")


def as_tensor(value: Any, name: str, dtype: torch.dtype = torch.float32, device: str | None = None) -> Tensor:
    """A finite tensor from a tensor, array or list."""
    try:
        tensor = _as_numbers(value, dtype, device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"Expected {name} to be a torch tensor or a numpy array, got a {type(value).__name__} that does not "
            f"convert to numbers. Pass {name}=torch.as_tensor(...)."
        ) from error
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(
            f"Expected finite numbers in {name}, got {bad} NaN or infinite value(s) of {tensor.numel()}. Remove the "
            f"rows concerned, e.g. keep = torch.isfinite({name}).flatten(1).all(1)."
        )
    return tensor


def _as_numbers(value: Any, dtype: torch.dtype, device: Any) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    return tensor.detach().to(device=device, dtype=dtype)


def parameter_dim(prior: Distribution) -> int:
    """Number of parameters of a prior; leaves the global generator as it was."""
    with seeded(0):
        return prior.sample((1,)).shape[-1]


def as_sample_shape(shape: Any) -> torch.Size:
    """``()``, ``5``, ``(3, 4)``, a list or a `torch.Size`, as a `torch.Size`."""
    sizes: Iterable[Any] = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        size = torch.Size(operator.index(s) for s in sizes)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Expected sample_shape to be a number, tuple, list or torch.Size, got {shape!r}. Try (1000,)."
        ) from error
    if any(s < 0 for s in size):
        raise ValueError(f"Expected sample_shape without negative sizes, got {tuple(size)}. Try (1000,).")
    return size


def as_observation(x: Any, shape: torch.Size) -> Tensor:
    """One observation, (1, *shape), from ``shape`` or ``(1, *shape)``."""
    x = as_tensor(x, "x")
    if x.shape == shape:
        return x[None]
    if x.shape == (1, *shape):
        return x
    several = x.shape[1:] == shape
    hint = "For several observations use sample_batched or log_prob_batched." if several else "Pass one, e.g. x=ys[0]."
    raise ValueError(f"Expected one observation x of shape {tuple(shape)}, got {tuple(x.shape)}. {hint}")


def as_observations(x: Any, shape: torch.Size) -> Tensor:
    """A batch of observations, (B, *shape)."""
    x = as_tensor(x, "x")
    if x.shape == shape:
        return x[None]
    if x.ndim == len(shape) + 1 and x.shape[1:] == shape and x.shape[0] > 0:
        return x
    raise ValueError(
        f"Expected a batch of observations x of shape (B, {', '.join(map(str, shape))}), got {tuple(x.shape)}. Stack "
        "them with torch.stack(list_of_observations)."
    )


def as_theta(theta: Any, dim: int) -> Tensor:
    """Parameters as rows, (N, dim), from (N, dim) or (dim,); gradients flow to `theta`."""
    tensor = theta.to(torch.float32) if isinstance(theta, Tensor) else as_tensor(theta, "theta")
    if bool(torch.isnan(tensor).any()):
        raise ValueError(f"Expected numbers in theta, got {int(tensor.isnan().sum())} NaN. Remove the rows concerned.")
    if tensor.shape == (dim,):
        return tensor[None]
    if tensor.ndim == 2 and tensor.shape[1] == dim:
        return tensor
    raise ValueError(
        f"Expected theta of shape (N, {dim}) or ({dim},), got {tuple(tensor.shape)}. Pass one column per parameter."
    )


def refuse_missing(theta: Any, y: Any) -> None:
    """Refuse calibration pairs without theta or without y."""
    missing = [name for name, value in (("theta", theta), ("y", y)) if value is None]
    if missing:
        raise ValueError(
            "Expected calibration pairs, parameters theta and the measurements y taken at them, got no "
            f"{' and no '.join(missing)}. Call fit(theta, y)."
        )


def as_pairs(
    theta: Any, y: Any, x: Any, prior: Distribution, shape: torch.Size | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Calibration pairs: θ (N, p) inside the prior's support, y (N, *shape), and x like y where given."""
    from sbi.utils.sbiutils import within_support

    refuse_missing(theta, y)
    theta, y, dim = as_tensor(theta, "theta"), as_tensor(y, "y"), parameter_dim(prior)
    if y.ndim < 2:
        raise ValueError(
            f"Expected y of shape (N, ...), one observation per row, got {tuple(y.shape)}. Pass y[:, None] if each "
            "observation is one number, and let the simulator return (N, 1)."
        )
    if theta.ndim == 1 and dim == 1:
        theta = theta[:, None]
    if theta.ndim != 2 or theta.shape[1] != dim:
        raise ValueError(
            f"Expected theta of shape (N, {dim}), as the prior has {dim} parameter(s), got {tuple(theta.shape)}. Pass "
            "one row per calibration pair, one column per parameter."
        )
    number = len(theta)
    if number != len(y):
        raise ValueError(
            f"Expected one row of y per row of theta, got {len(y)} and {number} rows. Pass the pairs in the same order."
        )
    if number < 2:
        raise ValueError(
            f"Expected at least 2 calibration pairs, better 10 or more, got {number}. Without pairs, use the "
            "uncorrected posterior as it is."
        )
    if shape is not None and y.shape[1:] != shape:
        raise ValueError(
            f"Expected y of shape {(number, *shape)}, as the posterior was trained on data of that shape, got "
            f"{tuple(y.shape)}. Bring y into the simulator's shape."
        )
    outside = ~within_support(prior, theta)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"Expected physical theta inside the prior's support, got {int(outside.sum())} of {number} rows outside "
            f"the prior (first: row {row}, {theta[row].tolist()}). Remove those pairs, or train the posterior with a "
            "wider prior."
        )
    x = None if x is None else as_tensor(x, "x")
    if x is not None and x.shape != y.shape:
        raise ValueError(
            f"Expected x of shape {tuple(y.shape)}, one simulation at each row of theta, got {tuple(x.shape)}. Try "
            "x=simulator(theta)."
        )
    return theta, y, x


class CheckedSimulator:
    """A user's simulator; every batch that it returns is checked.

    Args:
        simulator: ``theta (N, p) -> x (N, *shape)``, torch or numpy.
        shape: Shape of one observation, if known.
    """

    def __init__(self, simulator: Callable[[Tensor], Any], shape: torch.Size | None) -> None:
        if not callable(simulator):
            raise TypeError(
                "Expected simulator to be a function from theta (N, p) to data (N, ...), got a "
                f"{type(simulator).__name__}. Pass simulator=my_function."
            )
        self.simulator, self.shape = simulator, shape

    def __call__(self, theta: Tensor) -> Tensor:
        number = theta.shape[0]
        with torch.no_grad():
            out = self.simulator(theta)
        try:
            x = _as_numbers(out, torch.float32, theta.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"Expected the simulator to return a tensor or array of numbers, got a {type(out).__name__}. Return "
                "torch.as_tensor(...)."
            ) from error
        fits = x.ndim >= 2 if self.shape is None else x.shape[1:] == self.shape
        if not fits or x.shape[0] != number:
            shape = f"({number}, ...)" if self.shape is None else (number, *self.shape)
            raise ValueError(
                f"Expected the simulator to return shape {shape}, one row per row of theta, got {tuple(x.shape)} for "
                f"theta of shape {tuple(theta.shape)}. Wrap a simulator of one parameter vector: lambda theta: "
                "torch.stack([simulate_one(row) for row in theta])."
            )
        # A sum is finite only if its terms are, and takes a twentieth of the time of a look at each number of an image.
        if bool(torch.isfinite(x.sum())):
            return x
        bad = ~torch.isfinite(x).flatten(1).all(1)
        if bool(bad.any()):
            raise ValueError(
                f"Expected finite simulations, got NaN or infinite values for {int(bad.sum())} of {number} rows "
                f"(first: theta={theta[bad][0].tolist()}). Mend the simulator there, or narrow the prior."
            )
        return x


def as_device(device: str | torch.device) -> torch.device:
    """A device that this machine has."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f'Expected a device of this machine, got device={device!r} ({reason}). Try device="cpu".'
        ) from error
    return found


_SBI_OPTIONS = {
    "reject_outside_prior", "max_sampling_time", "return_partial_on_timeout", "norm_posterior",
    "leakage_correction_params", "learning_rate", "init_method", "save_best_every",
}  # fmt: skip
"""Options of sbi's posteriors without effect here: draws never leave the support, densities never leak."""


def check_sbi_options(options: dict[str, Any]) -> None:
    """Refuse options that neither sbi nor this library has."""
    unknown = sorted(set(options) - _SBI_OPTIONS)
    if unknown:
        raise TypeError(
            f"Expected options of CorrectedPosterior, got {', '.join(unknown)}. See help(CorrectedPosterior)."
        )
