"""What a posterior keeps of its fit: candidates, weights, cross-validated scores and draws, coverage, and warnings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fmcpe._names import with_units
from fmcpe.problem import Problem
from fmcpe.stacking import Fitted


@dataclass(frozen=True)
class HeldOut:
    """The pairs, and held-out draws for each of them: the input of the diagnostics.

    Args:
        theta: Physical θ of the pairs, (N, p).
        z: Draws of the stack, recalibrated, with weights and scales computed without the pair's fold, in z, (N, S, p).
        before: Draws of the uncorrected posterior, in z, (N, S', p); None if it was not a candidate.
        seen: The base posterior's summaries of y, (N, f); y itself where it has none.
        simulated: Summaries of simulations from the prior, (M, f); None without a simulator.
        at_pairs: Summaries of simulations at each pair's θ, (N, S, f); None in files of earlier versions.
        rows: Row numbers of these pairs in the arguments of `fit`, (N,), if some were dropped; None otherwise.
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
        simulated = None if problem.bank_seen is None else problem.bank_seen[:simulations].flatten(1)
        at_pairs = None if problem.x is None else problem.x[:, : max(1, numbers // problem.seen.numel())].flatten(2)
        seen, before = problem.seen.flatten(1), fitted.uncorrected
        return cls(problem.theta, fitted.held_out, before, seen, simulated, at_pairs, problem.rows)

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
        """From the tensors of a file."""
        optional = (kept.get(name) for name in ("simulated", "at_pairs", "rows"))
        return cls(kept["theta"], kept["z"], kept.get("before"), kept["seen"], *optional)


@dataclass(frozen=True)
class Note:
    """A warning of the fit.

    Args:
        kind: ``"coverage"``, ``"information"``, ``"parameter"``, ``"weights"``, ``"design"``, ``"importance"`` or
            ``"outliers"``.
        text: The message.
    """

    kind: str
    text: str

    @property
    def refutes(self) -> bool:
        """Whether the pairs refute the posterior: over-confident, or no better than the prior."""
        return self.kind in ("coverage", "information")

    @property
    def short(self) -> str:
        """A short label."""
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
        scale: Recalibration scale.
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
    """What was fitted, and its scores on held-out pairs.

    Args:
        method: Name of the method.
        num_pairs: Calibration pairs.
        seconds: Time of the fit.
        history: Losses by epoch, for methods that train one network.
        weights: Stacking weight of each candidate, the largest first.
        scores: Cross-validated energy score of each candidate alone.
        score: Cross-validated energy score of the stack, approximately held out.
        skipped: Why some candidates were not fitted.
        candidate_seconds: Fit time of each candidate.
        members: Fitted members of each candidate, in the order of the mixture.
        distances: Mean cross-validated distances a, (K,), and D, (K, K), which determine the energy score of any mixture of the
            candidates (`fmcpe.stacking`).
        distinct: Number of distinct θ.
        effective: Kish's effective number of pairs, if they have weights.
        parameters: One line per parameter.
        notes: Warnings of the fit.
        fingerprints: Of the pairs (`fmcpe.problem.fingerprints`).
        names: Parameter names; empty if none were given.
        data_names: Column names of y, if there were any.
        units: Units of the parameters, an empty string for none; empty if none were given.
        settings: Options of the recipe, of its candidates by name, and the seed; empty in files of earlier versions.
        num_unlabelled: Number of real observations without θ, without those of the pairs.
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
    num_unlabelled: int = 0

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
        """The text of `CorrectedPosterior.summary`."""
        lines = self.head(dim, shape)
        if self.parameters:
            lines += ["", "On held-out pairs, before -> after:"]
            for p, label in zip(self.parameters, self.labels, strict=True):
                (b80, b90), (a80, a90) = p.coverage_before, p.coverage
                lines.append(
                    f"  {label}: median error {p.error_before:.3g} -> {p.error:.3g}; 80 % interval holds {b80:.0%} -> "
                    f"{a80:.0%}, 90 % {b90:.0%} -> {a90:.0%}; pairs from {p.low:.4g} to {p.high:.4g}"
                )
        return "\n".join([*lines, *(["", *(note.text for note in self.notes)] if self.notes else [])])

    def head(self, dim: int, shape: tuple[int, ...]) -> list[str]:
        """The first lines of the text: pairs, and weights of the candidates."""
        named = ", ".join(with_units(self.names, self.units)) or f"{dim} parameter(s)"
        what = "Corrected posterior" if self.method == "FMCPE" else f"Posterior by {self.method}"
        others = f" and {self.num_unlabelled} real observations without θ" if self.num_unlabelled else ""
        lines = [
            f"{what} of {named} given observations of shape {shape}.",
            f"Fitted on {self.num_pairs} calibration pairs{self._weighted()}{others} in {self.seconds:.1f} s.",
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
        return lines
