"""Samples as tables, checked, and in the space where they are compared.

The distance between two sets of pairs `(θ, y)` depends on the units, so a space is chosen and named: physical, standardised
(z-scored with the statistics of the true pairs) or unconstrained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

Space = Literal["physical", "standardised", "unconstrained"]


def standardise(reference: Any, *others: Any) -> tuple[Tensor, ...]:
    """Z-score `reference` and `others` with the mean and standard deviation of `reference`.

    A table (N, d) is scaled by coordinate, and others may be (S, N, d). A reference with more axes is scaled
    by one mean and one deviation, so that an image stays one. What doesn't vary is only centred.
    """
    tensors = [finite(value, "standardise's argument") for value in (reference, *others)]
    axes = 0 if tensors[0].ndim <= 2 else tuple(range(tensors[0].ndim))
    mean, std = tensors[0].mean(axes), tensors[0].std(axes)
    std = torch.where(std > 1e-12 * (1 + mean.abs()), std, torch.ones_like(std))
    return tuple((tensor - mean) / std for tensor in tensors)


def joint(
    theta: Any, theta_hat: Any, y: Any, space: Space = "standardised", transform: Callable[..., Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The pairs `(θ, y)` and `(θ̂, y)` as two tables (N, p + d), in the space where they are to be compared.

    Args:
        theta: True parameters, (N, p).
        theta_hat: One draw per observation, (N, p).
        y: Observations, (N, ...), flattened.
        space: "physical": as they come, and the coordinate with the largest unit decides. "standardised": z-scored
            with the statistics of the true pairs. "unconstrained": θ and θ̂ through `transform`, then z-scored.
        transform: The map to unconstrained θ, such as `sbi.utils.mcmc_transform(prior)`.
    """
    theta, theta_hat, y = to_space(theta, theta_hat, y, space, transform)
    return torch.cat([theta, y.flatten(1)], 1), torch.cat([theta_hat, y.flatten(1)], 1)


def finite(value: Any, name: str, shape: str | None = None) -> Tensor:
    """`value` as a double tensor on the CPU, refused unless finite and with the axes of `shape`."""
    try:
        tensor = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} is a {type(value).__name__}, expected numbers: type torch.as_tensor({name})"
        ) from error
    if shape is not None and (tensor.ndim != shape.count(",") + 1 or tensor.numel() == 0):
        hint = f"{name}[:, None] for one column" if tensor.ndim == 1 else f"{name}.shape to see its axes"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}: type {hint}")
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise ValueError(
            f"{name} holds {bad} NaN or infinite values of {tensor.numel()}, expected finite numbers: type "
            f"torch.isfinite({name}).flatten(1).all(1) for the rows to keep"
        )
    return tensor


def draws_and_truth(samples: Any, theta: Any, at_least: int = 1) -> tuple[Tensor, Tensor]:
    """Draws (S, B, p) and truth (B, p) as double tensors, refused where they don't fit each other."""
    samples, theta = finite(samples, "samples", "(S, B, p)"), finite(theta, "theta", "(B, p)")
    if samples.shape[1:] != theta.shape or len(samples) < at_least:
        raise ValueError(
            f"samples and theta have shapes {tuple(samples.shape)} and {tuple(theta.shape)}, expected "
            f"(S, B, p) and (B, p), S at least {at_least}: type posterior.sample_batched((500,), x=ys)"
        )
    return samples, theta


def two_samples(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two tables (N, d) and (M, d), of at least two rows each."""
    a, b = finite(a, "a", "(N, d)"), finite(b, "b", "(M, d)")
    if a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        came = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"shapes {came}, expected (N, d) and (M, d), N and M > 1: type b.T if b is transposed")
    return a, b


def to_space(
    theta: Any, theta_hat: Any, y: Any, space: str, transform: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """θ, θ̂ and y in a space of `joint`, y with the axes it came with."""
    theta, theta_hat = finite(theta, "theta", "(N, p)"), finite(theta_hat, "theta_hat", "(N, p)")
    y = finite(y, "y")
    if theta.shape != theta_hat.shape or y.ndim < 2 or len(y) != len(theta) or len(theta) < 2:
        came = ", ".join(str(tuple(part.shape)) for part in (theta, theta_hat, y))
        raise ValueError(
            f"theta, theta_hat, y have shapes {came}, expected (N, p), (N, p), (N, ...): "
            "type posterior.sample_batched((1,), x=ys)[0] for theta_hat"
        )
    known = space in ("physical", "standardised", "unconstrained")
    if not known or (space == "unconstrained") != (transform is not None):
        raise ValueError(
            f'space={space!r}, transform={transform!r}, expected "physical", "standardised", or a transform: '
            'type space="unconstrained", transform=sbi.utils.mcmc_transform(prior)'
        )
    if transform is not None:
        theta = finite(transform(theta), "transform(theta)", "(N, p)")
        theta_hat = finite(transform(theta_hat), "transform(theta_hat)", "(N, p)")
    if space == "physical":
        return theta, theta_hat, y
    return *standardise(theta, theta_hat), *standardise(y)  # type: ignore[return-value]
