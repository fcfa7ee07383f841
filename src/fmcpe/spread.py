r"""The smallest share of the prior that makes a posterior as wide as required.

Sharpness has three measures, each in unconstrained and in physical units: the standard deviation, half of the central 68 %
interval, and half of the shortest 50 % interval. The standard deviation alone is not enough: a narrow peak with a few draws of
the prior has a large one. Nor is the central interval, where the peak lies at an end of it, as next to a bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.spaces import ParameterSpace


def spreads(z: Tensor, space: ParameterSpace) -> Tensor:
    """Standard deviation and both half-widths of z and of θ, (B, 6p), of draws (B, S, p)."""
    z = z.double().sort(1).values
    share = torch.full_like(z, 1 / z.shape[1])
    return _spreads(z, _physical(z, space), share, share.cumsum(1))


def share_needed(z: Tensor, prior: Tensor, least: Tensor, space: ParameterSpace, steps: int = 6) -> Tensor:
    """Smallest share of the prior with which the spreads are at least `least`, by bisection, (B,); one if none is enough.

    Args:
        z: Draws, (B, S, p).
        prior: Draws of the prior in z, (L, p).
        least: Spreads, (6p,); (4p,) without the shortest intervals, as in files of earlier versions.
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
        return (_spreads(both, theta, mass, below)[:, : len(least)] >= least).all(1)

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
    stds, widths, shortest = [], [], []
    for each in (z, theta):
        mean = (mass * each).sum(1, keepdim=True)
        stds.append((mass * (each - mean).square()).sum(1).sqrt())
        widths.append((each.gather(1, high) - each.gather(1, low))[:, 0].abs() / 2)
        shortest.append(_shortest(each, mass, below) / 2)
    return torch.cat(stds + widths + shortest, dim=1)


def _shortest(rows: Tensor, mass: Tensor, below: Tensor, share: float = 0.5) -> Tensor:
    """Length of the shortest interval with a share of the mass of sorted draws (B, S, p): (B, p)."""
    cumulative = below.mT.contiguous()
    start = (below - mass).mT.contiguous()
    end = torch.searchsorted(cumulative, start + share - 1e-9)  # (B, p, S), S where the rest is too little
    lengths = (rows.mT.gather(2, end.clamp_max(rows.shape[1] - 1)) - rows.mT).abs()
    return lengths.masked_fill(end == rows.shape[1], torch.inf).amin(2)
