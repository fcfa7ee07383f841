"""Plots of posteriors and of their calibration.

Every function returns a `matplotlib.figure.Figure` made without pyplot: no window opens and no global state changes.
Colours are the colour-blind-safe palette of Okabe and Ito; lines also differ in their dashes, for print without colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fmcpe._names import columns_of, with_units
from fmcpe.diagnostics.calibration import CoverageResult, SBCResult
from fmcpe.diagnostics.density import as_bounds, draw_contours, draw_line, limits_of
from fmcpe.diagnostics.draws import central_coverage
from fmcpe.metrics.samples import draws_and_truth, finite

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (12, 3)), (0, (8, 2, 2, 2)))
_GREY = "#D9D9D9"
_BLUE, _ORANGE = COLORS[:2]


def rank_histograms(results: SBCResult | Mapping[str, SBCResult]) -> Figure:
    """Rank histograms with the 95 % band: methods as columns, parameters as rows.

    A bin outside the band is orange. ∪ is too narrow, ∩ too wide, a slope is bias. Bars are cut at four times the
    expected count, with the count written on them, so that one bad method does not flatten the others.
    """
    methods = {"": results} if isinstance(results, SBCResult) else dict(results)
    names = _same_names(methods)
    figure = Figure(figsize=(0.9 + 2.2 * len(methods), 0.8 + 1.6 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), len(methods), squeeze=False, sharex=True, sharey=True)
    tops = [min(float(r.counts.max()), 4 * len(r.ranks) / len(r.counts)) for r in methods.values()]
    for column, (method, result) in enumerate(methods.items()):
        (low, high), bins = result.band, len(result.counts)
        edges = np.linspace(0, 1, bins + 1)
        grid[0, column].set_title(method, fontweight="bold", fontsize=11)
        grid[-1, column].set_xlabel("rank of the truth")
        for row, name in enumerate(names):
            axes: Axes = grid[row, column]
            counts = result.counts[:, row].numpy()
            colors = np.where((counts < low) | (counts > high), _ORANGE, _BLUE)
            axes.axhspan(low, high, color=_GREY, lw=0)
            axes.axhline(len(result.ranks) / bins, color="black", lw=0.8, ls="--")
            axes.hlines([low, high], 0, 1, color="black", lw=0.6, ls=":")  # the band's edges, where bars hide it
            axes.bar(edges[:-1], counts.clip(max=max(tops)), 1 / bins, align="edge", color=colors, ec="white", lw=0.5)
            for k in np.flatnonzero(counts > max(tops)):
                near: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "top", "fontsize": 6, "color": "white"}
                axes.text((k + 0.5) / bins, 0.97 * max(tops), str(counts[k]), **near)
            verdict = "\n".join(part.split(":")[0] for part in result.verdicts[row].split("; "))
            axes.text(0.5, 0.98, verdict, transform=axes.transAxes, ha="center", va="top", fontsize=8)
            axes.set(xlim=(0, 1), ylim=(0, 1.4 * max(tops)))
            axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            if column == 0:
                axes.set_ylabel(name)
            _tidy(axes)
    figure.supylabel("observations per bin", fontsize=9)
    return figure


def coverage_curves(results: CoverageResult | Mapping[str, CoverageResult]) -> Figure:
    """Coverage against nominal level, a panel per parameter and one for the joint region.

    Below the diagonal a method is over-confident. Use many levels: `levels=torch.linspace(0.05, 0.95, 19)`.
    """
    methods = {"": results} if isinstance(results, CoverageResult) else dict(results)
    _same_names(methods)
    first = next(iter(methods.values()))
    panels = list(first.columns())
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    legend_height = 0.35 if len(methods) > 1 else 0.0
    figure = Figure(figsize=(0.6 + 2.4 * columns, 0.5 + 2.5 * rows + legend_height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for index, panel in enumerate(panels):
        axes = grid.flat[index]
        axes.fill_between(first.levels, first.band[:, 0], first.band[:, 1], color=_GREY, lw=0)
        axes.plot([0, 1], [0, 1], color="black", lw=0.8)
        for k, result in enumerate(methods.values()):
            curve = result.columns().get(panel)
            if curve is not None:
                style = {"color": COLORS[k % len(COLORS)], "ls": _DASHES[k % len(_DASHES)]}
                axes.plot(result.levels, curve, lw=1.8, clip_on=False, **style)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=panel)
        axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        if index == 0:
            # on white, above the curves: a bad method passes here
            words: dict[str, Any] = {"fontsize": 8, "color": "#555555", "style": "italic", "zorder": 5}
            words["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
            axes.text(0.96, 0.06, "over-confident", ha="right", **words)
            axes.text(0.04, 0.9, "under-confident", **words)
        if index % columns == 0:
            axes.set_ylabel("truths inside")
        if index + columns >= len(panels):
            axes.set_xlabel("nominal level")
            axes.tick_params(labelbottom=True)
        _tidy(axes)
    _legend(figure, list(methods))
    return figure


def corner(
    posteriors: Any,
    truth: Any = None,
    names: Sequence[str] | None = None,
    levels: Sequence[float] = (0.5, 0.9),
    colors: Sequence[str] | None = None,
    bounds: Any = None,
) -> Figure:
    """Kernel-density corner plot of several posteriors for one observation, with the truth.

    Args:
        posteriors: Draws (S, p), an array or a DataFrame, or a mapping from method names to draws. Densities on the diagonal
            have the same height.
        truth: True parameters, (p,).
        names: Names of the parameters; those of the columns of a DataFrame, with its units, by default.
        levels: Mass inside the contours; more than two are hard to read.
        colors: One colour per method, in place of the default palette.
        bounds: The prior, or (low, high) for each parameter: densities are reflected there (`fmcpe.diagnostics.density`).
    """
    given = posteriors if isinstance(posteriors, Mapping) else {"": posteriors}
    first = next(iter(given.values()))
    units = getattr(first, "attrs", {}).get("units", {})  # as `CorrectedPosterior.to_dataframe` keeps them
    if names is None and (found := columns_of(first)) is not None:
        names = with_units(found, [units.get(name, "") for name in found])
    methods = {name: finite(s, "posteriors", "(S, p)").numpy() for name, s in given.items()}
    p = next(iter(methods.values())).shape[1]
    labels = list(names) if names is not None else [f"θ{k + 1}" for k in range(p)]
    star = None if truth is None else finite(truth, "truth").reshape(-1).numpy()
    if {p, len(labels), p if star is None else len(star)} != {p} or any(s.shape[1] != p for s in methods.values()):
        shapes = [s.shape for s in methods.values()]
        raise ValueError(
            f"Expected {p} parameters in each, got draws {shapes}, names {labels}, truth {star}. Pass names=None, truth=None."
        )
    palette = tuple(colors or COLORS)
    size = max(3.2, 1.0 + 1.9 * p)
    figure = Figure(figsize=(size, size), layout="constrained")
    grid = figure.subplots(p, p, squeeze=False)
    box = as_bounds(bounds, p)
    limits = [limits_of([s[:, k] for s in methods.values()], None if star is None else star[k]) for k in range(p)]
    for i in range(p):
        for j in range(p):
            axes: Axes = grid[i, j]
            if j > i:
                axes.set_axis_off()
                continue
            for k, draws in enumerate(methods.values()):
                color, dash = palette[k % len(palette)], _DASHES[k % len(_DASHES)]
                if i == j:
                    draw_line(axes, draws[:, i], limits[i], box[i], color, dash)
                else:
                    pair = [limits[j], limits[i]], [box[j], box[i]]
                    draw_contours(axes, draws[:, [j, i]], *pair, levels, color, dash)
            if star is not None:
                axes.axvline(star[j], color="black", lw=0.9)
                if i != j:
                    axes.axhline(star[i], color="black", lw=0.9)
                    axes.plot(star[j], star[i], "s", color="black", ms=4)
            axes.set_xlim(limits[j])
            if i == j:
                axes.set_ylim(bottom=0)
                axes.set_yticks([])
            else:
                axes.set_ylim(limits[i])
            axes.locator_params(axis="x", nbins=3)
            if i != j:
                axes.locator_params(axis="y", nbins=3)
            axes.tick_params(labelbottom=i == p - 1, labelleft=j == 0 and i > 0)
            if i == p - 1:
                axes.set_xlabel(labels[j])
            if j == 0 and i > 0:
                axes.set_ylabel(labels[i])
            _tidy(axes)
    _legend(figure, list(methods), truth=star is not None, palette=palette)
    return figure


def before_after(
    before: Any,
    after: Any,
    theta: Any,
    names: Sequence[str] | None = None,
    level: float = 0.8,
    max_shown: int = 40,
    titles: tuple[str, str] = ("Before correction", "After correction"),
) -> Figure:
    """Estimated against true parameters, with intervals: uncorrected on the left, corrected on the right.

    An interval that misses the truth is orange. The titles count all observations; `max_shown` of them are plotted,
    evenly spaced by the rank of the truth.

    Args:
        before: Draws of the uncorrected posterior, (S, B, p).
        after: Draws of the corrected posterior, (S, B, p).
        theta: True parameters, (B, p).
        names: Names of the parameters.
        level: Level of the intervals.
        max_shown: Number of observations plotted.
        titles: Titles of the two columns.
    """
    truth = draws_and_truth(before, theta)[1]
    n, p = truth.shape
    labels = list(names) if names is not None else [f"θ{k + 1}" for k in range(p)]
    figure = Figure(figsize=(8.4, 0.7 + 3.4 * p), layout="constrained")
    grid = figure.subplots(p, 2, squeeze=False, sharex="row", sharey="row")
    tails = torch.tensor([(1 - level) / 2, 0.5, (1 + level) / 2], dtype=torch.float64)
    for column, samples in enumerate((before, after)):
        lows, middles, highs = torch.quantile(draws_and_truth(samples, theta)[0], tails, dim=0)
        inside = (lows <= truth) & (truth <= highs)
        share = 100 * central_coverage(samples, theta, level)
        for k in range(p):
            axes: Axes = grid[k, column]
            shown = truth[:, k].argsort()[torch.linspace(0, n - 1, min(n, max_shown)).round().long()]
            for hit, color, marker in ((True, _BLUE, "o"), (False, _ORANGE, "X")):
                rows = shown[inside[shown, k] == hit]
                x = truth[rows, k]
                axes.vlines(x, lows[rows, k], highs[rows, k], color=color, lw=1.6, alpha=0.75)
                axes.plot(x, middles[rows, k], marker, color=color, ms=4.5, mec="white", mew=0.5)
            ends = (float(truth[:, k].min()), float(truth[:, k].max()))
            axes.plot(ends, ends, color="black", lw=1, zorder=0)
            holds = f"{share[k]:.0f} % of the {100 * level:.0f} % intervals hold the truth"
            axes.set_title(f"{titles[column]}\n{holds}", fontsize=10)
            axes.set_xlabel(f"true {labels[k]}")
            if column == 0:
                axes.set_ylabel(f"estimated {labels[k]}")
            _tidy(axes)
    handles = [
        Line2D([], [], color="black", lw=1, label="estimate = truth"),
        Line2D([], [], color=_BLUE, lw=1.6, marker="o", ms=5, label="interval holds the truth"),
        Line2D([], [], color=_ORANGE, lw=1.6, marker="X", ms=5, label="interval misses the truth"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _same_names(methods: Mapping[str, Any]) -> tuple[str, ...]:
    names = {tuple(result.names) for result in methods.values()}
    if len(names) != 1:
        raise ValueError(
            f"Expected one set of parameter names, got {sorted(names)}. Pass the same names= to every sbc or coverage."
        )
    return names.pop()


def _legend(figure: Figure, methods: list[str], truth: bool = False, palette: Sequence[str] = COLORS) -> None:
    handles = [
        Line2D([], [], color=palette[k % len(palette)], ls=_DASHES[k % len(_DASHES)], lw=1.8, label=name)
        for k, name in enumerate(methods)
        if name
    ]
    if truth:
        handles.append(Line2D([], [], color="black", lw=0.9, marker="s", ms=4, label="truth"))
    if handles:
        # an entry is about 1.4 inches wide, and a longer row would be cut off
        ncols = min(len(handles), max(2, int(figure.get_figwidth() / 1.4)))
        figure.legend(handles=handles, loc="outside upper center", ncols=ncols, frameon=False)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
