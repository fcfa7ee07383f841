"""The record of a stack, and its warnings: refuted coverage, uninformative pairs, designs, unreliable weights, outliers."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fmcpe._errors import FMCPEWarning
from fmcpe.candidates.synthetic_likelihood import SyntheticPosterior
from fmcpe.energy import crps, effective_number
from fmcpe.extrapolation import WithinRange
from fmcpe.problem import Problem, fingerprints, groups_of
from fmcpe.record import Note, ParameterRecord, Record
from fmcpe.stacking import Fitted


def record_of(fitted: Fitted, problem: Problem, names: tuple[str, ...], seconds: float, stacklevel: int) -> Record:
    """The record of a stack; warns if held-out pairs refute its coverage."""
    from fmcpe.diagnostics.span import design_notes

    unreliable = _unreliable(fitted)  # before anything draws: it is of the members' last draws
    space, truth, before = problem.space, problem.theta, fitted.uncorrected
    draws = space.to_theta(fitted.held_out.flatten(0, 1)).reshape(fitted.held_out.shape)
    old = draws if before is None else space.to_theta(before.flatten(0, 1)).reshape(before.shape)
    after_error, before_error = (_error(each, truth, fitted.importance) for each in (draws, old))
    after, earlier = (_coverage(each, truth, fitted.importance) for each in (draws, old))
    lines = tuple(
        ParameterRecord(
            name, float(after_error[i]), float(before_error[i]), (float(after[0, i]), float(after[1, i])),
            (float(earlier[0, i]), float(earlier[1, i])), float(fitted.scale[i]), float(truth[:, i].min()),
            float(truth[:, i].max()),
        )
        for i, name in enumerate(names)
    )  # fmt: skip
    weights = dict(sorted(zip(fitted.fits, fitted.weights.tolist(), strict=True), key=lambda item: -item[1]))
    found = {
        "coverage": _refuted(lines, fitted.effective),
        "weights": _few(fitted, len(problem)),
        "design": design_notes(truth, problem.z, problem.pool, space.to_theta(problem.pool), names)
        + _widened(fitted, problem, names),
        "information": (nothing := _uninformative(fitted)),
        "parameter": [] if nothing else _uninformed(fitted, problem, names),
        "importance": unreliable,
        "outliers": _left_out(fitted, problem),
    }
    notes = [Note(kind, text) for kind, texts in found.items() for text in texts]
    for note in notes:
        warnings.warn(note.text, FMCPEWarning, stacklevel=stacklevel + 1)
    return Record(
        "FMCPE", len(problem), seconds, {}, weights, dict(zip(fitted.fits, fitted.alone.tolist(), strict=True)),
        float((fitted.importance * fitted.scores).mean()),
        fitted.skipped, {name: fit.seconds for name, fit in fitted.fits.items()},
        {name: len(fit.members) for name, fit in fitted.fits.items()},
        {"to_truth": fitted.distances.to_truth.mean(1).tolist(), "between": fitted.distances.between.mean(2).tolist()},
        groups_of(truth)[1], fitted.effective, lines, tuple(notes), fingerprints(problem.theta, problem.y),
    )  # fmt: skip


def _error(draws: Tensor, truth: Tensor, importance: Tensor) -> Tensor:
    """Weighted median over the pairs, (p,)."""
    errors, order = (draws.median(1).values - truth).abs().sort(0)
    below = importance.double()[order].cumsum(0)
    middle = (below < below[-1] / 2 - 1e-9).sum(0).clamp_max(len(truth) - 1)
    return errors.gather(0, middle[None])[0]


def _coverage(draws: Tensor, truth: Tensor, importance: Tensor, levels: tuple[float, ...] = (0.8, 0.9)) -> Tensor:
    """Share of the pairs inside the central intervals, (levels, p), by ranks: quantiles of few draws are too narrow."""
    from fmcpe.diagnostics.draws import central_credibility

    credibility = central_credibility(draws.transpose(0, 1), truth).to(importance.device)
    inside = [(importance[:, None] * (credibility <= level)).mean(0).clamp_max(1.0) for level in levels]
    return torch.stack(inside)


def _refuted(lines: tuple[ParameterRecord, ...], effective: float, level: float = 0.01) -> list[str]:
    """Parameters whose coverage the pairs refute: one-sided exact binomial test, over all parameters."""
    notes, pairs = list[str](), round(effective)
    for line in lines:
        inside = round(line.coverage[1] * pairs)
        if stats.binom.cdf(inside, pairs, 0.9) < level / len(lines):
            notes.append(
                f"The 90 % interval of {line.name} holds {inside} of {pairs} held-out pairs: this posterior is over-confident "
                f"about {line.name}. Measure more pairs before you rely on it."
            )
    return notes


def _unreliable(fitted: Fitted, carries: float = 0.1, share: float = 0.2) -> list[str]:
    """Whether the Pareto k̂ of the synthetic likelihood's importance weights is too large for too many pairs."""
    for (name, fit), weight in zip(fitted.fits.items(), fitted.weights.tolist(), strict=True):
        bad = [member.unreliable for member in fit.members if isinstance(member, SyntheticPosterior)]
        if bad and weight > carries and sum(bad) / len(bad) > share:
            return [
                f"Importance weights of {name}, which has weight {weight:.2f}, are unreliable for {sum(bad) / len(bad):.0%} of "
                "the held-out pairs (Pareto k̂ above 0.7). In Python, compare with recipe=Stack(...) without it."
            ]
    return []


def _widened(fitted: Fitted, problem: Problem, names: tuple[str, ...], level: float = 0.1) -> list[str]:
    """Parameters that the prior has much of even at the pairs: the scores are computed without it."""
    assert isinstance(fitted.posterior, WithinRange)
    share, by_theta = fitted.posterior.shares(problem.y[:50])
    total = (1 - (1 - share)[:, None] * (1 - by_theta)).mean(0)
    found = [f"{name} ({weight:.2g})" for name, weight in zip(names, total.tolist(), strict=True) if weight >= level]
    if not found:
        return []
    return [
        f"The prior has weight at the pairs for {', '.join(found)}: not measured over the range. Scores, errors and coverage "
        "are without that: they hold for θ like those of the pairs. If θ stays there, pass target_prior=."
    ]


def _left_out(fitted: Fitted, problem: Problem) -> list[str]:
    """Pairs that the fit leaves out, by their rows in the user's data."""
    if not len(fitted.left_out):
        return []
    rows = fitted.left_out if problem.rows is None else problem.rows[fitted.left_out]
    named = ", ".join(map(str, rows.tolist()[:10])) + (", ..." if len(rows) > 10 else "")
    word = "row" if len(rows) == 1 else "rows"
    return [
        f"The fit leaves out {len(rows)} of {len(problem)} pairs ({word} {named}): given θ, y is an outlier, or two rows are "
        "swapped. Scores include them. Check the measurement with fmcpe.diagnostics.suspects(posterior)."
    ]


def _few(fitted: Fitted, number: int, least: float = 10.0) -> list[str]:
    """Whether the effective number of weighted pairs is below what `FMCPE.fit` asks for."""
    if fitted.effective >= least or bool((fitted.importance == 1).all()):
        return []
    return [
        f"Expected weights by which the pairs count as 10 or more, got {number} pairs that count as {fitted.effective:.1f} "
        "(Kish's effective number): few pairs carry scores and recalibration. Measure more pairs where θ will be, or clip the "
        "weights."
    ]


def _uninformative(fitted: Fitted, level: float = 0.01) -> list[str]:
    """Whether held-out pairs are predicted better than by the prior."""
    if "prior" not in fitted.fits:
        return []
    alone = fitted.distances.scores(fitted.weights.new_tensor([name == "prior" for name in fitted.fits]))
    p = float(_p_of_gain((alone - fitted.scores)[:, None], fitted)[0])
    if p < level:
        return []
    mine, theirs = (float((fitted.importance * each).mean()) for each in (fitted.scores, alone))
    return [
        f"Held-out pairs are not predicted significantly better than by the prior (energy score {mine:.3g} against "
        f"{theirs:.3g}, p = {p:.2g}): these pairs do not show how data depend on θ. Check that each row of theta belongs to "
        "its row of y, or measure more pairs."
    ]


def _uninformed(fitted: Fitted, problem: Problem, names: tuple[str, ...], level: float = 0.05) -> list[str]:
    """Parameters whose held-out values are not predicted better than by the prior, by their CRPS."""
    prior = crps(problem.pool[None, :512].expand(len(problem), -1, -1), problem.z)
    ours = crps(fitted.held_out, problem.z)
    weight = fitted.importance[:, None]
    found = zip(names, _p_of_gain(prior - ours, fitted), (weight * ours).mean(0), (weight * prior).mean(0), strict=True)
    return [
        f"Held-out values of {name} are not predicted significantly better than by the prior (CRPS {mine:.3g} against "
        f"{theirs:.3g}, p = {p:.2g}): these pairs do not show that data inform {name}. Measure more pairs, or report its prior."
        for name, p, mine, theirs in found
        if not p < level
    ]


def _p_of_gain(gain: Tensor, fitted: Fitted) -> np.ndarray:
    """P-values, (p,), that the weighted mean of gains (N, p) is not positive: one-sided paired t-test."""
    weight = fitted.importance.double()[:, None] / len(gain)
    mean = (weight * gain).sum(0)
    number = effective_number(len(gain), fitted.importance)
    if number <= 1.5:
        return np.ones(gain.shape[1])
    error = ((weight * (gain - mean)).square().sum(0) * number / (number - 1)).sqrt()
    return stats.t.sf((mean / error.clamp_min(1e-30)).cpu().numpy(), number - 1)
