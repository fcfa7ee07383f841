r"""The smallest share of the prior that makes a posterior as wide as required.

Sharpness has two measures, each in unconstrained and in physical units: the standard deviation, and half of the central 68 %
interval. The standard deviation alone is not enough: a narrow peak with a few draws of the prior has a large one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.spaces import ParameterSpace


def spreads(z: Tensor, space: ParameterSpace) -> Tensor:
    """Standard deviation and half-width of z and of θ, (B, 4p), of draws (B, S, p)."""
    z = z.double().sort(1).values
    share = torch.full_like(z, 1 / z.shape[1])
    return _spreads(z, _physical(z, space), share, share.cumsum(1))


def share_needed(z: Tensor, prior: Tensor, least: Tensor, space: ParameterSpace, steps: int = 6) -> Tensor:
    """Smallest share of the prior with which the spreads are at least `least`, by bisection, (B,); one if none is enough.

    Args:
        z: Draws, (B, S, p).
        prior: Draws of the prior in z, (L, p).
        least: Spreads, (4p,).
        space: Physical θ <-> z.
        steps: Bisections; the share is exact to 2^-steps.
    """
    number = z.shape[1]
    both, order = torch.cat([z, prior.expand(len(z), -1, -1)], dim=1).double().sort(1)
    own = (order < number).double()
    parts = own / number, (1 - own) / len(prior)
    cumulative, theta = [part.cumsum(1) for part in parts], _physical(both, space)

    def enough(share: Tensor) -> Tensor:
        mass, below = (a + share[:, None, None] * (b - a) for a, b in (parts, cumulative))
        return (_spreads(both, theta, mass, below) >= least).all(1)

    low, high = both.new_zeros(len(z)), both.new_ones(len(z))
    high = torch.where(enough(low), low, high)
    for _ in range(steps):
        middle = (low + high) / 2
        reached = enough(middle)
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high


def _physical(z: Tensor, space: ParameterSpace) -> Tensor:
    return space.to_theta(z.flatten(0, 1).float()).double().reshape(z.shape)


def _spreads(
    z: Tensor, theta: Tensor, mass: Tensor, below: Tensor, tails: tuple[float, float] = (0.16, 0.84)
) -> Tensor:
    """Of sorted draws (B, S, p) with these weights, and their cumulative sums."""
    low, high = ((below < tail - 1e-9).sum(1, keepdim=True).clamp_max(z.shape[1] - 1) for tail in tails)
    stds, widths = [], []
    for each in (z, theta):
        mean = (mass * each).sum(1, keepdim=True)
        stds.append((mass * (each - mean).square()).sum(1).sqrt())
        widths.append((each.gather(1, high) - each.gather(1, low))[:, 0].abs() / 2)
    return torch.cat(stds + widths, dim=1)
