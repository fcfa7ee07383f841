r"""Split conformal intervals: a finite-sample guarantee for real observations, from held-out pairs.

The score of a held-out pair is the distance of the true z_i from the posterior median, in units of the posterior's half-width:

    s_ji = |z_ji - median_i(y_j)| / h_i(y_j),        h: half of the central 68 % interval, z: unconstrained θ

With n pairs and the k-th smallest score q, k = ⌈(n + 1)(1 - α)⌉, the interval median ± q·h holds the truth of a new pair,
exchangeable with the held-out ones, with probability at least 1 - α (Vovk et al., 2005). Given the held-out pairs, the
coverage is Beta(k, n + 1 - k) distributed. For all parameters at once the score is the largest of them. Scores by ranks would
saturate: a posterior that excludes the truth stays wrong however its level is adjusted.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy import stats
from torch import Tensor

from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.problem import groups_of

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class Intervals:
    """Intervals of each parameter, in physical units.

    Args:
        low: Lower ends, (p,) or (B, p).
        high: Upper ends, likewise.
        level: Probability that is promised, 1 - α.
        joint: Whether all parameters together lie inside with that probability, or each by itself.
        num_pairs: Held-out pairs with different θ, n.
        coverage_5: 5th percentile of the coverage that these very held-out pairs give.
    """

    low: Tensor
    high: Tensor
    level: float
    joint: bool
    num_pairs: int
    coverage_5: float

    @property
    def guarantee(self) -> str:
        """What is promised, and under which assumption."""
        what = "all parameters together" if self.joint else "each parameter"
        return (
            f"For a new real observation, exchangeable with the {self.num_pairs} held-out pairs, the interval of {what} holds "
            f"the truth with probability at least {self.level:.0%}, on average over held-out sets; with these pairs the "
            f"coverage is at least {self.coverage_5:.0%} with probability 95 %. Exchangeable: θ drawn from the same "
            "distribution, and measured in the same way."
        )

    def __str__(self) -> str:
        rows = zip(self.low.reshape(-1, self.low.shape[-1]), self.high.reshape(-1, self.high.shape[-1]), strict=True)
        lines = ["  ".join(f"[{a:.4g}, {b:.4g}]" for a, b in zip(low, high, strict=True)) for low, high in rows]
        return "\n".join([*lines, self.guarantee])


@dataclass(frozen=True)
class Conformal:
    """Scores of held-out pairs.

    Args:
        scores: Of each parameter, (n, p).
        num_samples: Draws per observation that they were computed from.
    """

    scores: Tensor
    num_samples: int

    @classmethod
    def of(cls, posterior: CorrectedPosterior, theta: Tensor, y: Tensor, num_samples: int, seed: int) -> Conformal:
        """Scores of pairs (n, p) and (n, ...); of several pairs with the same θ, one at random counts."""
        with seeded(seed):
            groups, number = groups_of(theta)
            order = torch.randperm(len(theta), device=theta.device)
            one_each = torch.stack([order[groups[order] == k][0] for k in range(number)])
        median, width = median_and_width(posterior, y[one_each], num_samples, seed)
        return cls(((posterior.space.to_z_safely(theta[one_each]) - median) / width).abs(), num_samples)

    def intervals(self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int) -> Intervals:
        """Intervals for observations (B, ...)."""
        reach, coverage = self.threshold(level, joint)
        median, width = median_and_width(posterior, y, self.num_samples, seed)
        ends = torch.stack([posterior.space.to_theta(median + sign * reach * width) for sign in (-1, 1)])
        return Intervals(ends.amin(0), ends.amax(0), level, joint, len(self.scores), coverage)

    def threshold(self, level: float, joint: bool) -> tuple[Tensor, float]:
        """Scores that intervals reach up to, (p,), and the 5th percentile of their coverage."""
        if not 0 < level < 1:
            raise ValueError(f"Expected a level between 0 and 1, got {level!r}. Try interval(0.9, x=y).")
        number = len(self.scores)
        rank = math.ceil((number + 1) * level - 1e-9)
        if rank > number:
            least = math.ceil(level / (1 - level) - 1e-9)
            raise ValueError(
                f"Expected at least {least} held-out pairs with different θ for a level of {level:g}, got {number}. Hold out "
                f"more, or ask for interval({number / (number + 1):.3g}) or less."
            )
        scores = self.scores.amax(1, keepdim=True).expand_as(self.scores) if joint else self.scores
        return scores.sort(dim=0).values[rank - 1], float(stats.beta.ppf(0.05, rank, number + 1 - rank))


def median_and_width(posterior: CorrectedPosterior, y: Tensor, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Median of the posterior, and half of its central 68 % interval, in z: (B, p) each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)  # about the range: who asks for intervals is warned there
        draws = posterior.sample_batched((num_samples,), x=y, seed=seed, show_progress_bars=False)
    z = posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape)
    low, middle, high = z.quantile(torch.tensor([0.16, 0.5, 0.84], device=z.device), dim=0)
    return middle, ((high - low) / 2).clamp_min(1e-6)
