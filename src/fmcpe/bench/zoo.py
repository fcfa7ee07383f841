"""Report of the zoo: energy score relative to the best method, and coverage, by problem.

A *setting* is a problem with a number of pairs. A method's score is its energy score, averaged over calibration sets; the
*ratio* divides it by the lowest score of all methods. Settings that some method has not finished are omitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from fmcpe.bench.figures import COLORS, _tidy
from fmcpe.bench.results import Results, number
from fmcpe.bench.table import Table
from fmcpe.bench.tables import budgets, so_far
from fmcpe.tasks import zoo

NOT_A_METHOD = ("reference",)
SUBSET = ("fmcpe-paper",)
"""Methods that run on some problems only: they are listed, but do not count for the best score."""
FALLBACK = "#7F3C8D"


@dataclass(frozen=True)
class Score:
    """One method on one setting, averaged over calibration sets.

    Args:
        problem: Name of the problem.
        family: Its simulator family.
        kind: Its kind of misspecification.
        half: ``"development"`` or ``"reporting"``.
        severity: Severity of the misspecification.
        pairs: Number of calibration pairs.
        method: The method.
        energy: Energy score.
        ratio: Energy score over that of the best method.
        crps: CRPS of each parameter.
        coverage_80: Coverage of each parameter's 80 % interval.
        coverage_90: Coverage of each parameter's 90 % interval.
        c2st: C2ST to the reference posterior; NaN without one.
        seconds: Fit time.
        tests: Number of test pairs, the same for all calibration sets.
    """

    problem: str
    family: str
    kind: str
    half: str
    severity: str
    pairs: int
    method: str
    energy: float
    ratio: float
    crps: tuple[float, ...]
    coverage_80: tuple[float, ...]
    coverage_90: tuple[float, ...]
    c2st: float
    seconds: float
    tests: int


def scores(results: Results) -> list[Score]:
    """Scores of every method on every setting that all methods have finished."""
    methods = [m for m in results.methods("zoo") if m not in NOT_A_METHOD]
    whole = [m for m in methods if m not in SUBSET]
    found: list[Score] = []
    for label in results.tasks("zoo"):
        name = label.split(" ")[0]
        for size in results.sizes("zoo"):
            asked = {m: results.asked("zoo", label, m, size) for m in methods}
            done = {m: [row.metrics for row in rows if row.status == "done"] for m, rows in asked.items()}
            finished = {m: len(done[m]) >= max(1, len(asked[m])) for m in methods}
            if not all(finished[m] for m in whole if ":" not in m):
                continue
            # a user-defined method that is unfinished or fails does not remove the setting for the others
            energy = {m: _mean(done[m], "energy") for m in methods if finished[m]}
            best = min(value for m, value in energy.items() if m in whole)
            found += [_score(name, size, m, value / best, done[m]) for m, value in energy.items()]
    return found


def _score(problem: str, pairs: int, method: str, ratio: float, rows: Sequence[dict[str, Any]]) -> Score:
    family, kind = zoo.split(problem)
    return Score(
        problem, family, kind, zoo.half_of(problem), str(rows[0].get("severity", "")),
        pairs, method, _mean(rows, "energy"), ratio, _columns([row["crps"] for row in rows]),
        _columns([row["coverage"]["0.8"] for row in rows]), _columns([row["coverage"]["0.9"] for row in rows]),
        _mean(rows, "c2st"), _mean(rows, "fit_seconds"), int(rows[0]["sbc"]["observations"]),
    )  # fmt: skip


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.mean(values)) if values else math.nan


def _columns(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.mean(rows, axis=0))


def _methods(found: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.method for score in found))


def ratio_table(found: Sequence[Score], results: Results, half: str | None = None) -> Table:
    """Quantiles of the ratio to the best method, mean ranks, and coverage."""
    chosen = [score for score in found if half in (None, score.half)]
    ranks = _ranks(chosen)
    rows = []
    for method in _methods(chosen):
        own = [score for score in chosen if score.method == method]
        ratios = np.array([score.ratio for score in own])
        later = [score for score in own if score.pairs >= 30]
        inside = [min(s.coverage_80) >= 0.65 and max(s.coverage_80) <= 0.93 for s in later]
        mean, error = ranks.get(method, (math.nan, math.nan))
        rows.append([
            method, str(len(own)), number(float(np.exp(np.log(ratios).mean()))), number(float(np.median(ratios))),
            number(float(np.quantile(ratios, 0.9))), number(float(np.quantile(ratios, 0.95))), number(float(ratios.max())),
            f"{mean:.2f} ± {error:.2f}" if math.isfinite(mean) else "",
            f"{100 * np.mean(inside):.0f} %" if inside else "",
            number(float(np.mean([np.mean(s.coverage_90) for s in own])), 2),
            number(float(np.median([s.seconds for s in own])), 2),
        ])  # fmt: skip
    rows.sort(key=lambda row: float(row[2]))
    header = [
        "method", "settings", "geometric mean", "median", "90th percentile", "95th", "worst", "mean rank",
        "80 % coverage in 0.65–0.93", "90 % coverage", "fit, s",
    ]  # fmt: skip
    title = "Energy score over that of the best method" + (f", {half} half" if half else "")
    note = so_far(results, "zoo") + (
        "Ratio 1 is the best of all methods in hindsight, per setting (problem × number of pairs). Mean rank ± standard error "
        "over settings, among methods that run on all of them. Coverage in 0.65–0.93: every parameter's 80 % interval, "
        f"settings with 30 pairs or more. {budgets(results, 'zoo')}"
    )
    return Table(f"ratios{'-' + half if half else ''}", title, header, rows, note)


def _ranks(found: Sequence[Score]) -> dict[str, tuple[float, float]]:
    """Mean rank of each method over settings, and its standard error."""
    settings: dict[tuple[str, int], dict[str, float]] = {}
    for score in found:
        if score.method not in SUBSET:
            settings.setdefault((score.problem, score.pairs), {})[score.method] = score.energy
    ranked = [dict(zip(row, stats.rankdata(list(row.values())), strict=True)) for row in settings.values()]
    names = {name for row in ranked for name in row}
    return {
        name: (
            float(np.mean(values)),
            float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0,
        )
        for name in names
        for values in [[row[name] for row in ranked]]
    }


BREAKDOWNS: dict[str, Callable[[Score], str]] = {
    "pairs": lambda s: str(s.pairs), "severity": lambda s: s.severity, "kind": lambda s: s.kind, "family": lambda s: s.family,
    "half": lambda s: s.half,
}  # fmt: skip


def breakdown_table(found: Sequence[Score], by: str, results: Results) -> Table:
    """Geometric mean of the ratio by family, kind, severity, half or number of pairs."""
    key, methods = BREAKDOWNS[by], _methods(found)
    values = list(dict.fromkeys(key(score) for score in found))
    rows = []
    for value in sorted(values, key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text)):
        own = [score for score in found if key(score) == value]
        cells = []
        for method in methods:
            ratios = [score.ratio for score in own if score.method == method]
            cells.append(number(float(np.exp(np.mean(np.log(ratios))))) if ratios else "")
        rows.append([value, str(len({(s.problem, s.pairs) for s in own})), *cells])
    note = so_far(results, "zoo") + f"Geometric mean of energy score over the best method's. {budgets(results, 'zoo')}"
    return Table(f"by-{by}", f"By {by}", [by, "settings", *methods], rows, note)


def worst_table(found: Sequence[Score], results: Results, number_of: int = 10) -> Table:
    """The problems with the largest ratio of each method, each at its worst number of pairs."""
    rows = []
    for method in _methods(found):
        own: dict[str, Score] = {}
        for score in sorted((s for s in found if s.method == method), key=lambda s: -s.ratio):
            own.setdefault(score.problem, score)
        for score in list(own.values())[:number_of]:
            rows.append([
                method, score.problem, score.severity, str(score.pairs), number(score.ratio), number(score.energy),
                " ".join(number(value, 2) for value in score.coverage_80),
            ])  # fmt: skip
    header = ["method", "problem", "severity", "pairs", "ratio", "energy score", "80 % coverage"]
    note = so_far(results, "zoo") + (
        "The ten problems of each method with the largest ratio, at the number of pairs where it is largest. Problem names "
        "link to pictures. " + budgets(results, "zoo")
    )
    links = {row[1]: f"#{picture_anchor(row[1])}" for row in rows}
    return Table("worst", "Largest ratios of each method", header, rows, note, links)


def picture_anchor(problem: str) -> str:
    """The anchor of a problem's picture in the report."""
    return "picture-" + problem.removeprefix("zoo/")


def pictures(results: Results) -> list[tuple[str, str, bytes]]:
    """Anchor, caption and PNG of each problem that was run."""
    from threadpoolctl import threadpool_limits

    from fmcpe.tasks.zoo.gallery import as_png

    names = sorted({score.problem for score in scores(results)})
    with threadpool_limits(1):
        problems = [zoo.get(name, zoo.SEEDS[zoo.half_of(name)]) for name in names]
        return [
            (picture_anchor(problem.name), f"{problem.name}, {problem.severity}", as_png(problem))
            for problem in problems
        ]


def profiles(found: Sequence[Score]) -> Figure | None:
    """Fraction of problems within a factor τ of the best method: a curve per method, a panel per number of pairs."""
    sizes = sorted({score.pairs for score in found})
    if not sizes:
        return None
    figure = Figure(figsize=(1 + 3.1 * len(sizes), 3.6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        for method in _methods(found):
            ratios = np.sort([s.ratio for s in found if s.method == method and s.pairs == size])
            if len(ratios):
                shares = np.arange(1, len(ratios) + 1) / len(ratios)
                axes.step([1, *ratios, 10], [0, *shares, 1], where="post", color=_color(method), lw=1.6, label=method)
        axes.set(xscale="log", xlim=(1, 4), ylim=(0, 1.02), title=f"{size} pairs", xlabel="factor τ of the best")
        axes.set_xticks([1, 1.5, 2, 3, 4], ["1", "1.5", "2", "3", "4"])
        axes.minorticks_off()
        _tidy(axes)
    figure.axes[0].set_ylabel("share of problems")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(8, len(labels)), frameon=False)
    return figure


def coverage_plot(found: Sequence[Score]) -> Figure | None:
    """Coverage of 80 % intervals: a dot per problem for the parameter furthest from nominal, the nominal line and a band."""
    sizes, methods = sorted({score.pairs for score in found}), _methods(found)
    if not sizes:
        return None
    figure = Figure(figsize=(1 + 3.1 * len(sizes), 3.4), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0], sizes, strict=True):
        tests = min(score.tests for score in found)
        low, high = (stats.binom.ppf(q, tests, 0.8) / tests for q in (0.025, 0.975))
        axes.axhspan(low, high, color="#DDDDDD", lw=0)
        axes.axhline(0.8, color="#888888", lw=0.8)
        for i, method in enumerate(methods):
            own = [s.coverage_80 for s in found if s.method == method and s.pairs == size]
            values = [max(coverage, key=lambda value: abs(value - 0.8)) for coverage in own]
            spread = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(len(values))
            axes.plot(i + spread, np.sort(values), ".", color=_color(method), ms=5)
        axes.set_xticks(range(len(methods)), methods, rotation=60, ha="right")
        axes.set(title=f"{size} pairs", ylim=(0, 1.02))
        _tidy(axes)
    figure.axes[0].set_ylabel("coverage of 80 % intervals")
    return figure


def cost_plot(found: Sequence[Score]) -> Figure | None:
    """Geometric mean of the ratio against the median fit time."""
    if not found:
        return None
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for method in _methods(found):
        own = [score for score in found if score.method == method]
        seconds, ratio = np.median([s.seconds for s in own]), np.exp(np.mean([math.log(s.ratio) for s in own]))
        axes.plot(max(float(seconds), 1e-2), ratio, "o", color=_color(method))
        axes.annotate(
            method, (max(float(seconds), 1e-2), float(ratio)), textcoords="offset points", xytext=(6, 3), fontsize=8
        )
    axes.set(xscale="log", yscale="log", xlabel="seconds of a fit, median", ylabel="ratio to the best, geometric mean")
    for which in ("major", "minor"):
        axes.tick_params(axis="y", which=which, labelsize=8)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    _tidy(axes)
    return figure


def _color(method: str) -> str:
    return COLORS.get(method, FALLBACK)


def as_json(results: Results) -> str:
    """All scores as JSON."""
    rows = [asdict(score) for score in scores(results)]
    known = [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]
    return json.dumps(known, indent=1, allow_nan=False)
