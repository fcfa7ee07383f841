"""How strong a misspecification has to be for its severity: a small network stands in for a base posterior.

A perceptron with a normal distribution for each unconstrained parameter is trained on simulations for a fraction of a second,
and its spread is scaled so that 90 % of its intervals hold the truth of simulations it has not seen. The strength is found at
which they hold the real θ in the share of cases that the severity says.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

SEVERITIES = {"mild": 0.78, "moderate": 0.58, "severe": 0.35}
"""Share of the stand-in's 90 % intervals that hold the truth, mean over parameters, which the strength is chosen for."""

RANGES = {"none": (0.82, 0.97), "mild": (0.62, 0.94), "moderate": (0.38, 0.85), "severe": (0.1, 0.65)}
"""Share of a trained base posterior's 90 % intervals that hold the truth, mean over parameters."""

SIMULATIONS, TESTS = 3000, 500
_HIDDEN, _STEPS, _BATCH, _RATE, _DOUBLINGS, _HALVINGS = 64, 250, 256, 1e-2, 8, 6


class QuickPosterior:
    """Normal intervals for z by a small network.

    Args:
        z: Unconstrained parameters of simulations, (N, p).
        x: The simulations, (N, ...).
    """

    def __init__(self, z: Tensor, x: Tensor) -> None:
        x = _flat(x)
        self.mean, self.std = x.mean(0), x.std(0).clamp_min(1e-6)
        dim, kept = z.shape[1], 2 * len(z) // 3
        self.net = nn.Sequential(
            nn.Linear(x.shape[1], _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, 2 * dim),
        )
        optimiser = torch.optim.Adam(self.net.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
        for _ in range(_STEPS):
            rows = torch.randint(kept, (_BATCH,))
            mean, log_std = self._predict(x[rows])
            loss = (((z[rows] - mean) / log_std.exp()).square() / 2 + log_std).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        self.factor = torch.ones(dim)
        self.factor = self._standardised(z[kept:], x[kept:]).abs().quantile(0.9, dim=0)

    def coverage(self, z: Tensor, x: Tensor) -> float:
        """Share of 90 % intervals that hold z, mean over parameters."""
        return float((self._standardised(z, _flat(x)).abs() <= 1).double().mean())

    @torch.no_grad()
    def _standardised(self, z: Tensor, x: Tensor) -> Tensor:
        mean, log_std = self._predict(x)
        return (z - mean) / (log_std.exp() * self.factor)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net((x - self.mean) / self.std).chunk(2, dim=1)
        return mean, log_std.clamp(-6, 2)


def _flat(x: Tensor) -> Tensor:
    """Rows of numbers; of an image, means over 8 by 8 patches, in which noise averages out."""
    return nn.functional.adaptive_avg_pool2d(x, 8).flatten(1) if x.ndim == 4 else x.flatten(1)


def strength_for(target: float, largest: float, coverage: Callable[[float], float]) -> float | None:
    """The smallest strength at which coverage is down to the target; None if there is none up to the largest.

    Strengths are tried in steps of a factor of two, and the first that is enough is narrowed down by bisection.

    Args:
        target: Coverage.
        largest: Strength beyond which none is tried.
        coverage: Coverage by strength.
    """
    low = 0.0
    for step in range(_DOUBLINGS, -1, -1):
        high = largest / 2**step
        if coverage(high) <= target:
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if coverage(middle) > target else (low, middle)
            return high
        low = high
    return None
