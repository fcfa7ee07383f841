r"""Split conformal intervals from pairs measured at chosen θ: label shift with a known density ratio.

Held-out θ_j come from a design of density d, new θ from the target prior g, and y given θ is measured in the same way for
both. With w(θ) = g(θ)/d(θ), known up to a constant, all pairs are weighted exchangeable (Tibshirani et al., 2019, "Conformal
prediction under covariate shift"; Podkopaev and Ramdas, 2021, "Distribution-free uncertainty quantification for classification
under label shift"). The weight of the new pair depends on its unknown θ, and so does the threshold: the set

    C(y) = {θ : s(θ, y) ≤ q(w(θ))},      q(w) = smallest s with  Σ_j w(θ_j) 1[s_j ≤ s] ≥ (1 - α) (Σ_j w(θ_j) + w)

holds the truth with probability at least 1 - α. Where w is too large for the pairs, q = ∞ and θ belongs to every set.

An interval of parameter i must not miss a θ_i for any value of the other parameters, and q increases with w. So w(θ) is
replaced by an upper bound that depends on θ_i alone: the largest w among draws θ^1..θ^M of the target prior in the bin of
θ_i. These draws and the new θ are exchangeable, and in each of B bins at most one of them exceeds all others of the bin: the
bound fails with probability at most B/(M + 1), which is subtracted from α (p times, for all parameters together). The
interval is the hull of the bins' parts,

    ∪_b  bin_b ∩ [median - q_b h, median + q_b h].

A ratio that depends on θ_i alone costs next to nothing; one that varies with the other parameters costs width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from fmcpe._ambient import user_code
from fmcpe._checks import as_tensor
from fmcpe._options import check_level
from fmcpe._random import derive, seeded
from fmcpe.diagnostics.conformal import (
    LEVEL,
    MEASURED,
    Conformal,
    Promise,
    largest_of_each,
    median_and_width,
    parameters,
    refuse_fixed_values,
    scores_of,
)
from fmcpe.problem import one_of_each

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior

BINS, DRAWS = 50, 99_999
"""Bins of each parameter, and draws of the target prior: the bound on w fails with probability 0.0005."""


@dataclass(frozen=True)
class LabelShiftConformal(Conformal):
    """Scores and weights of held-out pairs, and bounds on the weight of a new one.

    Args:
        scores: Of each parameter, (n, p).
        weights: w of the pairs, (n,).
        edges: Inner edges of the bins of each parameter, in z, (B - 1, p), increasing.
        bounds: Largest w in each bin, (B, p).
        num_draws: M, draws of the target prior that the bounds come from.
        num_samples: Draws per observation that scores were computed from.
    """

    kind = "label-shift"
    scores: Tensor
    weights: Tensor
    edges: Tensor
    bounds: Tensor
    num_draws: int
    num_samples: int

    @classmethod
    def of(
        cls,
        posterior: CorrectedPosterior,
        theta: Tensor,
        y: Tensor,
        ratio: Callable[[Tensor], Any],
        num_samples: int,
        seed: int,
    ) -> LabelShiftConformal:
        """From pairs (n, p) and (n, ...) and the density ratio w of physical θ; one pair of each θ counts."""
        refuse_fixed_values(theta)
        prior, space, rows = posterior.shared.target_prior, posterior.space, one_of_each(theta, seed)
        weights = _evaluated(ratio, theta[rows])
        if not bool(torch.isfinite(weights).all()) or float(weights.sum()) <= 0:
            raise ValueError(
                "Expected weights of the held-out pairs that are finite and not all zero, got others. Return p_target(θ) / "
                "p_design(θ), with the density that the pairs' θ were drawn from."
            )
        with seeded(derive(seed, "target prior")):
            shape = torch.Size((DRAWS + 20_000,))
            drawn = prior.sample(shape).to(theta.device, torch.float32)
        z, w = space.to_z_safely(drawn), _evaluated(ratio, drawn[:DRAWS])
        # the edges come from other draws, so that those in the bins stay exchangeable with a new θ
        cuts = torch.linspace(0, 1, BINS + 1, dtype=z.dtype, device=z.device)[1:-1]
        edges = z[DRAWS:].quantile(cuts, dim=0)
        bins = _bins(z[:DRAWS], edges)
        bounds = torch.full((BINS, z.shape[1]), -torch.inf, dtype=w.dtype, device=z.device)
        bounds = bounds.scatter_reduce(0, bins, w[:, None].expand(-1, z.shape[1]), "amax")
        bounds = torch.where(bounds == -torch.inf, torch.inf, bounds)  # of a bin without draws nothing is known
        weights, bounds = weights / (largest := weights.max()), bounds / largest  # squares stay finite
        scores = scores_of(posterior, theta[rows], y[rows], num_samples, seed)
        return cls(scores, weights, edges, bounds, DRAWS, num_samples)

    @property
    def effective(self) -> float:
        """Effective number of pairs (Kish, 1965): that of equally weighted pairs with as much noise."""
        return float(self.weights.sum().square() / self.weights.square().sum())

    def thresholds(self, level: float, joint: bool) -> Tensor:
        """The score that intervals reach up to in each bin, (B, p); infinite where w is too large for the pairs."""
        check_level(level, LEVEL)
        number, dim = self.scores.shape
        slack = (dim if joint else 1) * len(self.bounds) / (self.num_draws + 1)
        asked, total = level + slack, self.weights.sum()
        scores, order = (largest_of_each(self.scores) if joint else self.scores).sort(dim=0)
        mass = self.weights[order].cumsum(0)
        needed = asked * (total + self.bounds) * (1 - 1e-9)
        rank = torch.searchsorted(mass.T.contiguous(), needed.T.contiguous()).T
        hopeless = (rank == number).all(0).nonzero().flatten().tolist()
        if hopeless:
            i, least = hopeless[0], asked / (1 - asked) if asked < 1 else math.inf
            enough = least * float(self.bounds[:, i].min() / self.weights.mean())
            advice = f"Measure at least {math.ceil(enough)} such pairs" if math.isfinite(enough) else "Measure more"
            raise ValueError(
                f"Expected held-out pairs that together weigh at least {least:.4g} times as much as a new observation for a "
                f"level of {level:g}, got {float(total / self.bounds[:, i].min()):.4g} times ({number} pairs with different θ) "
                f"whatever the value of parameter {i}. {advice}, or at θ that are more like those in use."
            )
        endless = torch.cat([scores, torch.full_like(scores[:1], torch.inf)])
        return endless.gather(0, rank)

    def ends(
        self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int
    ) -> tuple[Tensor, Tensor]:
        median, width = median_and_width(posterior, y, self.num_samples, derive(seed, "new observations"))
        return hull(median, width, self.thresholds(level, joint).to(median), self.edges.to(median))

    def promise(self, level: float, joint: bool) -> Promise:
        reach = self.thresholds(level, joint)
        number, effective = len(self.scores), self.effective
        coverage = float(stats.beta.ppf(0.05, level * (effective + 1), (1 - level) * (effective + 1)))
        endless = float(reach.isinf().double().mean(0).max())
        without = f" For {endless:.0%} of the target prior w is too large: such θ are inside always." if endless else ""
        guarantee = (
            f"For a new real observation, the interval of {parameters(joint)} holds the truth with probability at least "
            f"{level:.4g}, on average over held-out sets (weighted split conformal). It assumes that its θ is drawn from the "
            f"target prior, that the {number} held-out θ were drawn from the density in the weights' denominator, and that all "
            f"were {MEASURED}. The pairs are worth {effective:.1f} of equal weight: with these very pairs the coverage is at "
            f"least about {coverage:.2f} with probability 0.95.{without}"
        )
        return Promise(level, joint, number, level, coverage, guarantee, effective)

    def to_config(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {name: getattr(self, name) for name in ("scores", "weights", "edges", "bounds")}
        return {"num_samples": self.num_samples, "num_draws": self.num_draws}, tensors


def hull(median: Tensor, width: Tensor, reach: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the hull of ∪_b bin_b ∩ [median - q_b h, median + q_b h]: (n, p) each.

    Args:
        median: (n, p).
        width: h, (n, p).
        reach: q, (B, p).
        edges: Inner edges of the bins, (B - 1, p).
    """
    outer = edges.new_full((1, edges.shape[1]), torch.inf)
    left, right = torch.cat([-outer, edges])[:, None], torch.cat([edges, outer])[:, None]
    span = reach[:, None] * width
    low, high = torch.maximum(left, median - span), torch.minimum(right, median + span)  # (B, n, p)
    empty = low > high
    # the bin of the median is never empty
    return low.masked_fill(empty, torch.inf).amin(0), high.masked_fill(empty, -torch.inf).amax(0)


def _bins(z: Tensor, edges: Tensor) -> Tensor:
    """The bin of each parameter, (n, p)."""
    return torch.searchsorted(edges.T.contiguous(), z.T.contiguous()).T


def _evaluated(ratio: Callable[[Tensor], Any], theta: Tensor) -> Tensor:
    """Ratios at physical θ, (n,); infinite where the design has no density."""
    if not callable(ratio):
        raise TypeError(
            f"Expected weights to be a function from physical θ (N, p) to p_target(θ) / p_design(θ) (N,), got a "
            f"{type(ratio).__name__}. The weight of a new observation depends on its unknown θ: pass weights=lambda theta: ..."
        )
    with user_code():
        returned = ratio(theta.clone())
    found = as_tensor(returned, "weights(theta)", torch.float64, str(theta.device), finite=False)
    if found.shape != (len(theta),) or bool(found.isnan().any()) or bool((found < 0).any()):
        raise ValueError(
            f"Expected weights(theta) of shape ({len(theta)},), none negative or NaN, got shape {tuple(found.shape)}. Return "
            "one density ratio per row of theta."
        )
    return found
