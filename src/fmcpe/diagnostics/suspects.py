r"""Which calibration pair is suspect? Pairs that disagree with all others.

Three questions are asked of each pair, all answered without it:

    θ given y  Mahalanobis distance of the true z from the draws of members that have not seen the pair
    y given θ  distance of the summary of y from a robust regression on θ and on what the simulator gives there
               (`fmcpe.outliers`, as are the p-values of distances)
    swapped    with another pair: by how much more probable all pairs are with the swap (`fmcpe.swaps`)

Unconstrained z is stretched near a bound of the prior, physical θ is not, and neither is Gaussian there: a distance of θ is the
smaller of the two. P-values are adjusted for the number of questions (Benjamini and Hochberg, 1995).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy import stats
from torch import Tensor

from fmcpe._options import check_level
from fmcpe.diagnostics.cross_validated import held_out_of, physical
from fmcpe.in_range import Range
from fmcpe.metrics import energy_score
from fmcpe.outliers import data_distances, p_values, shared_residuals, swaps_of
from fmcpe.problem import groups_of

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior
    from fmcpe.record import HeldOut


FEWEST = 8
"""Numerical limit: pairs below which none can be told from the others."""


@dataclass(frozen=True)
class Suspect:
    """A pair that disagrees with all others.

    Args:
        pair: Its row, counted from 0.
        p_theta: P-value of its θ given its y.
        p_data: P-value of its y given its θ.
        p_swap: P-value of its θ and that of `partner` not being swapped.
        partner: The row that it is most likely swapped with.
        parameter: Name of the parameter that lies farthest off.
        value: The pair's value of it.
        low: Lower end of its central 90 % interval given y, from members that have not seen the pair.
        high: Upper end.
        gain: Share by which the fit without the pair has a lower cross-validated energy score on the others; None without
            ``refit=``.
    """

    pair: int
    p_theta: float
    p_data: float
    p_swap: float
    partner: int
    parameter: str
    value: float
    low: float
    high: float
    gain: float | None = None

    @property
    def p(self) -> float:
        """The smallest of its p-values."""
        return min(self.p_theta, self.p_data, self.p_swap)

    def __str__(self) -> str:
        if self.p_swap <= min(self.p_theta, self.p_data):
            what = f"its θ fits the y of pair {self.partner}, and the other way round (p = {self.p_swap:.2g})"
            advice = f"Check whether rows {self.pair} and {self.partner} are swapped"
        elif self.p_theta <= self.p_data:
            what = (
                f"{self.parameter} = {self.value:.4g} lies outside the {_region(self.p_theta)} region of its own y, which says "
                f"{self.low:.4g} to {self.high:.4g} (90 %)"
            )
            advice = "Check that θ belongs to this y"
        else:
            what = f"its y is unlike what such θ give in all other pairs (p = {self.p_data:.2g})"
            advice = "Check the measurement"
        score = (
            ""
            if self.gain is None
            else f"; the fit without it scores {abs(self.gain):.0%} {'better' if self.gain > 0 else 'worse'}"
        )
        return f"pair {self.pair}: {what}{score}. {advice}."


def suspects(
    posterior: CorrectedPosterior,
    *,
    level: float = 0.1,
    refit: Callable[[Tensor], CorrectedPosterior] | None = None,
) -> list[Suspect]:
    """Pairs that disagree with all others, the most suspect first; none is the usual answer.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`, on at least 8 pairs.
        level: False discovery rate.
        refit: Fits the same recipe to some rows, ``lambda rows: method.fit(theta[rows], y[rows], seed=0)``; called once without
            each suspect, which takes a fit each. Both scores are cross-validated, on the pairs that remain.

    Example:
        >>> from fmcpe import diagnostics
        >>> diagnostics.suspects(posterior)
        []
        >>> wrong = theta_cal.clone()
        >>> wrong[0] = theta_cal[0] + 8  # a typing error
        >>> posterior = fmcpe.FMCPE(base, simulator, recipe=fast).fit(wrong, y_cal, seed=0)
        >>> diagnostics.suspects(posterior)[0].pair
        0
    """
    check_level(level, "Try suspects(posterior, level=0.1).")
    held_out, truth, names = held_out_of(posterior)
    if len(truth) < FEWEST:
        return []
    group, draws = groups_of(held_out.theta)[0], held_out.z
    spaces = ((draws, truth), (physical(posterior, draws), held_out.theta))
    # the distance of each θ, and the same less what all of its repeats are off by
    without = [(d, t - shared_residuals(t - d.mean(1), group)) for d, t in spaces]
    by_theta, within = (torch.stack([_distances(*each) for each in both]).amin(0) for both in (spaces, without))
    at_pairs = None if held_out.at_pairs is None else held_out.at_pairs.mean(1)
    single = p_values(by_theta, within, group), p_values(*_data_distances(held_out, truth, group), group)
    swaps = swaps_of(truth, held_out.seen.flatten(1), at_pairs).unless(torch.minimum(*single))
    p = torch.stack([*single, swaps.p], dim=1).clamp_max(1.0)
    adjusted = stats.false_discovery_control(p.flatten().cpu().numpy()).reshape(p.shape).min(axis=1)
    ends = held_out.z.quantile(torch.tensor([0.05, 0.95]).to(held_out.z), dim=1)
    half = held_out.z.std(1).clamp_min(1e-6)
    worst = ((truth - held_out.z.mean(1)).abs() / half).argmax(1)
    low, high = (physical(posterior, end) for end in ends)
    # rows are named as the user counts them, although some pairs may have been left out of the fit
    given = torch.arange(len(truth)) if held_out.rows is None else held_out.rows.cpu()
    found = []
    for j in p.min(1).values.argsort().tolist():
        if adjusted[j] < level:
            i = int(worst[j])
            value, least, most = (float(each[j, i]) for each in (held_out.theta, low, high))
            by_theta, by_data, by_swap = p[j].tolist()
            rows = int(given[j]), int(given[int(swaps.partner[j])])
            gain = None if refit is None else _gain(held_out, truth, j, given, refit)
            found.append(Suspect(rows[0], by_theta, by_data, by_swap, rows[1], names[i], value, least, most, gain))
    return found


def _covariances(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, p) and covariance (N, p, p) of draws (N, S, p), shrunk to its diagonal."""
    mean, dim = draws.mean(1), draws.shape[2]
    centred = draws - mean[:, None]
    covariance = centred.mT @ centred / (draws.shape[1] - 1)
    weight = dim / (dim + draws.shape[1])
    diagonal = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-12))
    return mean, (1 - weight) * covariance + weight * diagonal


def _distances(draws: Tensor, truth: Tensor) -> Tensor:
    """Mahalanobis distance of each pair's truth from its draws, (N,)."""
    mean, covariance = _covariances(draws.double())
    offsets = (truth.double() - mean)[..., None]
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), offsets, upper=False)[..., 0].norm(dim=1)


def _data_distances(held_out: HeldOut, truth: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each summary of y from what all other pairs say of its θ, (N,), and within its group of repeats, (N,)."""
    if held_out.at_pairs is None:  # of files of earlier versions: from the summaries of all others
        return (Range.of(held_out.seen).distances.exp(),) * 2
    return data_distances(truth, held_out.seen, held_out.at_pairs.mean(1), group)[:2]


def _gain(
    held_out: HeldOut, truth: Tensor, pair: int, given: Tensor, refit: Callable[[Tensor], CorrectedPosterior]
) -> float:
    """Share by which the cross-validated energy score of the other pairs falls without the pair; `given` names their rows."""
    rows = torch.tensor([j for j in range(len(truth)) if j != pair])
    without, same, _ = held_out_of(refit(given[rows]))
    if without.theta.shape != held_out.theta[rows].shape or not torch.allclose(without.theta, held_out.theta[rows]):
        raise ValueError(
            "Expected refit(rows) to fit the pairs of these rows, got others. Pass refit=lambda rows: method.fit(theta[rows], "
            "y[rows], seed=0), with the θ that the posterior was fitted on."
        )
    now, before = (energy_score(z.movedim(0, 1), at) for z, at in ((without.z, same), (held_out.z[rows], truth[rows])))
    return 1 - now / before


def _region(p: float) -> str:
    """The largest usual level whose region excludes a p-value."""
    return next((f"{level:.4g} %" for level in (99.99, 99.9, 99.0, 95.0) if p < 1 - level / 100), "90 %")
