"""Every number of the trust report, gathered once from a posterior; `report.json` holds the same."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmcpe._ambient import quiet
from fmcpe._checks import as_observations
from fmcpe._names import with_units
from fmcpe.diagnostics.calibration import CoverageResult, coverage
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.misspecification import MisspecificationResult, misspecification
from fmcpe.diagnostics.report.verdict import Verdict, judge
from fmcpe.diagnostics.span import span
from fmcpe.diagnostics.suspects import Suspect, suspects
from fmcpe.problem import groups_of, one_of_each

if TYPE_CHECKING:
    from fmcpe.diagnostics.conformal import Conformal, Intervals
    from fmcpe.diagnostics.learning_curve import LearningCurve
    from fmcpe.diagnostics.span import Span
    from fmcpe.in_range import RangeCheck
    from fmcpe.posterior import CorrectedPosterior

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Nominal levels of the coverage curve."""


@dataclass(frozen=True, eq=False)
class Content:
    """What the report says; parts that the posterior cannot answer are None.

    Attributes:
        posterior: The posterior itself.
        verdict: The answer: three lines and a traffic light.
        calibration: Calibration and score on held-out pairs.
        curve: Coverage at many levels.
        suspects: Pairs that disagree with all others.
        spans: Where in the prior the pairs lie, by parameter.
        misspecification: Real data against simulations.
        conformal: Coverage that split conformal intervals promise, by level.
        learning_curve: If it was computed.
        observations: New observations, (B, ...), if given.
        check: Whether they are in range.
        quantiles: Their 5, 50 and 95 % quantiles in physical units, (3, B, p).
        intervals: Their 90 % intervals with a guarantee, where the posterior has them.
    """

    posterior: CorrectedPosterior
    verdict: Verdict
    calibration: CalibrationResult | None
    curve: CoverageResult | None
    suspects: list[Suspect]
    spans: list[Span]
    misspecification: MisspecificationResult | None
    conformal: list[dict[str, Any]]
    learning_curve: LearningCurve | None
    observations: Tensor | None
    check: RangeCheck | None
    quantiles: Tensor | None
    intervals: Intervals | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        lines = self.posterior.record.parameters
        return tuple(line.name for line in lines) or tuple(f"theta[{i}]" for i in range(self.posterior.space.dim))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names with units."""
        return with_units(self.names, self.posterior.units)

    def numbers(self) -> dict[str, Any]:
        """As JSON."""
        found, record = self.calibration, self.posterior.record
        out: dict[str, Any] = {
            "verdict": asdict(self.verdict),
            "method": record.method,
            "pairs": record.num_pairs,
            "distinct_theta": record.distinct,
            "names": list(self.names),
            "units": list(self.posterior.units),
            "observation_shape": list(self.posterior.observation_shape),
            "fit_seconds": record.seconds,
            "parameters": [asdict(line) for line in record.parameters],
            "candidates": {
                "weights": record.weights, "scores": record.scores, "stack": record.score, "skipped": record.skipped,
                "seconds": record.candidate_seconds,
            },
            "settings": record.settings,
            "notes": [asdict(note) for note in record.notes],
            "suspects": [asdict(each) for each in self.suspects],
            "spans": [asdict(each) for each in self.spans],
            "conformal": self.conformal,
            "versions": versions(),
        }  # fmt: skip
        if found is not None and self.curve is not None:
            out["calibration"] = found.numbers()
            out["coverage"] = {"levels": list(LEVELS)} | {k: v.tolist() for k, v in self.curve.columns().items()}
        if self.misspecification is not None:
            out["misspecification"] = asdict(self.misspecification)
        if self.learning_curve is not None:
            curve = self.learning_curve
            out["learning_curve"] = {
                "sizes": curve.sizes, "scores": curve.mean, "errors": curve.errors, "fits": curve.fits,
                "candidates": curve.candidates, "doubled": asdict(curve.forecast(2 * curve.sizes[-1])),
            }  # fmt: skip
        if self.check is not None and self.quantiles is not None:
            out["observations"] = vars(self.check) | {"quantiles_5_50_95": self.quantiles}
            if self.intervals is not None:
                out["observations"]["intervals_90"] = [self.intervals.low, self.intervals.high]
        return plain(out)


def gather(
    posterior: CorrectedPosterior, x: Any = None, learning_curve: LearningCurve | None = None, *, seed: int = 0
) -> Content:
    """Everything that a posterior can say of itself.

    Args:
        posterior: Of any recipe; those that keep no cross-validated draws say less.
        x: Real observations to be answered in the report, (B, ...).
        learning_curve: Of `fmcpe.diagnostics.learning_curve`, if it was computed.
        seed: Of tie-breaking, bootstrap, permutations and draws.
    """
    held_out, found, curve, test = posterior.held_out, None, None, None
    if held_out is not None and groups_of(held_out.theta)[1] >= 3:
        found = calibration(posterior, seed=seed)
        rows = one_of_each(held_out.theta, seed)  # repeats at one θ are not independent, as the bands assume
        truth = posterior.space.to_z_safely(held_out.theta[rows])
        names = tuple(line.name for line in posterior.record.parameters)
        curve = coverage(held_out.z[rows].movedim(0, 1), truth, levels=LEVELS, region=None, names=names, seed=seed)
        test = misspecification(posterior, seed=seed)
    strange = suspects(posterior) if held_out is not None else []
    observations = check = quantiles = intervals = None
    if x is not None:
        observations = as_observations(x, posterior.observation_shape).to(posterior._device)
        with quiet():  # the report shows what is out of range
            check = posterior.check(observations) if held_out is not None else None
            draws = posterior.sample_batched((1000,), x=observations, seed=seed, show_progress_bars=False)
            if posterior.conformal is not None:
                with suppress(ValueError):  # too few held-out pairs for this level
                    intervals = posterior.interval(0.9, x=observations)
        quantiles = draws.quantile(torch.tensor([0.05, 0.5, 0.95]).to(draws), dim=0)
    return Content(
        posterior=posterior,
        verdict=judge(posterior.record, found, strange),
        calibration=found,
        curve=curve,
        suspects=strange,
        spans=span(posterior) if held_out is not None else [],
        misspecification=test,
        conformal=_promises(posterior.conformal),
        learning_curve=learning_curve,
        observations=observations,
        check=check,
        quantiles=quantiles,
        intervals=intervals,
    )


def _promises(conformal: Conformal | None) -> list[dict[str, Any]]:
    """The guarantee of conformal intervals at each level that the number of held-out pairs allows."""
    out: list[dict[str, Any]] = []
    if conformal is None:
        return out
    for level in (0.5, 0.8, 0.9, 0.95):
        with suppress(ValueError):  # too few pairs for this level
            out += [asdict(conformal.promise(level, joint)) for joint in (False, True)]
    return out


def versions() -> dict[str, str]:
    """Of Python and of the libraries that numbers depend on."""
    names = ("fmcpe", "torch", "sbi", "zuko", "numpy", "scipy", "matplotlib")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def plain(value: Any) -> Any:
    """Strict JSON: numbers, strings, lists and dictionaries; what is not finite becomes None."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
