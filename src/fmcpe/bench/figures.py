"""The paper's figures, from a run directory. Each function returns None if there is nothing to plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fmcpe.bench.claims import VARIANTS
from fmcpe.bench.clock import PARTS
from fmcpe.bench.plan import WITHOUT_PAIRS
from fmcpe.bench.results import METRICS, Results, each_observation
from fmcpe.bench.units import titled
from fmcpe.diagnostics import SBCResult
from fmcpe.diagnostics.plots import corner, rank_histograms

COLORS = {
    "npe": "#999999", "npe-randomised": "#666666",
    "dpe": "#E69F00", "mf-npe": "#009E73", "rope": "#CC79A7", "nnpe": "#8C6D31", "j-npe": "#56B4E9",
    "frisbi": "#AA4499", "rnpe": "#B5A642", "rsnl": "#44AA99", "npe-rs": "#882255",
    "fmcpe-paper": "#D55E00", "fmcpe": "#0072B2", "reference": "#000000",
    "fmcpe-paper-sequential": "#E69F00", "fmcpe-paper-x-only": "#009E73", "fmcpe-paper-theta-only": "#CC79A7",
}  # fmt: skip
"""The colour-blind-safe palette of Okabe and Ito; a method has the same colour in every figure."""


PAPERS_OWN = {"joint_w2": "w2", "joint_c2st": "c2st"}
"""On `gaussian`, figure 2 of the paper shows posterior-level metrics in place of the joint ones."""


def box_plots(
    results: Results,
    experiment: str,
    metrics: Sequence[str],
    methods: Sequence[str] | None = None,
    *,
    as_figure_2: bool = False,
    over_observations: bool = False,
) -> Figure | None:
    """Box plots over calibration sets (quartiles, whiskers at the extremes): metrics as rows, tasks as columns.

    Methods without pairs and the reference posterior (the floor) are horizontal lines.

    Args:
        results: The run.
        experiment: The experiment.
        metrics: Metrics.
        methods: Methods; all of them if None.
        as_figure_2: On `gaussian`, show C2ST and W2 to the exact posterior in place of the joint ones, as the paper does.
        over_observations: Boxes over the observations that have a reference posterior, each averaged over calibration sets.
    """
    tasks, sizes = results.tasks(experiment, done=True), results.sizes(experiment)
    known = [m for m in results.methods(experiment, done=True) if methods is None or m in methods]
    boxed = [m for m in known if m not in WITHOUT_PAIRS]
    shown = [metric for metric in metrics if any(_any(results, experiment, t, m, metric) for t in tasks for m in known)]
    if over_observations:
        tasks = [task for task in tasks if any(_any(results, experiment, task, m, x) for m in known for x in shown)]
    if not tasks or not sizes or not shown:
        return None
    figure = Figure(figsize=(1.2 + 3.3 * len(tasks), 0.9 + 2.3 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), len(tasks), squeeze=False, sharex=True)
    for row, joint in enumerate(shown):
        for column, task in enumerate(tasks):
            axes = grid[row, column]
            metric = PAPERS_OWN.get(joint, joint) if as_figure_2 and task == "gaussian" else joint
            _boxes(axes, results, experiment, task, metric, sizes, known, boxed, over_observations)
            if row == 0:
                axes.set_title(titled(task), fontweight="bold", fontsize=11)
            if row == len(shown) - 1:
                axes.set_xlabel("calibration pairs")
            if column == 0 or metric != joint or (as_figure_2 and tasks[column - 1] == "gaussian"):
                axes.set_ylabel(_short(metric), fontsize=9)
    handles = [
        Patch(color=COLORS[m], label=m + (" (no pairs)" if "npe" in m and m in WITHOUT_PAIRS else "")) for m in known
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 2 * len(tasks)), frameon=False)
    return figure


def _boxes(
    axes: Axes, results: Results, experiment: str, task: str, metric: str, sizes: Sequence[int], known: Sequence[str],
    boxed: Sequence[str], over_observations: bool = False,
) -> None:  # fmt: skip
    width = 0.8 / max(1, len(boxed))
    for method in known:
        if method not in boxed:
            value = results.mean(experiment, task, method, None, metric)
            if np.isfinite(value):
                style = {"reference": "--", "npe": "-.", "npe-randomised": (0, (1, 1)), "nnpe": ":"}.get(
                    method, (0, (3, 1, 1, 1, 1, 1))
                )
                axes.axhline(value, color=COLORS[method], ls=style, lw=1.2, zorder=0)
            continue
        values = [results.values(experiment, task, method, size, metric) for size in sizes]
        if over_observations:
            values = [_by_observation(results, experiment, task, method, size, metric) for size in sizes]
        at = [i + (boxed.index(method) - (len(boxed) - 1) / 2) * width for i, v in enumerate(values) if len(v)]
        values = [v for v in values if len(v)]
        if not values:
            continue
        # matplotlib's box plots create eight artists per box, too many for hundreds of boxes
        low, middle, high = (np.array([np.quantile(v, q) for v in values]) for q in (0.25, 0.5, 0.75))
        color = COLORS[method]
        axes.bar(at, high - low, 0.85 * width, low, color=color, alpha=0.45, lw=0)
        axes.vlines(at, [v.min() for v in values], [v.max() for v in values], color=color, lw=1)
        axes.hlines(middle, np.array(at) - 0.42 * width, np.array(at) + 0.42 * width, color=color, lw=1.8)
        points = np.concatenate([np.full(len(v), x) for v, x in zip(values, at, strict=True)])
        axes.plot(points, np.concatenate(values), ".", color=color, ms=3.5)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    axes.use_sticky_edges = False
    axes.margins(y=0.08)
    if metric in ("c2st", "joint_c2st"):
        axes.axhline(0.5, color="#BBBBBB", lw=0.8, zorder=0)
    if metric == "coverage_90":
        axes.axhline(0.9, color="#BBBBBB", lw=0.8, zorder=0)
    elif metric in ("mse", "w2") and axes.get_ylim()[0] > 0 and axes.get_ylim()[1] > 20 * axes.get_ylim()[0]:
        axes.set_yscale("log")
    _tidy(axes)


def _by_observation(results: Results, experiment: str, task: str, method: str, size: int, metric: str) -> np.ndarray:
    """A metric per observation, averaged over calibration sets."""
    found = [each_observation(row, metric) for row in results.select(experiment, task, method, size)]
    found = [values for values in found if len(values)]
    return np.mean(found, axis=0) if found else np.empty(0)


def corners(results: Results, task: str, size: int, methods: Sequence[str]) -> Figure | None:
    """Corner plot of several methods for the first test observation and calibration set."""
    draws, truth, names, bounds = {}, None, None, None
    for method in methods:
        rows = [row for row in results.select("main", task, method, size) if row.unit.set == 0]
        arrays = results.arrays(rows[0].unit) if rows else None
        if arrays is not None and "draws" in arrays:
            draws[method], truth, names = arrays["draws"], arrays["theta"], rows[0].metrics["theta_names"]
            bounds = rows[0].metrics.get("theta_bounds")  # runs of earlier versions have none
    if not draws or truth is None:
        return None
    return corner(draws, truth, names, colors=[COLORS[method] for method in draws], bounds=bounds)


def ranks(results: Results, task: str, size: int, methods: Sequence[str]) -> Figure | None:
    """Rank histograms, methods as columns."""
    found = {}
    for method in methods:
        for row in [r for r in results.select("sbc", task, method, size) if "sbc" in r.metrics][:1]:
            arrays, sbc = results.arrays(row.unit), row.metrics["sbc"]
            if arrays is not None:
                found[method] = _sbc_result(arrays["ranks"], sbc)
    return rank_histograms(found) if found else None


def _sbc_result(counted: np.ndarray, sbc: dict[str, Any]) -> SBCResult:
    low, high = sbc["band"]
    return SBCResult(
        torch.from_numpy(counted), sbc["num_samples"], torch.tensor(sbc["counts"]), (low, high),
        torch.tensor(sbc["p_values"]), torch.tensor(sbc["bias"]), torch.tensor(sbc["scale"]), tuple(sbc["verdicts"]),
        tuple(sbc["names"]), torch.tensor(sbc.get("statistics", [])),
    )  # fmt: skip


def lines(results: Results, experiment: str, metrics: Sequence[str]) -> Figure | None:
    """Mean ± standard deviation over calibration sets by number of pairs: metrics as columns, tasks as rows."""
    tasks, sizes = results.tasks(experiment, done=True), results.sizes(experiment, done=True)
    methods = results.methods(experiment, done=True)
    if not tasks or not sizes:
        return None
    figure = Figure(figsize=(1 + 3.4 * len(metrics), 0.8 + 2.5 * len(tasks)), layout="constrained")
    grid = figure.subplots(len(tasks), len(metrics), squeeze=False)
    for row, task in enumerate(tasks):
        for column, metric in enumerate(metrics):
            axes = grid[row, column]
            for method in methods:
                values = [results.values(experiment, task, method, size, metric) for size in sizes]
                if not any(len(v) for v in values):
                    continue
                mean = np.array([v.mean() if len(v) else np.nan for v in values])
                std = np.array([v.std(ddof=1) if len(v) > 1 else 0.0 for v in values])
                style = {"reference": "--", "npe": "-."}.get(method, "-")
                marker = "" if method in ("reference", "npe") else "o"
                axes.plot(sizes, mean, style, marker=marker, color=COLORS[method], lw=1.6, ms=4, label=method)
                axes.fill_between(sizes, mean - std, mean + std, color=COLORS[method], alpha=0.15, lw=0)
            axes.set_xscale("log")
            axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            axes.minorticks_off()
            axes.set_title(f"{titled(task)}: {METRICS[metric][0]}", fontsize=10)
            _tidy(axes)
            if row == len(tasks) - 1:
                axes.set_xlabel("calibration pairs")
    handles = [Patch(color=COLORS[method], label=method) for method in methods]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), frameon=False)
    return figure


def sensitivity(results: Results, task: str) -> Figure | None:
    """Joint W2 and MMD² by learning rate, one line per clipping threshold."""
    rows = results.select("sensitivity", task, "fmcpe-paper", None)
    rates, clips = (sorted({dict(row.unit.recipe)[name] for row in rows}) for name in ("learning_rate", "clip"))
    if not rows:
        return None
    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), ("joint_w2", "joint_mmd2_paired"), strict=True):
        for k, clip in enumerate(clips):
            values = [
                results.values("sensitivity", task, "fmcpe-paper", None, metric, learning_rate=rate, clip=clip)
                for rate in rates
            ]
            mean = [v.mean() if len(v) else np.nan for v in values]
            color = list(COLORS.values())[(1, 2, 7, 6)[k % 4]]
            axes.plot(rates, mean, marker="osD^"[k % 4], color=color, label=f"clip {'none' if clip > 1e6 else clip}")
        floor = results.mean("sensitivity", task, "reference", None, metric)
        if np.isfinite(floor):
            axes.axhline(floor, color="black", ls="--", lw=1, label="reference")
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set(xlabel="learning rate", title=METRICS[metric][0])
        _tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    return figure


def breakdown(results: Results) -> Figure | None:
    """Fit time by part, one bar per recipe, task and size."""
    tasks, sizes = results.tasks("timing", done=True), results.sizes("timing")
    bars = {
        (task, size, method): results.select("timing", task, method, size)
        for task in tasks for size in sizes for method in VARIANTS
    }  # fmt: skip
    if not any(bars.values()):
        return None
    colors = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#BBBBBB")
    figure = Figure(figsize=(1 + 3.3 * len(tasks), 3.4), layout="constrained")
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks), squeeze=False)[0]), tasks, strict=True):
        for i, size in enumerate(sizes):
            for k, method in enumerate(VARIANTS):
                bottom, at = 0.0, i + 0.42 * (k - 0.5)
                for row in bars[task, size, method][:1]:
                    for part, color in zip(PARTS, colors, strict=True):
                        axes.bar(at, row.metrics["parts"].get(part, 0.0), 0.36, bottom, color=color, ec="white", lw=0.4)
                        bottom += row.metrics["parts"].get(part, 0.0)
                    text = {"ha": "center", "va": "bottom", "fontsize": 7, "rotation": 90}
                    axes.text(at, bottom, " paper" if "paper" in method else " default", **text)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set(title=titled(task), xlabel="calibration pairs")
        axes.margins(y=0.18)
        _tidy(axes)
    figure.axes[0].set_ylabel("seconds of the fit")
    handles = [Patch(color=color, label=part) for part, color in zip(PARTS, colors, strict=True)]
    figure.legend(handles=handles, loc="outside upper center", ncols=7, frameon=False)
    return figure


def _short(metric: str) -> str:
    return METRICS[metric][0].replace(" to the reference posterior", " to reference").split(", mean over")[0]


def _any(results: Results, experiment: str, task: str, method: str, metric: str) -> bool:
    return bool(len(results.values(experiment, task, method, None, metric)))


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
