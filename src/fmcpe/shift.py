r"""Real data shifted to where the simulator would have put them, before the base posterior sees them.

    y' = y + g(h(y)),   g: ridge regression of x̄(θ_j) - y_j on what the base posterior sees of y_j

x̄(θ) is the mean of simulations at θ. Where simulator and reality differ by a smooth curve (a lag, a drift, a gain), a few
pairs say what it is, and y' is data that the base posterior knows. It is applied to raw data, noise and all: nothing is
drawn. Where the mean of simulations says nothing of one of them (a random phase), the evidence throws it away.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fmcpe.source import Ridge, fit_ridge
from fmcpe.spaces import Standardiser

_MOST_DIRECTIONS = 64
"""Directions of the data in which they may be shifted: all of a short series, the largest ones of an image."""


class Shift(nn.Module):
    """y -> y'.

    Args:
        features: How many numbers the base posterior sees of y.
        shape: Shape of one observation.
        furthest: How far from the mean of the pairs, in standard deviations, such a number may be before it is cut.
    """

    def __init__(self, features: int, shape: torch.Size, furthest: float) -> None:
        super().__init__()
        self.shape, self.furthest = shape, furthest
        self.scale, self.ridge = Standardiser(torch.zeros(2, features)), Ridge(features, shape.numel())

    def forward(self, y: Tensor, seen: Tensor) -> Tensor:
        """Observations (B, ...) shifted, given what the base posterior sees of them, (B, f)."""
        features = self.scale(seen.flatten(1)).clamp(-self.furthest, self.furthest)
        return y + self.ridge(features).unflatten(1, self.shape)


class ShiftFit(NamedTuple):
    """A fitted shift, and what leaving out one pair at a time says of it."""

    shift: Shift
    y: Tensor
    """The pairs' own y', each from a regression that has not seen it."""
    explained: float
    """Share of the mean square of x̄ - y that is predicted for pairs that were left out; below 0 if it gets worse."""


def fit_shift(y: Tensor, seen: Tensor, x: Tensor, furthest: float) -> ShiftFit:
    """Fit the shift.

    Args:
        y: Real observations, (N, ...).
        seen: What the base posterior sees of them, (N, f).
        x: The mean of simulations at their parameters, (N, ...).
        furthest: See `Shift`.
    """
    shift = Shift(seen[0].numel(), y.shape[1:], furthest).to(y.device)
    shift.scale = Standardiser(seen.flatten(1))
    wanted = (x - y).flatten(1)
    mean, directions = wanted.mean(0), _directions(wanted)
    features = shift.scale(seen.flatten(1)).clamp(-furthest, furthest)
    fit = fit_ridge(features, (wanted - mean) @ directions)
    for name in ("centre", "gram_inverse", "count"):
        getattr(shift.ridge, name).copy_(getattr(fit.ridge, name))
    shift.ridge.weight.copy_(fit.ridge.weight @ directions.T)
    shift.ridge.bias.copy_(fit.ridge.bias @ directions.T + mean)
    predicted = ((wanted - mean) @ directions - fit.residual) @ directions.T + mean
    missed = (wanted - predicted).square().sum() / wanted.square().sum().clamp_min(1e-30)
    return ShiftFit(shift, y + predicted.unflatten(1, y.shape[1:]), 1 - float(missed))


def _directions(wanted: Tensor) -> Tensor:
    """Orthonormal directions, (d, r), in which the rows of a matrix (N, d) differ most."""
    number, size = wanted.shape
    most = min(_MOST_DIRECTIONS, number, size)
    if size <= _MOST_DIRECTIONS:
        return torch.eye(size, device=wanted.device, dtype=wanted.dtype)
    return torch.svd_lowrank(wanted - wanted.mean(0), q=most)[2]
