"""Probability integral transforms: their empirical distribution function, with simultaneous bands.

Under the correct posterior, the share of its draws below the truth (made continuous: `fmcpe.diagnostics.draws`) is uniform, so
N times its empirical distribution function at t is binomial(N, t). A band that holds the *whole* function with probability 1 - α
has pointwise binomial intervals of a smaller level γ, such that all of them hold at once with that probability (Säilynoja, Bürkner
and Vehtari, 2022, algorithm 1: γ is simulated).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fmcpe._random import derive
from fmcpe.diagnostics import draws


@dataclass(frozen=True, eq=False)
class PITResult:
    """Empirical distribution functions of the PIT values.

    Attributes:
        values: Share of the draws below the truth, (N, p).
        points: t, (K,).
        ecdf: Share of the pairs with a value of at most t, (K, p).
        band: What that is under the correct posterior, simultaneously in t, (K, 2).
        level: Probability that all p functions lie inside the band, if the posterior is correct.
        names: Names of the parameters.
    """

    values: Tensor
    points: Tensor
    ecdf: Tensor
    band: Tensor
    level: float
    names: tuple[str, ...]

    @property
    def inside(self) -> tuple[bool, ...]:
        """Whether the function of each parameter lies inside the band."""
        low, high = self.band[:, :1], self.band[:, 1:]
        return tuple(((self.ecdf >= low - 1e-9) & (self.ecdf <= high + 1e-9)).all(0).tolist())

    def summary(self) -> str:
        """One line per parameter."""
        lines = [f"PIT-ECDF: {len(self.values)} pairs, simultaneous band of {self.level:.0%} for all parameters"]
        for k, (name, inside) in enumerate(zip(self.names, self.inside, strict=True)):
            difference = self.ecdf[:, k] - self.points
            at = int(difference.abs().argmax())
            lines.append(
                f"{name}: {'inside' if inside else 'outside'}; largest difference to uniform {difference[at]:+.2f}, at {self.points[at]:.2f}"
            )
        return "\n".join(lines)


def pit_of_draws(
    samples: Any, theta: Any, names: tuple[str, ...], *, level: float = 0.98, seed: int | None = 0
) -> PITResult:
    """PIT values of draws (S, N, p) at the truth (N, p), with the band of `level` over all parameters."""
    values = draws.uniforms(samples, theta, seed)
    number, dim = values.shape
    points = torch.linspace(0, 1, min(number, 100) + 1, dtype=torch.float64)[1:-1]
    ecdf = (values[None] <= points[:, None, None]).double().mean(1)
    return PITResult(values, points, ecdf, ecdf_band(number, len(points), 1 - (1 - level) / dim), level, names)


@lru_cache(maxsize=64)
def ecdf_band(number: int, points: int, level: float, simulations: int = 10_000) -> Tensor:
    """Simultaneous band of the empirical distribution function of `number` uniforms, at K evenly spaced points: (K, 2)."""
    at = np.linspace(0, 1, points + 2)[1:-1]
    counts = np.arange(number + 1)[:, None]
    below = stats.binom.cdf(counts, number, at)  # (N + 1, K)
    # of a pointwise test of each count: twice the smaller tail
    p = 2 * np.minimum(below, 1 - np.concatenate([np.zeros((1, points)), below[:-1]]))
    generator = np.random.default_rng(derive(0, "ecdf", number, points))
    cells = generator.multinomial(number, np.full(points + 1, 1 / (points + 1)), size=simulations)
    seen = cells.cumsum(1)[:, :-1]
    smallest = p[seen, np.arange(points)].min(1)
    gamma = np.quantile(smallest, 1 - level, method="lower")
    allowed = p >= gamma
    low, high = allowed.argmax(0), number - allowed[::-1].argmax(0)
    return torch.from_numpy(np.stack([low, high], axis=1) / number)
