r"""Widening: a posterior becomes as wide as required.

Sharpness has three measures, each in unconstrained and in physical units: the standard deviation, half of the central 68 %
interval, and half of the shortest 50 % interval. The standard deviation alone is not enough: a narrow peak with a few draws of
the prior has a large one. Nor is the central interval, where the peak lies at an end of it, as next to a bound.

The mean m of each parameter moves to the prior's, and its standard deviation s grows to it, by the smallest t that is enough,

    z' = m_t + s_t (z - m) / s,      m_t = (1 - t) m + t m_π,   s_t = s + t (s_π - s)⁺.

Where even t = 1 is not, because the shape is a narrow peak with far draws, the rest is done by a mixture with the prior. A
mixture alone would need a large weight: a peak's shortest 50 % interval grows only once half of its draws come from the prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcpe.spaces import ParameterSpace


@dataclass(frozen=True)
class Widening:
    """z -> `mean` + `scale` (z - `centre`), parameter by parameter, for observations (B, p)."""

    centre: Tensor
    mean: Tensor
    scale: Tensor

    @classmethod
    def towards(cls, z: Tensor, prior: Tensor, share: Tensor) -> Widening:
        """Mean and standard deviation of draws (B, S, p) moved by `share` (B, p) of the way to those of the prior (L, p)."""
        centre, own = z.mean(1), z.std(1, correction=0).clamp_min(1e-9)
        mean = centre + share * (prior.mean(0) - centre)
        return cls(centre, mean, 1 + share * (prior.std(0, correction=0) / own - 1).clamp_min(0))

    def __call__(self, z: Tensor) -> Tensor:
        """Widened draws, (B, S, p)."""
        return self.mean[:, None] + self.scale[:, None] * (z - self.centre[:, None])

    def inverse(self, z: Tensor) -> Tensor:
        """The draws before widening, (B, S, p)."""
        return self.centre[:, None] + (z - self.mean[:, None]) / self.scale[:, None]


def spreads(z: Tensor, space: ParameterSpace) -> Tensor:
    """Standard deviation and both half-widths of z and of θ, (B, 6p), of draws (B, S, p)."""
    z = z.double().sort(1).values
    share = torch.full_like(z, 1 / z.shape[1])
    return _spreads(z, _physical(z, space), share, share.cumsum(1))


def way_needed(z: Tensor, prior: Tensor, least: Tensor, space: ParameterSpace) -> Tensor:
    """Smallest share of the way to the prior's moments with which the spreads are at least `least`, (B, p); one if none is.

    Arguments as for `share_needed`.
    """
    wanted = least.unflatten(0, (-1, z.shape[2]))

    def enough(share: Tensor) -> Tensor:
        found = spreads(Widening.towards(z, prior, share)(z), space).unflatten(1, (-1, z.shape[2]))
        return (found[:, : len(wanted)] >= wanted).all(1)

    return _smallest(enough, z[:, 0].double(), steps=10)


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

    return _smallest(enough, both[:, 0, 0], steps)


def _smallest(enough: Callable[[Tensor], Tensor], like: Tensor, steps: int) -> Tensor:
    """Smallest numbers in [0, 1] that are enough, by bisection; one where none is."""
    low, high = torch.zeros_like(like), torch.ones_like(like)
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
