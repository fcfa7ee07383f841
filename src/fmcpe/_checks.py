"""Checks of user input. Every message has three parts: "Expected X, got Y. Do Z."."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._arrays import LOSS, UnreadableError, as_numbers, is_plain
from fmcpe._names import columns_of, in_order, refuse_other_order
from fmcpe._random import seeded

MOST_DRAWS = 10**12
"""Resource limit: draws of one call; more are a typing error."""


def as_tensor(
    value: Any,
    name: str,
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
    *,
    finite: bool = True,
    rows: int | None = None,
) -> Tensor:
    """A new tensor from a tensor, array, DataFrame, number or list; of finite numbers unless told otherwise.

    From `rows` rows on, values that lose precision in float32 are refused.
    """
    try:
        tensor = as_numbers(value, dtype, device, rows=rows)
    except UnreadableError as error:
        raise ValueError(f"Expected real numbers in {name}, {error}.") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"Expected {name} to be a torch tensor or a numpy array, got a {type(value).__name__} that does not "
            f"convert to numbers. Pass {name}=torch.as_tensor(...)."
        ) from error
    bad = ~torch.isfinite(tensor) if finite else torch.zeros(())
    if bool(bad.any()):
        largest = as_numbers(value, torch.float64, device)[bad].abs().max()
        if bool(torch.isfinite(largest)):
            raise ValueError(
                f"Expected numbers in {name} that single precision holds (up to 3.4e38), got {float(largest):.3g}"
                f"{_which_rows(bad)}. Choose a larger unit, the same for simulations and measurements."
            )
        raise ValueError(
            f"Expected finite numbers in {name}, got {int(bad.sum())} NaN or infinite value(s) of {tensor.numel()}"
            f"{_which_rows(bad)}. {'Remove those rows from theta and y alike.' if name in ('theta', 'y') else 'Replace them.'}"
        )
    return tensor


def _which_rows(bad: Tensor, most: int = 5) -> str:
    """Row numbers of the marked values, for an error."""
    if bad.ndim == 0 or len(bad) < 2:
        return ""
    rows = bad.reshape(len(bad), -1).any(1).nonzero()[:, 0].tolist()
    return f", in row(s) {', '.join(map(str, rows[:most]))}{' and others' if len(rows) > most else ''}"


def finite_rows(data: Tensor) -> Tensor:
    """Which rows of data (N, ...) hold finite numbers only, (N,)."""
    # The sum is finite only if all terms are, and costs a twentieth of an elementwise test on images.
    if bool(torch.isfinite(data.sum())):
        return torch.ones(len(data), dtype=torch.bool, device=data.device)
    return torch.isfinite(data).flatten(1).all(1)


def check_prior(prior: Any) -> None:
    """Refuse what is no distribution over θ of shape (p,)."""
    if not isinstance(prior, Distribution):
        raise TypeError(
            f"Expected prior to be a torch distribution, got a {type(prior).__name__}. Pass e.g. "
            "sbi.utils.BoxUniform(low, high)."
        )
    if len(prior.batch_shape) or len(prior.event_shape) != 1:
        raise ValueError(
            f"Expected a prior over θ of shape (p,), got batch shape {tuple(prior.batch_shape)} and event shape "
            f"{tuple(prior.event_shape)}. Use e.g. torch.distributions.Independent(Normal(zeros, ones), 1)."
        )


def sbi_prior(prior: Any) -> Distribution:
    """The prior in sbi's form; sbi also takes a list of priors, one number in a batch of one, and any object that draws."""
    from sbi.utils import process_prior

    for each in prior if isinstance(prior, list | tuple) and prior else [prior]:
        if isinstance(each, Distribution):
            taken = each.batch_shape + each.event_shape == (1,)
        else:
            taken = hasattr(each, "sample") and hasattr(each, "log_prob")
        if not taken:
            check_prior(each)
    return process_prior(prior)[0]


def parameter_dim(prior: Distribution) -> int:
    """Number of parameters of a prior; leaves the global generator as it was."""
    with seeded(0):
        return prior.sample((1,)).shape[-1]


def prior_device(prior: Distribution) -> torch.device:
    """The device of a prior; leaves the global generator as it was."""
    with seeded(0):
        return prior.sample((1,)).device


def check_prior_device(prior: Distribution, device: str | torch.device) -> None:
    """Refuse a prior on another type of device than the networks."""
    own, asked = prior_device(prior), torch.device(device)
    if own.type != asked.type:
        raise ValueError(
            f"Expected a prior on {asked}, where the networks are asked to be, got one on {own}. Make it there, e.g. "
            f'BoxUniform(low, high, device="{asked}"), or use device="{own}".'
        )


def refuse_coarse(prior: Distribution) -> None:
    """Refuse a prior whose draws single precision cannot tell apart: a narrow range far from zero."""
    with seeded(0):
        theta = prior.sample(torch.Size((200,))).double()
    rounding = torch.from_numpy(np.spacing(theta.abs().float().cpu().numpy())).double().square().mean(0).div(12).sqrt()
    spread = theta.std(0).cpu()
    bad = rounding > LOSS * spread
    if bool(bad.any()):
        worst = int((bad * rounding / spread.clamp_min(1e-300)).argmax())
        raise ValueError(
            f"Expected a prior that single precision resolves, got parameter {worst} with mean "
            f"{float(theta[:, worst].mean()):.9g} and standard deviation {float(spread[worst]):.3g}. Subtract a constant from "
            "θ, in prior, simulator and pairs."
        )


def check_target_prior(target: Distribution, prior: Distribution) -> None:
    """Refuse a target prior over other parameters than the prior, or with more than 1 % of 1000 draws outside its support."""
    from sbi.utils.sbiutils import within_support

    if not isinstance(target, Distribution):
        raise TypeError(
            f"Expected target_prior to be a torch distribution, got a {type(target).__name__}. Pass e.g. "
            "sbi.utils.BoxUniform(low, high)."
        )
    dim, own = parameter_dim(prior), parameter_dim(target)
    if own != dim:
        raise ValueError(
            f"Expected target_prior over {dim} parameter(s), as the prior, got {own}. Pass a distribution over the same θ."
        )
    with seeded(0):
        theta = target.sample(torch.Size((1000,)))
    outside = int((~within_support(prior, theta.to(prior_device(prior)))).sum())
    if outside > 10:
        raise ValueError(
            f"Expected a target_prior inside the prior's support, got one with {outside} of 1000 draws outside; 10 are "
            "allowed. Restrict it to that support, or train the posterior with a wider prior."
        )


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
    if math.prod(size) > MOST_DRAWS:
        raise ValueError(
            f"Expected sample_shape of at most {MOST_DRAWS:.0e} draws, got {tuple(size)}. Draw fewer, in several calls."
        )
    return size


def as_observation(x: Any, shape: torch.Size) -> Tensor:
    """One observation, (1, *shape), from ``shape`` or ``(1, *shape)``; from a number, if it is one."""
    x = as_tensor(x, "x")
    if x.shape == shape or (x.ndim == 0 and shape == (1,)):
        return x.reshape(1, *shape)
    if x.shape == (1, *shape):
        return x
    several = x.shape[1:] == shape or (x.ndim == 1 and shape == (1,))
    hint = "For several observations use sample_batched or log_prob_batched." if several else "Pass one, e.g. x=ys[0]."
    raise ValueError(f"Expected one observation x of shape {tuple(shape)}, got {tuple(x.shape)}. {hint}")


def as_observations(x: Any, shape: torch.Size) -> Tensor:
    """A batch of observations, (B, *shape); (B,) if each is a number."""
    x = as_tensor(x, "x")
    if x.ndim <= 1 and shape == (1,) and x.numel():
        return x.reshape(-1, 1)
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
    plain = isinstance(theta, Tensor) and is_plain(theta)
    tensor = theta.to(torch.float32) if plain else as_tensor(theta, "theta")
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
    theta: Any, y: Any, x: Any, prior: Distribution, shape: torch.Size | None, held_out: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Calibration pairs: θ (N, p) inside the prior's support, y (N, *shape), and x like y where given; two or more.

    One pair that is `held_out` is enough.

    Columns of a DataFrame x are matched with those of a DataFrame y by name.
    """
    from sbi.utils.sbiutils import within_support

    refuse_missing(theta, y)
    refuse_other_order(theta, "theta", y=y, x=x)
    refuse_other_order(y, "y", x=x)
    x = in_order(x, columns_of(y), "x")
    theta, y, dim = as_tensor(theta, "theta", rows=5), as_tensor(y, "y", rows=5), parameter_dim(prior)
    if y.ndim == 1:
        y = y[:, None]  # each observation is one number
    if theta.ndim == 1 and dim == 1:
        theta = theta[:, None]
    if y.ndim < 2 or theta.ndim != 2 or theta.shape[1] != dim:
        raise ValueError(
            f"Expected theta of shape (N, {dim}), as the prior has {dim} parameter(s), and y of shape (N, ...), got "
            f"{tuple(theta.shape)} and {tuple(y.shape)}. {_pairs_hint(theta, y, dim, shape)}"
        )
    number = len(theta)
    if number != len(y):
        turned = y.ndim == 2 and y.shape[1] == number and shape in (None, y.shape[:1])
        hint = "It looks transposed: pass y.T." if turned else "Pass the pairs in the same order, one row each."
        raise ValueError(f"Expected one row of y per row of theta, got {len(y)} and {number} rows. {hint}")
    if held_out and number == 0:
        raise ValueError("Expected held-out pairs, got none. Measure some: 90 % intervals need 9, 95 % intervals 19.")
    if number < 2 and not held_out:
        raise ValueError(
            f"Expected at least 2 calibration pairs, better 10 or more, got {number}. Without pairs, use the "
            "uncorrected posterior as it is."
        )
    if shape is not None and y.shape[1:] != shape:
        raise ValueError(
            f"Expected y of shape {(number, *shape)}, as the posterior was trained on data of that shape, got "
            f"{tuple(y.shape)}. {_pairs_hint(theta, y, dim, shape)}"
        )
    device = prior_device(prior)
    outside = ~within_support(prior, theta.to(device))
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        swapped = y.shape == theta.shape and bool(within_support(prior, y.to(device)).all())
        hint = "All of y lie inside: were they swapped? Call fit(theta, y)." if swapped else (
            "Remove those pairs, or train the posterior with a wider prior."
        )  # fmt: skip
        raise ValueError(
            f"Expected physical theta inside the prior's support, got {int(outside.sum())} of {number} rows outside "
            f"the prior (first: row {row}, {theta[row].tolist()}). {hint}"
        )
    x = None if x is None else as_tensor(x, "x", rows=5)
    if x is not None and x.ndim == 1:
        x = x[:, None]
    if x is not None and x.shape != y.shape:
        raise ValueError(
            f"Expected x of shape {tuple(y.shape)}, one simulation at each row of theta, got {tuple(x.shape)}. Try "
            "x=simulator(theta)."
        )
    return theta, y, x


def as_unlabelled(value: Any, y: Tensor) -> Tensor:
    """Real observations without θ, (M, *shape), with rows like those of the pairs' y, (N, *shape)."""
    found = as_tensor(value, "y_unlabelled", rows=5)
    found = found[:, None] if found.ndim == 1 and y.shape[1:] == (1,) else found
    if found.ndim != y.ndim or found.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"Expected y_unlabelled of shape (M, {', '.join(map(str, y.shape[1:]))}), with rows like those of y, got "
            f"{tuple(found.shape)}. Pass one row per observation, or leave it out."
        )
    return found


def _pairs_hint(theta: Tensor, y: Tensor, dim: int, shape: torch.Size | None) -> str:
    """What to do about pairs of the wrong shape; never a reshape, which would mix rows up."""
    if y.ndim == 2 and y.shape[1] == dim and theta.shape[:1] == y.shape[:1] and shape in (None, theta.shape[1:]):
        return "They look swapped: call fit(theta, y), parameters first."
    if theta.ndim == 2 and theta.shape == (dim, len(y)):
        return "theta looks transposed: pass theta.T."
    if theta.ndim == 2 and theta.shape[1] == dim:
        return "Bring each row of y into the simulator's shape."
    return "Pass one row per calibration pair, one column per parameter."


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
"""Options of sbi's posteriors that have no effect here: draws stay inside the support, densities do not leak."""


def check_sbi_options(options: dict[str, Any]) -> None:
    """Refuse options that neither sbi nor this library has."""
    unknown = sorted(set(options) - _SBI_OPTIONS)
    if unknown:
        raise TypeError(
            f"Expected options of CorrectedPosterior, got {', '.join(unknown)}. See help(CorrectedPosterior)."
        )
