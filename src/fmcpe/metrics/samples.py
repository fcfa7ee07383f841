"""Checks of samples, and the space in which they are compared: physical, standardised or unconstrained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fmcpe._checks import as_tensor

Space = Literal["physical", "standardised", "unconstrained"]


def standardise(reference: Any, *others: Any) -> tuple[Tensor, ...]:
    """Z-score `reference` and `others` with the mean and standard deviation of `reference`.

    Each column of a table (N, d) has its own statistics, and others may be (S, N, d). A reference with more axes, such
    as images, has one mean and one standard deviation. Constants are only centred.
    """
    tensors = [finite(value, "standardise's argument") for value in (reference, *others)]
    axes = 0 if tensors[0].ndim <= 2 else tuple(range(tensors[0].ndim))
    mean, std = tensors[0].mean(axes), tensors[0].std(axes)
    std = torch.where(std > 1e-12 * (1 + mean.abs()), std, torch.ones_like(std))
    return tuple((tensor - mean) / std for tensor in tensors)


def joint(
    theta: Any, theta_hat: Any, y: Any, space: Space = "standardised", transform: Callable[..., Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The pairs `(θ, y)` and `(θ̂, y)` as two tables (N, p + d).

    Args:
        theta: True parameters, (N, p).
        theta_hat: One draw per observation, (N, p).
        y: Observations, (N, ...), flattened.
        space: "physical": unchanged, so the coordinate with the largest unit dominates. "standardised": z-scored with
            the statistics of the true pairs. "unconstrained": θ and θ̂ through `transform`, then z-scored.
        transform: The map to unconstrained θ, such as `sbi.utils.mcmc_transform(prior)`.
    """
    theta, theta_hat, y = to_space(theta, theta_hat, y, space, transform)
    return torch.cat([theta, y.flatten(1)], 1), torch.cat([theta_hat, y.flatten(1)], 1)


def finite(value: Any, name: str, shape: str | None = None) -> Tensor:
    """`value` as a double tensor on the CPU; an error unless it is finite and has the axes of `shape`."""
    tensor = as_tensor(value, name, torch.float64, "cpu")
    if shape is not None and (tensor.ndim != shape.count(",") + 1 or tensor.numel() == 0):
        hint = f"Pass {name}[:, None] for one column." if tensor.ndim == 1 else "Check its axes."
        raise ValueError(f"Expected {name} of shape {shape}, got {tuple(tensor.shape)}. {hint}")
    return tensor


def draws_and_truth(samples: Any, theta: Any, at_least: int = 1) -> tuple[Tensor, Tensor]:
    """Draws (S, B, p), S ≥ `at_least`, and truth (B, p), as double tensors."""
    samples, theta = finite(samples, "samples", "(S, B, p)"), finite(theta, "theta", "(B, p)")
    if samples.shape[1:] != theta.shape or len(samples) < at_least:
        raise ValueError(
            f"Expected samples (S, B, p) and theta (B, p) with S of at least {at_least}, got {tuple(samples.shape)} "
            f"and {tuple(theta.shape)}. Draw samples with posterior.sample_batched((500,), x=ys)."
        )
    return samples, theta


def two_samples(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two tables (N, d) and (M, d), of at least two rows each."""
    a, b = finite(a, "a", "(N, d)"), finite(b, "b", "(M, d)")
    if a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"Expected a (N, d) and b (M, d) with N and M of at least 2, got {tuple(a.shape)} and {tuple(b.shape)}. "
            "Pass samples as rows, with the same columns in both."
        )
    return a, b


def to_space(
    theta: Any, theta_hat: Any, y: Any, space: str, transform: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """θ, θ̂ and y, not flattened, in a space of `joint`."""
    theta, theta_hat = finite(theta, "theta", "(N, p)"), finite(theta_hat, "theta_hat", "(N, p)")
    y = finite(y, "y")
    if theta.shape != theta_hat.shape or y.ndim < 2 or len(y) != len(theta) or len(theta) < 2:
        shapes = ", ".join(str(tuple(part.shape)) for part in (theta, theta_hat, y))
        raise ValueError(
            f"Expected theta, theta_hat and y of shapes (N, p), (N, p) and (N, ...), got {shapes}. Draw theta_hat with "
            "posterior.sample_batched((1,), x=ys)[0]."
        )
    if space not in get_args(Space) or (space == "unconstrained") != (transform is not None):
        raise ValueError(
            'Expected space "physical", "standardised", or "unconstrained" with a transform, got '
            f'{space!r} and {transform!r}. Try space="unconstrained", transform=sbi.utils.mcmc_transform(prior).'
        )
    if transform is not None:
        theta = finite(transform(theta), "transform(theta)", "(N, p)")
        theta_hat = finite(transform(theta_hat), "transform(theta_hat)", "(N, p)")
    if space == "physical":
        return theta, theta_hat, y
    return *standardise(theta, theta_hat), *standardise(y)  # type: ignore[return-value]
