r"""Do the pairs span the question? Parameters that hardly vary among them, and regions of the prior without any.

With u_j the prior probability below θ_j, N draws of the prior leave N + 1 spacings of u between them and the ends. The
largest exceeds g with probability \( \sum_{k \ge 1} (-1)^{k+1} \binom{N+1}{k} (1 - kg)_+^N \) (Fisher, 1929). A gap that N
draws of the prior would leave with a probability of less than 1 %, over all parameters, has no pairs where the answer will
be asked for.

A design can fill each parameter's range and still lie on a line. So the nearest pair of each draw of the prior is compared
with the nearest of N other draws: `JointSpan.share` of the prior lies farther off than 99 % of draws do from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import optimize, special
from torch import Tensor

from fmcpe._random import seeded
from fmcpe.diagnostics.cross_validated import held_out_of, physical

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class Gap:
    """A range of a parameter without pairs.

    Args:
        low: Lower end, physical.
        high: Upper end.
        share: Prior probability between them.
        p: Probability that as many draws of the prior leave a gap as large somewhere.
    """

    low: float
    high: float
    share: float
    p: float


@dataclass(frozen=True)
class Span:
    """One parameter among the pairs, in physical units.

    Args:
        name: Its name.
        values: Of the pairs, sorted.
        low: 5th percentile of the prior.
        high: 95th percentile of the prior.
        covered: Share of the range between these that lies between the smallest and the largest value.
        distinct: Different values.
        gaps: Ranges without pairs that draws of the prior would hardly leave, the largest first.
        note: What to do about it; empty if nothing.
    """

    name: str
    values: tuple[float, ...]
    low: float
    high: float
    covered: float
    distinct: int
    gaps: tuple[Gap, ...]
    note: str

    def summary(self) -> str:
        """One line."""
        least, most = self.values[0], self.values[-1]
        says = (
            f"{self.name}: {len(self.values)} pairs from {least:.4g} to {most:.4g}, {self.distinct} different value(s), "
            f"{self.covered:.0%} of the prior's central 90 % ({self.low:.4g} to {self.high:.4g})"
        )
        return f"{says}. {self.note}" if self.note else f"{says}."


@dataclass(frozen=True)
class JointSpan:
    """All parameters together.

    Args:
        share: Share of the prior that lies farther from all pairs than 99 % of its draws do from N others.
        p: Probability that N draws of the prior leave as much.
        note: What to do about it; empty if nothing.
    """

    share: float
    p: float
    note: str


def span(posterior: CorrectedPosterior) -> list[Span]:
    """Each parameter among the pairs, against the target prior: range, different values, and gaps without pairs.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`.
    """
    held_out, _, names = held_out_of(posterior)
    prior = physical(posterior, posterior.shared.pool)
    return list(spans(held_out.theta, prior, names))


def joint_span(posterior: CorrectedPosterior) -> JointSpan:
    """All parameters together: the share of the target prior that is farther from all pairs than from as many of its draws."""
    _, z, names = held_out_of(posterior)
    return joint_span_of(z, posterior.shared.pool.cpu(), names)


def spans(
    theta: Tensor, prior: Tensor, names: Sequence[str], *, level: float = 0.01, narrow: float = 0.5, few: int = 5
) -> tuple[Span, ...]:
    """Each parameter of the pairs (N, p) against draws of the prior (L, p), physical.

    Args:
        theta: Of the pairs.
        prior: Draws of the target prior.
        names: Of the parameters.
        level: Probability that as many draws of the prior would leave a named gap, over all parameters.
        narrow: Share of the prior's central 90 % below which a parameter is named.
        few: Number of different values below which it is named.
    """
    return tuple(_span(theta[:, i], prior[:, i], name, level / len(names), narrow, few) for i, name in enumerate(names))


def _span(theta: Tensor, prior: Tensor, name: str, level: float, narrow: float, few: int) -> Span:
    low, high = (float(prior.quantile(q)) for q in (0.05, 0.95))
    values = theta.sort().values
    least, most = float(values[0]), float(values[-1])
    covered = max(0.0, (min(most, high) - max(least, low)) / max(1e-12, high - low))
    distinct = values.unique()
    gaps = _gaps(distinct, prior.sort().values, level)
    note = ""
    if len(distinct) == 1:
        note = (
            f"{name} is {least:.4g} in all pairs: nothing shows how to correct at other values, and there the answer returns "
            f"to the prior. Measure pairs at other values of {name}, or pass target_prior= if it stays there."
        )
    elif covered < narrow:
        note = (
            f"All pairs have {name} between {least:.4g} and {most:.4g}, {covered:.0%} of the prior's range: nothing "
            "shows how to correct outside of it, and there the answer returns to the prior. Measure pairs at other values "
            f"of {name}, or pass target_prior= if it stays there."
        )
    elif len(distinct) < min(few, len(theta)):
        note = (
            f"All pairs have one of {len(distinct)} values of {name}, from {least:.4g} to {most:.4g}: between them the "
            f"correction is interpolated, unchecked. Measure some pairs at other values of {name}."
        )
    elif gaps:
        where = ", ".join(f"{gap.low:.4g} to {gap.high:.4g} ({gap.share:.0%} of the prior)" for gap in gaps)
        note = (
            f"No pair has {name} from {where}: there the correction is interpolated, unchecked. Measure some "
            f"pairs there, or pass "
            f"target_prior= if {name} never lies there."
        )
    return Span(name, tuple(values.tolist()), low, high, covered, len(distinct), gaps, note)


def _gaps(values: Tensor, prior: Tensor, level: float) -> tuple[Gap, ...]:
    """Gaps between different values (n,), and to the ends of the prior, by its sorted draws (L,)."""
    number = len(values)
    below = torch.searchsorted(prior, values.contiguous()).double() / len(prior)
    u = torch.cat([below.new_zeros(1), below, below.new_ones(1)])
    ends = torch.cat([prior[:1].minimum(values[:1]), values, prior[-1:].maximum(values[-1:])]).tolist()
    shares, limit = u.diff(), largest_spacing_quantile(number, level)
    order = shares.argsort(descending=True).tolist()
    return tuple(
        Gap(ends[k], ends[k + 1], float(shares[k]), largest_spacing_p(number, float(shares[k])))
        for k in order
        if shares[k] > limit
    )


def largest_spacing_p(number: int, gap: float) -> float:
    """Probability that the largest of the spacings of `number` uniforms exceeds `gap`."""
    if gap <= 1 / (number + 1):
        return 1.0
    k = np.arange(1, min(number + 1, int(1 / gap)) + 1)
    left = np.clip(1 - k * gap, 0.0, None)
    with np.errstate(divide="ignore"):
        terms = np.where(left > 0, np.exp(_log_binomial(number + 1, k) + number * np.log(left)), 0.0)
    # alternating sums of large terms lose digits, but only where the first term, an upper bound, is far above one
    return float(np.clip(np.sum(terms * (-1.0) ** (k + 1)), 0.0, 1.0)) if terms[0] < 50 else 1.0


def largest_spacing_quantile(number: int, level: float) -> float:
    """The gap that is exceeded with that probability."""
    return float(optimize.brentq(lambda gap: largest_spacing_p(number, gap) - level, 1 / (number + 1), 1.0))


def _log_binomial(n: int, k: np.ndarray) -> np.ndarray:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def joint_span_of(
    z: Tensor,
    prior: Tensor,
    names: Sequence[str],
    *,
    level: float = 0.01,
    sets: int = 200,
    points: int = 500,
    most: int = 2000,
) -> JointSpan:
    """All parameters of the pairs together, z (N, p), against draws of the prior in z (L, p).

    Args:
        z: Of the pairs.
        prior: Draws of the target prior.
        names: Of the parameters.
        level: Probability that as many draws of the prior would leave a named share.
        sets: Sets of N draws of the prior to compare with.
        points: Draws of the prior whose nearest pair is looked for.
        most: Pairs with different θ that are looked at; of more, some at random.
    """
    with seeded(0):
        z = z.unique(dim=0)
        z = z[torch.randperm(len(z))[:most]]
        order, number = torch.randperm(len(prior)), len(z)
        asked, others = prior[order[:points]], prior[order[points:]]
        drawn = [_nearest(asked, others[torch.randint(len(others), (number,))]) for _ in range(sets)]
    nearest = torch.stack([_nearest(asked, z), *drawn])  # (1 + sets, points)
    limit = nearest.quantile(0.99, dim=0)  # of each point: at the edge of the prior, usual distances are larger
    shares = (nearest > limit).double().mean(1)
    share, p = float(shares[0]), float((shares >= shares[0]).double().mean())
    note = ""
    if p < level:
        note = (
            f"{share:.0%} of the prior lies farther from all pairs than it would from {number} draws of it (p = "
            f"{p:.2g}), although each "
            f"of {', '.join(names)} spans its range: some vary together. Measure pairs at other combinations."
        )
    return JointSpan(share, p, note)


def _nearest(points: Tensor, pairs: Tensor) -> Tensor:
    return torch.cdist(points, pairs).min(1).values


def design_notes(theta: Tensor, z: Tensor, pool: Tensor, prior: Tensor, names: Sequence[str]) -> list[str]:
    """What a fit warns of: each parameter's note; if there is none, that of all parameters together.

    Args:
        theta: Of the pairs, physical, (N, p).
        z: The same in z.
        pool: Draws of the target prior, in z, (L, p).
        prior: The same, physical.
        names: Of the parameters.
    """
    notes = [span.note for span in spans(theta, prior, names) if span.note]
    if notes or len(names) == 1:
        return notes
    joint = joint_span_of(z, pool, names)
    return [joint.note] if joint.note else []
