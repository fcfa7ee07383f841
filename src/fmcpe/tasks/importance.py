"""Reference posteriors by sampling-importance-resampling.

A subclass proposes candidates close to the posterior, with exact importance weights. If the effective sample size (Σw)²/Σw² is
small, more candidates are drawn.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fmcpe._checks import as_sample_shape
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded

PILOT = 4096
_POOL = 32  # candidates per draw, so that draws rarely share a candidate
_GOOD_ESS = 0.4
_MAX_CANDIDATES = 2_000_000  # upper bound if the effective sample size is small


def draw_rows(weights: Tensor, n: int) -> Tensor:
    """Indices drawn in proportion to `weights`, from torch's global generator.

    Uses the inverse cdf, since torch.multinomial is limited to 2^24 categories. If all weights are 0, indices are arbitrary.
    """
    cdf = (weights if weights.any() else torch.ones_like(weights)).cumsum(0)
    return torch.searchsorted(cdf, torch.rand(n, dtype=torch.float64) * cdf[-1]).clamp_max(len(cdf) - 1)


def effective_size(weights: Tensor) -> float:
    """Effective sample size of the weights."""
    return float(weights.sum() ** 2 / (weights**2).sum().clamp_min(1e-300))


class ImportanceReference(ABC):
    """A posterior that provides draws but no density.

    Attributes:
        ess: Effective sample size of the importance weights, as a fraction of the candidates.
    """

    ess: float

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw θ, shape ``(*sample_shape, p)``."""
        shape = as_sample_shape(sample_shape)
        n = shape.numel()
        with seeded(seed):
            wanted = _POOL * n * max(_GOOD_ESS / max(self.ess, 1e-6), 1)
            candidates, weights = self._candidates(max(PILOT, min(int(wanted), max(_MAX_CANDIDATES, _POOL * n))))
            theta = self._theta(candidates[draw_rows(weights, n)])
        return theta.float().reshape(*shape, theta.shape[1])

    def log_prob(self, theta: Tensor) -> Tensor:
        """Not available: nuisance parameters are integrated by Monte Carlo."""
        raise NotImplementedError(
            f"Expected a posterior with a density, got {type(self).__name__}, which integrates nuisance parameters by Monte "
            "Carlo. Use sample((n,)) and compare draws."
        )

    @abstractmethod
    def _candidates(self, n: int) -> tuple[Tensor, Tensor]:
        """``n`` rows near the posterior, float64, and their importance weights up to a factor."""

    def _theta(self, candidates: Tensor) -> Tensor:
        """θ of each resampled row."""
        return candidates

    def _warn_unless(self, enough: bool, why: str) -> None:
        """Warn that the draws are approximate, unless the effective sample size is large enough."""
        if not enough:
            warnings.warn(
                f"Expected a larger effective sample size of {type(self).__name__}, got {self.ess:.2%} of its candidates "
                f"({why}). Treat its draws as approximate, or leave this observation out of averages.",
                FMCPEWarning,
                stacklevel=5,
            )
