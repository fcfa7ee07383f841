"""Figures of docs/guarantees, from the committed tables in docs/results/trust.

    python benchmarks/guarantee_figures.py docs/results/trust docs/images

The in-range figure is drawn by benchmarks/in_range.py, which fits a posterior.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fmcpe.diagnostics.plots import COLORS, _tidy

LABELS = {"uncorrected": "uncorrected", "paper": "paper's recipe", "default": "default recipe"}


def table(path):
    """Rows of a CSV as dictionaries."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def conformal(folder):
    """Point 1: coverage of plain and of conformal intervals against the promise."""
    rows = table(folder / "conformal-split.csv")
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    sizes = sorted({int(row["held_out"]) for row in rows})
    for k, (recipe, label) in enumerate(LABELS.items()):
        mine = [row for row in rows if row["recipe"].startswith(recipe)]
        for i, size in enumerate(sizes):
            part = [row for row in mine if int(row["held_out"]) == size]
            at = i + 0.22 * (k - 1) + np.linspace(-0.07, 0.07, len(part))
            left.scatter(at, [float(row["plain"]) for row in part], s=9, marker="x", color=COLORS[k], lw=0.8)
            left.scatter(
                at, [float(row["coverage"]) for row in part], s=11, color=COLORS[k], label=label if not i else None
            )
    for i, size in enumerate(sizes):
        part = next(row for row in rows if int(row["held_out"]) == size)
        ends = float(part["promise_low"]), float(part["promise_high"])
        left.fill_between([i - 0.4, i + 0.4], *ends, color="#D9D9D9", lw=0, zorder=0)
    left.set(
        xticks=range(len(sizes)),
        xticklabels=sizes,
        xlabel="held-out pairs",
        ylabel="coverage of 90 % intervals",
        ylim=(0, 1.02),
    )
    title = "dots: conformal, crosses: plain, grey: promise"
    left.legend(
        frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, title=title, title_fontsize=8
    )
    units = table(folder / "conformal-cv-units.csv")
    names = list(dict.fromkeys((row["problem"], row["pairs"]) for row in units))
    for k, (problem, pairs) in enumerate(names):
        values = np.array([float(r["coverage_each"]) for r in units if (r["problem"], r["pairs"]) == (problem, pairs)])
        right.scatter(k + np.linspace(-0.25, 0.25, len(values)), values, s=5, color=COLORS[5])
        right.errorbar(
            k, values.mean(), 2 * values.std() / len(values) ** 0.5, color=COLORS[0], marker="o", ms=4, capsize=3
        )
        right.hlines(0.8 - (2 / int(pairs)) ** 0.5, k - 0.35, k + 0.35, color="black", lw=1)
    right.axhline(0.9, color="black", lw=0.8, ls="--")
    ticks = [f"{problem.removeprefix('zoo/').replace('-', chr(10))}\n{pairs} pairs" for problem, pairs in names]
    right.set(xticks=range(len(names)), ylim=(0.4, 1.02), ylabel="coverage of CV+, each set (lines: promise)")
    right.set_xticklabels(ticks, fontsize=7)
    return figure, (left, right)


def calibration(folder):
    """Point 2: how often posteriors are called miscalibrated."""
    rows = table(folder / "calibration.csv")
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["posterior"] for row in rows))
    for k, pairs in enumerate(("50", "200")):
        part = {row["posterior"]: row for row in rows if row["pairs"] == pairs}
        at = np.arange(len(names)) + 0.38 * (k - 0.5)
        alarms = [float(part[name]["alarm"]) for name in names]
        bars = axes.bar(at, alarms, 0.34, color=COLORS[k], label=f"{pairs} pairs")
        axes.bar_label(bars, fmt="%g", fontsize=7)
        named = [np.nan if name == "exact" else float(part[name]["right"]) for name in names]
        axes.scatter(at, named, marker="_", s=90, color="black", zorder=3, label=None if k else "right fault named")
    axes.axhline(5, color="black", lw=0.8, ls=":")
    axes.text(-0.45, 7, "5 %", fontsize=7)
    axes.set(xticks=range(len(names)), ylabel="called miscalibrated, %", ylim=(0, 112))
    axes.set_xticklabels([name.replace(" x ", " × ") for name in names], fontsize=8)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    return figure, (axes,)


def misspecification(folder):
    """Point 4: rejections at 5 %, by half and severity."""
    rows = [row for row in table(folder / "misspecification.csv") if row["half"] != "control"]
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, half in zip(panels, ("development", "reporting"), strict=True):
        for k, severity in enumerate(("none", "mild", "moderate", "severe")):
            for test, dash in (("conditional", "-"), ("mmd", ":")):
                part = [row for row in rows if (row["half"], row["severity"]) == (half, severity)]
                sizes = sorted({int(row["pairs"]) for row in part})
                means = [np.mean([float(row[test]) for row in part if int(row["pairs"]) == size]) for size in sizes]
                label = severity if test == "conditional" else None
                axes.plot(sizes, means, ls=dash, marker="o", ms=3, color=COLORS[k], label=label)
        axes.axhline(0.05, color="black", lw=0.8, ls="--")
        axes.set(xscale="log", xticks=[10, 30, 100], xlabel="pairs", ylim=(0, 1.04))
        axes.set_title(f"{half} half", fontsize=9)
        axes.set_xticklabels(["10", "30", "100"])
        axes.minorticks_off()
    panels[0].set_ylabel("share of rejections at 5 %")
    panels[1].legend(frameon=False, fontsize=8, title="lines: conditional, dots: MMD", title_fontsize=8)
    return figure, panels


def suspects(folder):
    """Point 6: faults that are found, and what they cost a fit."""
    rows, costs = table(folder / "suspects.csv"), table(folder / "robustness.csv")
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    faults = {"y x 10": "one y × 10", "flip": "one sign flip", "swap": "two rows swapped"}
    for k, problem in enumerate(dict.fromkeys(row["problem"] for row in rows)):
        part = {row["fault"]: row for row in rows if row["problem"] == problem}
        at = np.arange(len(faults)) + 0.38 * (k - 0.5)
        label = f"{problem.removeprefix('zoo/')} (false alarms: {float(part['clean']['false']):.2f} per 30)"
        left.bar(at, [100 * float(part[fault]["found"]) for fault in faults], 0.34, color=COLORS[k], label=label)
        cost = {row["fault"]: row for row in costs if row["problem"] == problem}
        right.bar(at, [float(cost[fault]["error"]) for fault in faults], 0.34, color=COLORS[k])
        right.hlines([float(cost["clean"]["error"])] * len(faults), at - 0.17, at + 0.17, color="black", lw=1.5)
    left.axhline(90, color="black", lw=0.8, ls="--")
    left.set(ylabel="found, %", ylim=(0, 140), yticks=range(0, 101, 20))
    left.legend(frameon=False, fontsize=7, loc="upper left")
    right.set(ylabel="error on new pairs\n(lines: without the fault)", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(range(len(faults)), list(faults.values()), fontsize=8)
    return figure, (left, right)


def learning_curve(folder):
    """Point 3: forecasts of the score at twice the pairs against the truth, and what suggested pairs give."""
    rows, designs = table(folder / "learning-curve.csv"), table(folder / "suggest.csv")
    figure = Figure(figsize=(7.2, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for k, half in enumerate(("development", "reporting")):
        part = [row for row in rows if row["half"] == half]
        truth, middle, low, high = (
            np.array([float(row[name]) for row in part]) for name in ("truth", "ratio", "low", "high")
        )
        label = f"{half}: {np.mean((low <= truth) & (truth <= high)):.0%} of {len(part)} inside"
        bars = np.clip([middle - low, high - middle], 0, None)
        left.errorbar(truth, middle, bars, fmt="o", ms=3, lw=0.7, color=COLORS[k], label=label)
    ends = [min(left.get_xlim()[0], left.get_ylim()[0]), max(left.get_xlim()[1], left.get_ylim()[1])]
    left.plot(ends, ends, color="black", lw=0.8)
    left.set(xlabel="score at twice the pairs / score now", ylabel="forecast, with 80 % intervals")
    left.legend(frameon=False, fontsize=8)
    names = list(dict.fromkeys(row["more pairs"] for row in designs if row["more pairs"] != "prior"))
    for k, name in enumerate(names):
        ratios = [float(row["ratio to prior draws"]) for row in designs if row["more pairs"] == name]
        right.scatter(k + np.linspace(-0.15, 0.15, len(ratios)), ratios, s=10, color=COLORS[k])
        right.hlines(np.exp(np.mean(np.log(ratios))), k - 0.25, k + 0.25, color="black", lw=1.5)
    right.axhline(1, color="black", lw=0.8, ls="--")
    right.set(ylabel="score after 20 + 20 pairs /\nthat with prior draws", xlim=(-0.6, len(names) - 0.4))
    right.set_xticks(range(len(names)), names, fontsize=8, rotation=30, ha="right")
    return figure, (left, right)


def main():
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    for draw in (conformal, calibration, learning_curve, misspecification, suspects):
        figure, panels = draw(folder)
        for axes in panels:
            _tidy(axes)
        figure.savefig(target / f"guarantee-{draw.__name__.replace('_', '-')}.png", dpi=110)


if __name__ == "__main__":
    main()
