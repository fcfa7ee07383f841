"""What comes from users, checked once at the door.

Every message has three parts: what came, what was expected, what to type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._random import seeded


def as_tensor(value: Any, name: str) -> Tensor:
    """A finite float32 tensor from a tensor, array or list."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
        tensor = tensor.detach().to(torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} is a {type(value).__name__} that does not convert to numbers; a torch tensor or a numpy array "
            f"was expected. Try {name}=torch.as_tensor(...)."
        ) from error
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise ValueError(
            f"{name} holds {bad} value(s) that are NaN or infinite (of {tensor.numel()}); finite numbers were expected. "
            f"Remove the rows concerned, e.g. keep = torch.isfinite({name}).flatten(1).all(1)."
        )
    return tensor


def parameter_dim(prior: Distribution) -> int:
    """Number of parameters of a prior, without touching the global generator."""
    with seeded(0):
        return prior.sample((1,)).shape[-1]


def as_sample_shape(shape: Any) -> torch.Size:
    """``()``, ``5``, ``(3, 4)``, a list or a `torch.Size`, as a `torch.Size`."""
    sizes: Iterable[Any] = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        size = torch.Size(operator.index(s) for s in sizes)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"sample_shape={shape!r} is not a shape; a number, tuple, list or torch.Size was expected. Try (1000,)."
        ) from error
    if any(s < 0 for s in size):
        raise ValueError(f"sample_shape={tuple(size)} has a negative size; sizes must be 0 or more. Try (1000,).")
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
    raise ValueError(f"x has shape {tuple(x.shape)}; one observation of shape {tuple(shape)} was expected. {hint}")


def as_observations(x: Any, shape: torch.Size) -> Tensor:
    """A batch of observations, (B, *shape)."""
    x = as_tensor(x, "x")
    if x.shape == shape:
        return x[None]
    if x.ndim == len(shape) + 1 and x.shape[1:] == shape and x.shape[0] > 0:
        return x
    raise ValueError(
        f"x has shape {tuple(x.shape)}; a batch of observations of shape (B, {', '.join(map(str, shape))}) was "
        "expected. Stack them with torch.stack(list_of_observations)."
    )


def as_theta(theta: Any, dim: int) -> Tensor:
    """Parameters as rows, (N, dim), from (N, dim) or (dim,). Keeps the graph: gradients flow to `theta`."""
    tensor = theta.to(torch.float32) if isinstance(theta, Tensor) else as_tensor(theta, "theta")
    if bool(torch.isnan(tensor).any()):
        raise ValueError("theta holds NaN; numbers were expected. Remove the rows concerned.")
    if tensor.ndim == 1 and tensor.shape[0] == dim:
        return tensor[None]
    if tensor.ndim == 2 and tensor.shape[1] == dim:
        return tensor
    raise ValueError(
        f"theta has shape {tuple(tensor.shape)}; (N, {dim}) or ({dim},) was expected. Try theta.reshape(-1, {dim})."
    )


def refuse_missing(theta: Any, y: Any) -> None:
    """Refuse calibration pairs of which a half, or both, did not come."""
    missing = [name for name, value in (("theta", theta), ("y", y)) if value is None]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} did not come; calibration pairs were expected, parameters and the measurements taken at "
            "them. Type fit(theta, y)."
        )


def as_pairs(
    theta: Any, y: Any, x: Any, prior: Distribution, shape: torch.Size | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Calibration pairs: θ (N, p) inside the prior's support, y (N, *shape), and x like y where given."""
    from sbi.utils.sbiutils import within_support

    refuse_missing(theta, y)
    theta, y = as_tensor(theta, "theta"), as_tensor(y, "y")
    if y.ndim < 2:
        raise ValueError(
            f"y has shape {tuple(y.shape)}; (number of pairs, ...) was expected, one observation per row. For observations of "
            "one number try y.reshape(-1, 1), and let the simulator return (N, 1)."
        )
    dim = parameter_dim(prior)
    if theta.ndim == 1 and dim == 1:
        theta = theta[:, None]
    if theta.ndim != 2 or theta.shape[1] != dim:
        raise ValueError(
            f"theta has shape {tuple(theta.shape)}; (number of pairs, {dim}) was expected, as the prior has {dim} "
            f"parameter(s). Try theta.reshape(-1, {dim})."
        )
    if theta.shape[0] != y.shape[0]:
        raise ValueError(
            f"theta has {theta.shape[0]} rows and y has {y.shape[0]}; one row of y per row of theta was expected. "
            "Pass the pairs in the same order."
        )
    if theta.shape[0] < 2:
        raise ValueError(
            f"{theta.shape[0]} calibration pair(s) came; at least 2 are needed to fit and to validate, and 10 or more to "
            "be useful. Without pairs, use the uncorrected posterior as it is."
        )
    if shape is not None and y.shape[1:] != shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}; ({theta.shape[0]}, {', '.join(map(str, shape))}) was expected, as the "
            "posterior was trained on data of that shape. Bring y into the simulator's shape."
        )
    outside = ~within_support(prior, theta)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{int(outside.sum())} of {theta.shape[0]} rows of theta lie outside the prior's support (first: row {row}, "
            f"{theta[row].tolist()}); physical parameters inside the prior were expected. Remove those pairs, or train "
            "the posterior with a wider prior."
        )
    if x is not None:
        x = as_tensor(x, "x")
        if x.shape != y.shape:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; {tuple(y.shape)} was expected: one simulation at each row of theta, "
                "shaped like y. Try x=simulator(theta)."
            )
    return theta, y, x


class CheckedSimulator:
    """A user's simulator, refused as soon as it returns something that cannot be used.

    Args:
        simulator: ``(N, p) physical θ -> (N, *shape)``, torch or numpy.
        shape: The shape of one observation.
    """

    def __init__(self, simulator: Callable[[Tensor], Any], shape: torch.Size | None) -> None:
        if not callable(simulator):
            raise TypeError(
                f"simulator is a {type(simulator).__name__}; a function from theta of shape (N, p) to data of shape "
                "(N, ...) was expected. Pass simulator=my_function."
            )
        self.simulator, self.shape = simulator, shape

    def __call__(self, theta: Tensor) -> Tensor:
        with torch.no_grad():
            out = self.simulator(theta)
        try:
            x = out if isinstance(out, Tensor) else torch.as_tensor(np.asarray(out))
            x = x.detach().to(theta.device, torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"the simulator returned a {type(out).__name__}; a tensor or array of numbers was expected. "
                "Return torch.as_tensor(...)."
            ) from error
        expected = None if self.shape is None else (theta.shape[0], *self.shape)
        if x.ndim < 2 or x.shape[0] != theta.shape[0] or (expected is not None and x.shape != expected):
            wanted = expected or f"({theta.shape[0]}, ...)"
            raise ValueError(
                f"the simulator returned shape {tuple(x.shape)} for theta of shape {tuple(theta.shape)}; {wanted} was "
                "expected, one row per row of theta. A simulator of one parameter vector can be wrapped: "
                "lambda theta: torch.stack([simulate_one(row) for row in theta])."
            )
        # A sum is finite only if its terms are; of a batch of images, it takes a twentieth of the time of a look at each.
        if bool(torch.isfinite(x.sum())):
            return x
        bad = ~torch.isfinite(x).flatten(1).all(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"the simulator returned NaN or infinite values for {int(bad.sum())} of {theta.shape[0]} rows (first: "
                f"theta={theta[row].tolist()}); finite numbers were expected. Mend the simulator there, or narrow the "
                "prior."
            )
        return x


def as_device(device: str | torch.device) -> torch.device:
    """A device that is there."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f'device={device!r} came, which this machine does not have ({reason}); try device="cpu".'
        ) from error
    return found


_SBI_OPTIONS = {
    "reject_outside_prior",
    "max_sampling_time",
    "return_partial_on_timeout",
    "norm_posterior",
    "leakage_correction_params",
    "learning_rate",
    "init_method",
    "save_best_every",
}
"""Options of sbi's posteriors that have nothing to do here: draws never leave the support, and densities never leak."""


def check_sbi_options(options: dict[str, Any]) -> None:
    """Refuse what neither sbi nor this library knows."""
    unknown = sorted(set(options) - _SBI_OPTIONS)
    if unknown:
        raise TypeError(f"unknown option(s) {', '.join(unknown)}; see help(CorrectedPosterior) for those there are.")
