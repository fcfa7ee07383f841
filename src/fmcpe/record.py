"""What a fit says of itself: candidates, weights, cross-validated scores and coverage, and warnings."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fmcpe._errors import FMCPEWarning
from fmcpe._names import with_units
from fmcpe.candidates.synthetic_likelihood import SyntheticPosterior
from fmcpe.energy import crps, effective_number
from fmcpe.extrapolation import WithinRange
from fmcpe.problem import Problem, fingerprints, groups_of
from fmcpe.stacking import Fitted


@dataclass(frozen=True)
class HeldOut:
    """The pairs, and draws for each of them from members that have not seen it: what diagnostics are computed from.

    Args:
        theta: Physical θ of the pairs, (N, p).
        z: Draws of the stack, recalibrated, with weights and scales computed without the pair's fold, in z, (N, S, p).
        before: Draws of the uncorrected posterior, in z, (N, S', p); None if it was not a candidate.
        seen: The base posterior's summaries of y, (N, f); y itself where it has none.
        simulated: The same of simulations from the prior, (M, f); None without a simulator.
        at_pairs: The same of simulations at each pair's θ, (N, S, f); None in files of earlier versions.
        rows: Which of the pairs given to `fit` these are, (N,), where some were left out; None if all are here.
    """

    theta: Tensor
    z: Tensor
    before: Tensor | None
    seen: Tensor
    simulated: Tensor | None
    at_pairs: Tensor | None = None
    rows: Tensor | None = None

    @classmethod
    def of(cls, fitted: Fitted, problem: Problem, simulations: int = 500, numbers: int = 2_000_000) -> HeldOut:
        """From a fitted stack; keeps at most `simulations` of the prior, and `numbers` values simulated at the pairs' θ."""
        named = dict(zip(fitted.names, fitted.fits, strict=True))
        before = named["uncorrected"].draws.flatten(1, 2) if "uncorrected" in named else None
        simulated = None if problem.bank_seen is None else problem.bank_seen[:simulations].flatten(1)
        at_pairs = None if problem.x is None else problem.x[:, : max(1, numbers // problem.seen.numel())].flatten(2)
        return cls(problem.theta, fitted.held_out, before, problem.seen.flatten(1), simulated, at_pairs, problem.rows)

    def near(self, theta: Tensor, seen: Tensor, tolerance: float = 1e-3) -> Tensor:
        """Whether pairs, θ (B, p) and summaries (B, f), are pairs of the fit within rounding, (B,)."""
        scale = [each.std(0).clamp_min(1e-12) for each in (self.theta, self.seen)]
        mine, asked = (
            torch.cat([a / scale[0], b / scale[1]], dim=1) for a, b in ((self.theta, self.seen), (theta, seen))
        )
        return (torch.cdist(asked, mine, p=torch.inf) < tolerance).any(1)

    def tensors(self) -> dict[str, Tensor]:
        """By name, as a file stores them."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def cpu(self) -> HeldOut:
        """The same on the CPU."""
        return replace(self, **{name: value.cpu() for name, value in self.tensors().items()})

    @classmethod
    def from_tensors(cls, kept: dict[str, Tensor]) -> HeldOut:
        """From those of a file."""
        optional = (kept.get(name) for name in ("simulated", "at_pairs", "rows"))
        return cls(kept["theta"], kept["z"], kept.get("before"), kept["seen"], *optional)


@dataclass(frozen=True)
class Note:
    """A warning of the fit.

    Args:
        kind: ``"coverage"``, ``"information"``, ``"parameter"``, ``"weights"``, ``"design"``, ``"importance"`` or
            ``"outliers"``.
        text: What the user was told.
    """

    kind: str
    text: str

    @property
    def refutes(self) -> bool:
        """Whether the pairs refute the posterior: over-confident, or no better than the prior."""
        return self.kind in ("coverage", "information")

    @property
    def short(self) -> str:
        """In a few words."""
        return {
            "coverage": "over-confident intervals",
            "information": "held-out pairs predicted no better than by the prior",
            "parameter": "a parameter predicted no better than by the prior",
            "weights": "weights that few pairs carry",
            "design": "pairs that do not span the prior",
            "importance": "unreliable importance weights",
            "outliers": "pairs left out of the fit",
        }.get(self.kind, self.kind)


@dataclass(frozen=True)
class ParameterRecord:
    """One parameter on held-out pairs, in physical units.

    Args:
        name: Its name.
        error: Median absolute error of the posterior median, over pairs weighted as in the fit.
        error_before: The same, of the uncorrected posterior.
        coverage: Share of the pairs, weighted as in the fit, inside the central 80 and 90 % intervals.
        coverage_before: The same, of the uncorrected posterior.
        scale: Recalibration of its spread.
        low: Smallest value among the pairs.
        high: Largest value among the pairs.
    """

    name: str
    error: float
    error_before: float
    coverage: tuple[float, float]
    coverage_before: tuple[float, float]
    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class Record:
    """What was done, and how good it is on held-out pairs.

    Args:
        method: Name of the method.
        num_pairs: Calibration pairs.
        seconds: Of the fit.
        history: Losses by epoch, of methods that train one network.
        weights: Stacking weight of each candidate, the largest first.
        scores: Cross-validated energy score of each candidate alone.
        score: That of the stack, approximately held out.
        skipped: Why some candidates were not fitted.
        candidate_seconds: Of each candidate's fits.
        members: Fitted members of each candidate, in the order of the mixture.
        distances: Mean cross-validated distances that the energy score of any mixture of the candidates is made of: a, (K,),
            and D, (K, K) (`fmcpe.stacking`).
        distinct: Pairs with different θ.
        effective: Kish's effective number of these, where the pairs have weights.
        parameters: One line per parameter.
        notes: What the user was warned of.
        fingerprints: Of the pairs (`fmcpe.problem.fingerprints`).
        names: Of the parameters; empty if nobody named them.
        data_names: Of the columns of y, where they came with names.
        units: Of the parameters, an empty text for none; empty if nobody gave any.
        settings: The recipe's options, those of its candidates by name, and the seed; empty in files of earlier versions.
    """

    method: str = "FMCPE"
    num_pairs: int = 0
    seconds: float = 0.0
    history: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    score: float | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    candidate_seconds: dict[str, float] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    distances: dict[str, Any] = field(default_factory=dict)
    distinct: int = 0
    effective: float | None = None
    parameters: tuple[ParameterRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    fingerprints: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    data_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def to_config(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Record:
        """The record of a file."""
        lines = tuple(
            ParameterRecord(
                **line | {"coverage": tuple(line["coverage"]), "coverage_before": tuple(line["coverage_before"])}
            )
            for line in config["parameters"]
        )
        # files of format 5 have the text alone
        notes = tuple(Note("other", each) if isinstance(each, str) else Note(**each) for each in config["notes"])
        listed = {name: tuple(config.get(name, ())) for name in ("fingerprints", "names", "data_names", "units")}
        return cls(**config | {"parameters": lines, "notes": notes} | listed)

    def _weighted(self) -> str:
        equal = self.effective is None or self.effective > 0.999 * self.distinct
        return "" if equal else f", by their weights worth {self.effective:.1f} (Kish's effective number),"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of `parameters` with their units."""
        return with_units([line.name for line in self.parameters], self.units)

    def text(self, dim: int, shape: tuple[int, ...]) -> str:
        """For people."""
        named = ", ".join(with_units(self.names, self.units)) or f"{dim} parameter(s)"
        what = "Corrected posterior" if self.method == "FMCPE" else f"Posterior by {self.method}"
        lines = [
            f"{what} of {named} given observations of shape {shape}.",
            f"Fitted on {self.num_pairs} calibration pairs{self._weighted()} in {self.seconds:.1f} s.",
        ]
        for name, label in (("x", "x-flow"), ("theta", "θ-flow"), ("loss", "Network")):
            losses = self.history.get(f"validation_{name}")
            if losses:
                lines.append(
                    f"{label}: validation loss {losses[0]:.3g} at first, {losses[-1]:.3g} at last, lowest {min(losses):.3g}."
                )
        if self.weights:
            lines += ["", "Candidate              weight   cross-validated energy score"]
            lines += [f"  {name:20s} {weight:6.2f}   {self.scores[name]:.3f}" for name, weight in self.weights.items()]
            lines.append(f"  {'stack':20s}          {self.score:.3f}  (approximately held out)")
            lines += [f"  {name:20s} not fitted: {reason}" for name, reason in self.skipped.items()]
        if self.parameters:
            lines += ["", "On held-out pairs, before -> after:"]
            for p, label in zip(self.parameters, self.labels, strict=True):
                (b80, b90), (a80, a90) = p.coverage_before, p.coverage
                lines.append(
                    f"  {label}: median error {p.error_before:.3g} -> {p.error:.3g}; 80 % interval holds {b80:.0%} -> "
                    f"{a80:.0%}, 90 % {b90:.0%} -> {a90:.0%}; pairs from {p.low:.4g} to {p.high:.4g}"
                )
        return "\n".join([*lines, *(["", *(note.text for note in self.notes)] if self.notes else [])])


def record_of(fitted: Fitted, problem: Problem, names: tuple[str, ...], seconds: float, stacklevel: int) -> Record:
    """The record of a stack; warns if held-out pairs refute its coverage."""
    from fmcpe.diagnostics.span import design_notes

    space, truth = problem.space, problem.theta
    before = fitted.fits[fitted.names.index("uncorrected")].draws[:, 0] if "uncorrected" in fitted.names else None
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
    weights = dict(sorted(zip(fitted.names, fitted.weights.tolist(), strict=True), key=lambda item: -item[1]))
    found = {
        "coverage": _refuted(lines, fitted.effective),
        "weights": _few(fitted, len(problem)),
        "design": design_notes(truth, problem.z, problem.pool, space.to_theta(problem.pool), names)
        + _widened(fitted, problem),
        "information": (nothing := _uninformative(fitted)),
        "parameter": [] if nothing else _uninformed(fitted, problem, names),
        "importance": _unreliable(fitted),
        "outliers": _left_out(fitted, problem),
    }
    notes = [Note(kind, text) for kind, texts in found.items() for text in texts]
    for note in notes:
        warnings.warn(note.text, FMCPEWarning, stacklevel=stacklevel + 1)
    return Record(
        "FMCPE", len(problem), seconds, {}, weights, dict(zip(fitted.names, fitted.alone.tolist(), strict=True)),
        float((fitted.importance * fitted.scores).mean()),
        fitted.skipped, fitted.seconds,
        {name: len(fit.members) for name, fit in zip(fitted.names, fitted.fits, strict=True)},
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
    """Share of the pairs inside the central intervals, (levels, p)."""
    out = []
    for level in levels:
        low, high = draws.quantile((1 - level) / 2, dim=1), draws.quantile((1 + level) / 2, dim=1)
        out.append((importance[:, None] * ((truth >= low) & (truth <= high))).mean(0).clamp_max(1.0))
    return torch.stack(out)


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
    """Whether the importance weights of the synthetic likelihood have tails that its draws do not cover."""
    for name, weight, fit in zip(fitted.names, fitted.weights.tolist(), fitted.fits, strict=True):
        bad = [member.unreliable for member in fit.members if isinstance(member, SyntheticPosterior)]
        if bad and weight > carries and sum(bad) / len(bad) > share:
            return [
                f"Importance weights of {name}, which has weight {weight:.2f}, are unreliable for {sum(bad) / len(bad):.0%} of "
                "the held-out pairs (Pareto k̂ above 0.7). Compare with recipe=Stack(...) without it."
            ]
    return []


def _widened(fitted: Fitted, problem: Problem, level: float = 0.1) -> list[str]:
    """Whether the answer is largely the prior even at the pairs, so that the scores are not those of the answer."""
    assert isinstance(fitted.posterior, WithinRange)
    share = float(fitted.posterior.share_of_prior(problem.y[:50]).mean())
    if share < level:
        return []
    return [
        f"The prior has {share:.0%} of the answer at the pairs, because θ was not measured over its range. Scores, errors and "
        "coverage are without that: they hold for θ like those of the pairs. If θ stays there, pass target_prior=."
    ]


def _left_out(fitted: Fitted, problem: Problem) -> list[str]:
    """Which pairs are no part of the fit, named by the rows that the user gave."""
    if not len(fitted.left_out):
        return []
    rows = fitted.left_out if problem.rows is None else problem.rows[fitted.left_out]
    named = ", ".join(map(str, rows.tolist()[:10])) + (", ..." if len(rows) > 10 else "")
    return [
        f"The fit leaves out {len(rows)} of {len(problem)} pairs (row {named}): given θ, y is an outlier. Scores count it. "
        "Check the measurement with fmcpe.diagnostics.suspects(posterior)."
    ]


def _few(fitted: Fitted, number: int, least: float = 10.0) -> list[str]:
    """Whether weighted pairs count as fewer than `FMCPE.fit` asks for."""
    if fitted.effective >= least or bool((fitted.importance == 1).all()):
        return []
    return [
        f"Expected weights by which the pairs count as 10 or more, got {number} pairs that count as {fitted.effective:.1f} "
        "(Kish's effective number): few pairs carry scores and recalibration. Measure more pairs where θ will be, or clip the "
        "weights."
    ]


def _uninformative(fitted: Fitted, level: float = 0.01) -> list[str]:
    """Whether held-out pairs are predicted better than by the prior."""
    if "prior" not in fitted.names:
        return []
    alone = fitted.distances.scores(fitted.weights.new_tensor([name == "prior" for name in fitted.names]))
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
