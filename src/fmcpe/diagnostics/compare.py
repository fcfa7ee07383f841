"""Before and after: a base posterior and its correction on the same real pairs, as a table and as figures.

Both are drawn as this library draws them: `fmcpe.base_posteriors` moves draws that stay outside the prior to its edge instead
of rejecting without end, so that a base posterior far out of distribution is compared in seconds, too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from fmcpe._checks import as_pairs
from fmcpe._errors import FMCPEWarning
from fmcpe._names import in_order
from fmcpe._random import derive, seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc_of_draws
from fmcpe.metrics import energy_score
from fmcpe.problem import fingerprints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fmcpe.posterior import CorrectedPosterior

LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Side:
    """One parameter on one side, in physical units.

    Args:
        error: Median absolute error of the posterior median.
        bias: Mean error of the posterior median, above 0 if estimates are too high.
        width: Median width of the central 90 % interval.
        coverage_80: Share of truths inside the central 80 % interval.
        coverage_90: The same at 90 %.
    """

    error: float
    bias: float
    width: float
    coverage_80: float
    coverage_90: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """A base posterior and its correction on the same pairs; `summary()`, `figures()` and `to_dataframe()` show it.

    Attributes:
        names: Of the parameters.
        before: The base posterior, by parameter.
        after: The corrected posterior, by parameter.
        energy: Mean energy score before and after, in unconstrained, standardised θ; lower is better.
        energy_ratio: After over before, with a 90 % bootstrap interval over pairs.
        leakage: Mean share of the base posterior's mass outside the prior.
        coverage: Of central intervals and joint ellipsoids, before and after.
        sbc: Ranks, before and after.
        draws: Draws before and after, (S, N, p) each, physical.
        theta: True parameters, (N, p).
        seen: Pairs that the correction was fitted on.
    """

    names: tuple[str, ...]
    before: tuple[Side, ...]
    after: tuple[Side, ...]
    energy: tuple[float, float]
    energy_ratio: tuple[float, float, float]
    leakage: float
    coverage: tuple[CoverageResult, CoverageResult]
    sbc: tuple[SBCResult, SBCResult]
    draws: tuple[Tensor, Tensor]
    theta: Tensor
    seen: int

    def summary(self) -> str:
        """The table, before -> after."""
        number = len(self.theta)
        low, high = (100 * each / number for each in stats.binom.interval(0.95, number, 0.9))
        head = ("parameter", "median error", "bias", "90 % interval width", "inside 80 %", "inside 90 %")
        rows = [
            (
                name, _arrow(b.error, a.error), _arrow(b.bias, a.bias, "+.3g"), _arrow(b.width, a.width),
                _arrow(100 * b.coverage_80, 100 * a.coverage_80, ".0f", " %"),
                _arrow(100 * b.coverage_90, 100 * a.coverage_90, ".0f", " %"),
            )
            for name, b, a in zip(self.names, self.before, self.after, strict=True)
        ]  # fmt: skip
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [head, *rows]
        ]
        ratio, least, most = self.energy_ratio
        joint = [float(found.joint[LEVELS.index(0.9)]) for found in self.coverage if found.joint is not None]
        lines = [
            f"Before -> after correction, on {number} pairs:",
            *table,
            f"joint 90 % ellipsoids hold {_arrow(100 * joint[0], 100 * joint[1], '.0f', ' %')}; 95 % of exact posteriors have "
            f"{low:.0f} to {high:.0f} % inside 90 %",
            f"energy score {_arrow(*self.energy)}, ratio {ratio:.2f} ({least:.2f} to {most:.2f})",
        ]
        if self.leakage > 0.1:
            lines.append(
                f"{self.leakage:.0%} of the base posterior's mass lies outside the prior; draws that stay outside are moved "
                "to its edge."
            )
        if self.seen:
            lines.append(f"{self.seen} of the pairs were used in the fit: the numbers after correction are too good.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def figures(self) -> dict[str, Figure]:
        """``estimates`` against truths, ``coverage`` curves and ``ranks`` histograms, before and after."""
        from fmcpe.diagnostics import plots

        both = dict(zip(("before", "after"), self.sbc, strict=True))
        curves = {
            name: coverage(draws, self.theta, levels=[k / 20 for k in range(1, 20)], names=self.names)
            for name, draws in zip(both, self.draws, strict=True)
        }
        return {
            "estimates": plots.before_after(*self.draws, self.theta, self.names),
            "coverage": plots.coverage_curves(curves),
            "ranks": plots.rank_histograms(both),
        }

    def to_dataframe(self) -> Any:
        """A pandas DataFrame: a row for each parameter before and after."""
        from fmcpe.io.tables import optional

        rows = [
            {"parameter": name, "posterior": when} | asdict(side)
            for name, b, a in zip(self.names, self.before, self.after, strict=True)
            for when, side in (("before", b), ("after", a))
        ]
        return optional("pandas", "DataFrames").DataFrame(rows)


def compare(
    base: Any, posterior: CorrectedPosterior, theta: Any, y: Any, *, num_samples: int = 500, seed: int = 0
) -> Comparison:
    """A base posterior and its correction on pairs, which the fit should not have seen.

    Args:
        base: What was corrected: an sbi posterior, or anything that `fmcpe.as_base_posterior` accepts.
        posterior: The corrected posterior.
        theta: Physical parameters, (N, p), at least 3.
        y: Real measurements taken at them, (N, ...).
        num_samples: Draws per observation, on each side.
        seed: Of draws, tie-breaking and bootstrap.
    """
    record = getattr(posterior, "record", None)
    if record is None:
        swapped = " They look swapped: call" if hasattr(base, "record") else " Call"
        raise TypeError(
            f"Expected a corrected posterior after its base, got a {type(posterior).__name__}.{swapped} compare(base, "
            "posterior, theta, y)."
        )
    theta, y = in_order(theta, record.names, "theta"), in_order(y, record.data_names, "y")
    theta, y, _ = as_pairs(theta, y, None, posterior.prior, posterior.observation_shape)
    adapted = base if isinstance(base, BasePosterior) else as_base_posterior(base, posterior.prior)
    seen = len(set(record.fingerprints) & set(fingerprints(theta, y)))
    if seen:
        warnings.warn(
            f"Expected pairs that were not used in the fit, got {seen} of {len(y)} that were: the correction looks too good on "
            "them. Pass held-out pairs, or call fmcpe.diagnostics.calibration(posterior), which cross-validates.",
            FMCPEWarning,
            stacklevel=2,
        )
    device = posterior.space.standardiser.mean.device
    y = y.to(device)
    with seeded(derive(seed, "before")):
        before = draw_base(adapted, y, num_samples)
        leakage = 1 - float(torch.cat([adapted.log_acceptance(part) for part in y.split(200)]).exp().mean())
    after = posterior.sample_batched((num_samples,), x=y, show_progress_bars=False, seed=derive(seed, "after"))
    to_z = posterior.space.to_z_safely
    return compare_draws(before.movedim(0, 1), after, theta, posterior.names, to_z, seed, seen, leakage)


def draw_base(base: BasePosterior, y: Tensor, n: int, limit: int = 100_000) -> Tensor:
    """Draws of a base posterior, (B, n, p), at most `limit` numbers of data at a time."""
    working = base.summarised()
    rows = max(1, limit // n)
    return torch.cat([working.sample(working.summarise(part), n) for part in y.split(rows)])


def compare_draws(
    before: Tensor,
    after: Tensor,
    theta: Tensor,
    names: tuple[str, ...],
    to_z: Callable[[Tensor], Tensor],
    seed: int = 0,
    seen: int = 0,
    leakage: float = 0.0,
) -> Comparison:
    """The same of existing draws (S, N, p), physical; `to_z` maps rows of θ to the space of the energy score."""
    both = tuple(each.double().cpu() for each in (before, after))

    def scores(draws: Tensor) -> Tensor:
        return energy_score(to_z(draws.flatten(0, 1)).unflatten(0, draws.shape[:2]), truth, reduce=False)

    truth = to_z(theta.to(after))
    old, new = (scores(each.to(after)) for each in (before, after))
    with seeded(derive(seed, "bootstrap")):
        rows = torch.randint(len(theta), (1000, len(theta)))
    ratios = (new[rows].mean(1) / old[rows].mean(1)).quantile(torch.tensor([0.05, 0.95], dtype=new.dtype))
    found = [coverage(each, theta, levels=LEVELS, names=names, seed=seed) for each in both]
    ranks = [sbc_of_draws(each, theta, names=names, seed=seed) for each in both]
    first, second = (_sides(each, theta.double().cpu(), cover) for each, cover in zip(both, found, strict=True))
    ratio = float(new.mean() / old.mean()) if float(old.mean()) > 0 else math.nan
    return Comparison(
        names, first, second, (float(old.mean()), float(new.mean())), (ratio, float(ratios[0]), float(ratios[1])), leakage,
        (found[0], found[1]), (ranks[0], ranks[1]), (both[0], both[1]), theta.cpu(), seen,
    )  # fmt: skip


def _sides(draws: Tensor, truth: Tensor, found: CoverageResult) -> tuple[Side, ...]:
    low, middle, high = draws.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=draws.dtype), dim=0)
    error = middle - truth
    at80, at90 = (found.central[LEVELS.index(level)] for level in (0.8, 0.9))
    columns = (error.abs().median(0).values, error.mean(0), (high - low).median(0).values, at80, at90)
    return tuple(Side(*(float(column[k]) for column in columns)) for k in range(truth.shape[1]))


def _arrow(before: float, after: float, style: str = ".3g", unit: str = "") -> str:
    return f"{before:{style}}{unit} -> {after:{style}}{unit}"
