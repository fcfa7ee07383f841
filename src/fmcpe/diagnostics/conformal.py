r"""Split conformal intervals: a finite-sample guarantee for real observations, from held-out pairs.

The score of a held-out pair is the distance of the true z from the posterior median, in units of the posterior's half-width:

    s_ji = |z_ji - median_i(y_j)| / h_i(y_j),        h: half of the central 68 % interval, z: unconstrained θ

With n pairs and the k-th smallest score q, k = ⌈(n + 1)(1 - α)⌉, the interval median ± q·h holds the truth of a new pair,
exchangeable with the held-out ones, with probability at least 1 - α, and at most 1 - α + 1/(n + 1) if no scores are equal
(Vovk, Gammerman and Shafer, 2005, "Algorithmic learning in a random world"). Given the held-out pairs, the coverage is
Beta(k, n + 1 - k) distributed (Vovk, 2012, "Conditional validity of inductive conformal predictors"). For all parameters at
once the score is the largest of them. Scores by ranks or by HPD levels would saturate: a posterior that excludes the truth
stays wrong however its level is adjusted.

Pairs measured at chosen θ: `fmcpe.diagnostics.label_shift`. No pairs to hold out: `fmcpe.diagnostics.cv_plus`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from fmcpe._ambient import quiet
from fmcpe._checks import as_pairs
from fmcpe._names import in_order
from fmcpe._options import check_level
from fmcpe._random import derive, seeded
from fmcpe.problem import fingerprints, one_of_each
from fmcpe.spaces import ParameterSpace

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class Promise:
    """What intervals of one level promise, for any observation.

    Args:
        level: Nominal probability, 1 - α.
        joint: Whether the probability is that of all parameters together, or of each by itself.
        num_pairs: Pairs with different θ that the intervals were calibrated on, n.
        guaranteed: Probability that is promised on average over sets of pairs: 1 - α, or 1 - 2α - √(2/n) for CV+.
        coverage_5: 5th percentile of the coverage that one set of pairs gives; approximate with weights, a lower bound for CV+.
        guarantee: What is promised, and under which assumptions.
        effective: Effective number of pairs, where they are weighted; n otherwise.
    """

    level: float
    joint: bool
    num_pairs: int
    guaranteed: float
    coverage_5: float
    guarantee: str
    effective: float


@dataclass(frozen=True)
class Intervals(Promise):
    """Intervals of each parameter, in physical units; `print` shows them with what they promise.

    Args:
        low: Lower ends, (p,) or (B, p).
        high: Upper ends, likewise.
        names: Of the parameters.
    """

    low: Tensor
    high: Tensor
    names: tuple[str, ...]

    def __str__(self) -> str:
        ends = zip(self.low.reshape(-1, len(self.names)), self.high.reshape(-1, len(self.names)), strict=True)
        rows = [[f"[{a:.4g}, {b:.4g}]" for a, b in zip(low, high, strict=True)] for low, high in ends]
        widths = [max(map(len, column)) for column in zip(self.names, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (self.names, *rows)]
        return "\n".join([*lines, self.guarantee])


class Conformal(ABC):
    """Calibrated intervals of a posterior: what `CorrectedPosterior.interval` asks."""

    kind: str
    """Name in files."""

    @abstractmethod
    def promise(self, level: float, joint: bool) -> Promise:
        """What intervals of this level promise; a `ValueError` if so few pairs cannot give it."""

    @abstractmethod
    def ends(
        self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper ends in z for observations (B, ...), (B, p) each."""

    def intervals(self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int) -> Intervals:
        """Intervals for observations (B, ...)."""
        promise = self.promise(level, joint)  # refuses before anything is drawn
        low, high = physical(posterior.space, *self.ends(posterior, y, level, joint, seed))
        return Intervals(**vars(promise), low=low, high=high, names=posterior.names)

    @abstractmethod
    def to_config(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file stores: a JSON description, and tensors."""

    def to(self, device: str | torch.device) -> Conformal:
        """On a device."""
        return self


@dataclass(frozen=True)
class SplitConformal(Conformal):
    """Scores of held-out pairs.

    Args:
        scores: Of each parameter, (n, p).
        num_samples: Draws per observation that they were computed from.
    """

    kind = "split"
    scores: Tensor
    num_samples: int

    @classmethod
    def of(cls, posterior: CorrectedPosterior, theta: Tensor, y: Tensor, num_samples: int, seed: int) -> SplitConformal:
        """From pairs (n, p) and (n, ...); of several pairs with the same θ, one at random counts."""
        refuse_fixed_values(theta)
        rows = one_of_each(theta, seed)
        return cls(scores_of(posterior, theta[rows], y[rows], num_samples, seed), num_samples)

    def threshold(self, level: float, joint: bool) -> tuple[Tensor, float]:
        """Scores that intervals reach up to, (p,), and the 5th percentile of their coverage."""
        number = len(self.scores)
        rank = rank_of(number, level, "held-out pairs")
        scores = largest_of_each(self.scores) if joint else self.scores
        return scores.sort(dim=0).values[rank - 1], float(stats.beta.ppf(0.05, rank, number + 1 - rank))

    def ends(
        self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int
    ) -> tuple[Tensor, Tensor]:
        median, width = median_and_width(posterior, y, self.num_samples, derive(seed, "new observations"))
        reach = self.threshold(level, joint)[0].to(median)
        return median - reach * width, median + reach * width

    def promise(self, level: float, joint: bool) -> Promise:
        coverage, number = self.threshold(level, joint)[1], len(self.scores)
        guarantee = (
            f"For a new real observation, the interval of {parameters(joint)} holds the truth with probability at least "
            f"{level:.4g}, on average over held-out sets (split conformal). It assumes that the observation and the {number} "
            f"held-out pairs are exchangeable: {EXCHANGEABLE}. With these very pairs the coverage is at least {coverage:.2f} "
            "with probability 0.95."
        )
        return Promise(level, joint, number, level, coverage, guarantee, float(number))

    def to_config(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"num_samples": self.num_samples}, {"scores": self.scores}


MEASURED = "measured in the same way, none chosen for its result"
EXCHANGEABLE = f"θ from the same distribution, {MEASURED}"
"""The assumptions in words."""


def held_out_pairs(posterior: CorrectedPosterior, theta: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Pairs (n, p) and (n, ...) on the posterior's device; refuses those that it was fitted on."""
    record, shared, kept = posterior.record, posterior.shared, posterior.held_out
    theta, y = in_order(theta, record.names, "theta"), in_order(y, record.data_names, "y")
    theta, y, _ = as_pairs(theta, y, None, posterior.prior, posterior.observation_shape, held_out=True)
    used, device = len(set(record.fingerprints) & set(fingerprints(theta, y))), posterior._device
    theta, y = theta.to(device), y.to(device)
    if not used and kept is not None:
        used = int(kept.near(theta, shared.base.summarised().summarise(y).flatten(1)).sum())
    if used:
        raise ValueError(
            f"Expected pairs that were not used in the fit, got {used} of {len(y)} that were: their coverage promises "
            'nothing for new ones. Hold some pairs out and fit on the others, or fit on all with fit(..., conformal="cv+").'
        )
    return theta, y


def refuse_fixed_values(theta: Tensor, repeats: str = "pass one pair of each") -> None:
    """Refuse θ that are no draws from a density: each value of some parameter twice or more, on average.

    Args:
        theta: Of the pairs, (n, p).
        repeats: What to do if θ were drawn, and measured several times each.
    """
    for i, values in enumerate(theta.T):
        distinct = len(values.unique())
        if 2 * distinct <= len(theta):
            raise ValueError(
                f"Expected θ drawn from a density, got {distinct} value(s) of parameter {i} in {len(theta)} pairs: a design "
                "with a few fixed values has no density, and nothing can be promised for the values in between. Measure at θ "
                f"drawn at random over the range in use. If they were, each measured several times, {repeats}."
            )


LEVEL = "Try interval(0.9, x=y)."
"""What to do about a level that is none."""


def parameters(joint: bool) -> str:
    """Whose interval it is, in words."""
    return "all parameters together" if joint else "each parameter by itself"


def rank_of(number: int, level: float, what: str) -> int:
    """⌈(n + 1)(1 - α)⌉ of n scores; refuses levels that so few scores cannot give."""
    check_level(level, LEVEL)
    rank = max(1, math.ceil((number + 1) * level - 1e-9))
    if rank > number:
        least = math.ceil(level / (1 - level) - 1e-9)
        lower = f"ask for interval({number / (number + 1):.3g}) or less" if number else "take another posterior"
        raise ValueError(
            f"Expected at least {least} {what} with different θ for a level of {level:g}, got {number}. Measure more, or "
            f"{lower}."
        )
    return rank


def largest_of_each(scores: Tensor) -> Tensor:
    """The largest score of each pair, for every parameter: (n, p)."""
    return scores.amax(1, keepdim=True).expand_as(scores)


def scores_of(posterior: CorrectedPosterior, theta: Tensor, y: Tensor, num_samples: int, seed: int | None) -> Tensor:
    """|z - median| / half-width of pairs, (n, p)."""
    median, width = median_and_width(posterior, y, num_samples, derive(seed, "held-out pairs"))
    return ((posterior.space.to_z_safely(theta) - median) / width).abs()


def median_and_width(
    posterior: CorrectedPosterior, y: Tensor, num_samples: int, seed: int | None
) -> tuple[Tensor, Tensor]:
    """Median of the posterior, and half of its central 68 % interval, in z: (B, p) each.

    Observations are asked about one by one where the answer depends on the batch: exchangeable scores must not.
    """
    with quiet(), seeded(seed):  # about the range: who asks for intervals is warned there
        parts = y.split(1) if posterior.inner.transductive else (y,)
        draws = [posterior.sample_batched((num_samples,), x=part, show_progress_bars=False) for part in parts]
    theta = torch.cat(draws, dim=1)
    z = posterior.space.to_z_safely(theta.flatten(0, 1)).reshape(theta.shape)
    low, middle, high = z.quantile(torch.tensor([0.16, 0.5, 0.84]).to(z), dim=0)
    return middle, ((high - low) / 2).clamp_min(1e-6)


def physical(space: ParameterSpace, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of intervals in z, (B, p), in physical units.

    Scores of bounded parameters are clamped at the limit of `ParameterSpace.to_z_safely`: an end there includes all beyond.
    """
    limit = space.limit.to(low)
    low, high = torch.where(low <= -limit, -torch.inf, low), torch.where(high >= limit, torch.inf, high)
    ends = torch.stack([space.to_theta(low), space.to_theta(high)])
    return ends.amin(0), ends.amax(0)
