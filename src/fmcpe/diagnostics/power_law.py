r"""A power law of the score in the number of pairs, by Bayes' rule on a grid.

    log s(n) = level + f(n) + W(1/n),      f(n) = log(1 - g + g (n/N)^-b),      so that  e^(level + f(n)) = c + a n^-b

N pairs were measured; g is the share of the score at N that more pairs can remove, b the rate. W is how the score of one nested
sequence of calibration sets deviates from the mean over all of them: Brownian motion in 1/n, Var W(1/n) - W(1/m) =
t² (1/n - 1/m), as for an average over independent pairs. Subsets of size n of the N pairs have the same increments.

    observed   log of the mean score of R subsets of each size; covariance C + t² (1/max(n, n') - 1/N)/R
    C          of the score over pairs: all subsets score the same pairs, so most of it cancels between sizes
    t²         from the subsets: variance of an increment between repeats, less the part that comes from scoring on few pairs
    forecast   log s(M)/s(N) = f(M) - f(N) + Student-t noise of variance t² (1/N - 1/M)

Prior: g ~ Beta(2, 5), b uniform from 1/4 (a nonparametric rate) to 1 (the rate of a regular parametric model), level flat; t²
has a prior of 8 observations of 0.05. These five numbers were chosen on the zoo's development half
(`benchmarks/learning_curve.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLawPrior:
    """What is assumed of learning curves before one is seen.

    Args:
        removable: Parameters of the Beta distribution of g.
        rates: Smallest and largest b.
        spread: t² in units of the squared relative score.
        spread_count: Observations that `spread` counts as.
    """

    removable: tuple[float, float] = (2.0, 5.0)
    rates: tuple[float, float] = (0.25, 1.0)
    spread: float = 0.05
    spread_count: float = 8.0


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """The posterior of a power law, on a grid of (b, g).

    Args:
        pairs: N.
        rate: b, (B, G).
        removable: g, (B, G).
        level: log s(N) at each, (B, G).
        probability: Of each, (B, G), summing to one.
        spread: t².
        freedom: Degrees of freedom of t².
    """

    pairs: float
    rate: Array
    removable: Array
    level: Array
    probability: Array
    spread: float
    freedom: float

    @classmethod
    def of(
        cls,
        sizes: Any,
        log_scores: Any,
        covariance: Any,
        spread: float,
        repeats: int,
        prior: PowerLawPrior,
    ) -> PowerLaw:
        """Fit to the scores of nested subsets.

        Args:
            sizes: Numbers of pairs, ascending, the last one N, (K,).
            log_scores: Log mean scores, (K,).
            covariance: C, (K, K).
            spread: t² as estimated from increments, with (R - 1)(K - 1) degrees of freedom.
            repeats: R.
            prior: Before the curve was seen.
        """
        n, seen = np.asarray(sizes, dtype=float), np.asarray(log_scores, dtype=float)
        freedom = (repeats - 1) * (len(n) - 1)
        shrunk = (freedom * max(spread, 0.0) + prior.spread_count * prior.spread) / (freedom + prior.spread_count)
        subsets = shrunk * (1 / np.maximum(n[:, None], n) - 1 / n[-1]) / repeats
        precision = np.linalg.inv(np.asarray(covariance) + subsets + 1e-8 * np.eye(len(n)))
        shares = (np.arange(100) + 0.5) / 100
        rate, removable = np.meshgrid(np.linspace(*prior.rates, 16), shares, indexing="ij")
        residual = seen - _log_curve(n, n[-1], rate[..., None], removable[..., None])
        # the level has a flat prior: generalised least squares for each (b, g)
        pull = precision.sum(0)
        level = residual @ pull / pull.sum()
        residual = residual - level[..., None]
        log_weight = stats.beta.logpdf(removable, *prior.removable)
        log_weight = log_weight - 0.5 * np.einsum("bgk,kl,bgl->bg", residual, precision, residual)
        weight = np.exp(log_weight - log_weight.max())
        return cls(float(n[-1]), rate, removable, level, weight / weight.sum(), shrunk, freedom + prior.spread_count)

    def curve(self, sizes: Any) -> Array:
        """Expected score at each size, (M,)."""
        n = np.asarray(sizes, dtype=float)
        fall = _log_curve(n, self.pairs, self.rate[..., None], self.removable[..., None])
        return np.einsum("bg,bgm->m", self.probability, np.exp(self.level[..., None] + fall))

    def ratio(self, pairs: float) -> float:
        """Expected score with `pairs` pairs over the score with N."""
        return float((self.probability * np.exp(self._fall(pairs))).sum())

    def interval(self, pairs: float, level: float = 0.8) -> tuple[float, float]:
        """Central interval of that ratio, for a larger set that contains the present one."""
        centre, width = self._fall(pairs), np.sqrt(self.spread * (1 / self.pairs - 1 / pairs))

        def missing(x: float, share: float) -> float:
            return float((self.probability * stats.t.cdf((x - centre) / width, self.freedom)).sum() - share)

        ends = centre.min() - 100 * width, centre.max() + 100 * width
        low, high = (brentq(missing, *ends, args=(share,)) for share in ((1 - level) / 2, (1 + level) / 2))
        return float(np.exp(low)), float(np.exp(high))

    def _fall(self, pairs: float) -> Array:
        return _log_curve(np.asarray(pairs), self.pairs, self.rate, self.removable)


def _log_curve(n: Array, pairs: float, rate: Array, removable: Array) -> Array:
    """f(n)."""
    return np.log(1 - removable + removable * (n / pairs) ** -rate)


def spread_of_increments(increments: Array, steps: Array, shares: Array) -> float:
    """t² from scores of nested subsets.

    Args:
        increments: Differences of relative scores between consecutive sizes, for each repeat and pair (or group of pairs with
            the same θ), (R, K - 1, G).
        steps: 1/n - 1/n' of consecutive sizes, (K - 1,).
        shares: Weight of each pair or group, summing to one, (G,).
    """
    repeats, sizes, number = increments.shape
    centred = increments - increments.mean(0)
    mean = centred @ shares  # (R, K - 1)
    # scored on few pairs, even subsets that are equally good on average differ: the pair-by-repeat interaction
    interaction = ((shares * (centred - mean[..., None])) ** 2).sum(-1) * number / max(1, number - 1)
    return float(((mean**2 - interaction) / steps).sum() / ((repeats - 1) * sizes))
