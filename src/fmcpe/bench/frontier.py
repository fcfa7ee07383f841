"""The default recipe compared with its targets, with every other method, and in time with the paper's recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fmcpe.bench import paper
from fmcpe.bench.results import Results, missing, number
from fmcpe.bench.table import Table
from fmcpe.bench.tables import budgets, sets_note, so_far
from fmcpe.bench.units import titled

Range = tuple[float | None, float | None]

TARGETS: dict[tuple[str, str], tuple[Range, ...]] = {  # (task, metric) -> by paper.SIZES, lowest and highest target
    ("gaussian", "c2st"): ((None, 0.97), (None, 0.68), (None, 0.57), (None, 0.53)),
    ("gaussian", "coverage_90"): ((0.80, None), (0.86, 0.95), (0.87, 0.93), (0.88, 0.92)),
    ("pendulum", "energy"): ((None, 0.55), (None, 0.40), (None, 0.28), (None, 0.18)),
    ("pendulum", "coverage_80"): ((0.70, None), (0.72, 0.88), (0.74, 0.86), (0.75, 0.85)),
}
EACH_PARAMETER = (("pendulum", "coverage_80"),)
"""Targets that every parameter must meet; for other targets, the mean over parameters counts."""

SHARE = (0.9, 0.9, 0.9, 1.0)
"""Target on the tunnels, by paper.SIZES: largest ratio of the energy score to the best of RIVALS."""
RECIPES = ("fmcpe", "fmcpe-paper")
RIVALS = ("dpe", "mf-npe", "rope", "fmcpe-paper")


def frontier_table(results: Results) -> Table:
    """Accuracy and coverage of the default recipe, by task and size."""
    rows = []
    for task in results.tasks("frontier"):
        for size in results.sizes("frontier"):
            for metric in ("energy", "c2st", "coverage_80", "coverage_90"):
                mine = results.values("frontier", task, "fmcpe", size, metric)
                if len(mine):
                    rows.append([titled(task), str(size), metric, *_judged(results, task, size, metric, mine)])
            state = missing(results.asked("frontier", task, "fmcpe", size))
            if state and not results.select("frontier", task, "fmcpe", size):
                rows.append([titled(task), str(size), "all", state, "", "", "", "", "", ""])
    header = [
        "task",
        "pairs",
        "metric",
        "fmcpe",
        "target",
        "met",
        "best other",
        "as good",
        "fmcpe-paper",
        "reference",
    ]
    note = so_far(results, "frontier") + (
        f"fmcpe: the default recipe. {sets_note(results, 'frontier')} "
        "Energy score in unconstrained θ, standardised by the prior; lower is better. "
        '"As good": within one standard error of the best other method, including ablations. '
        f"{budgets(results, 'frontier')}"
    )
    return Table("frontier", "Accuracy of the default recipe", header, rows, note)


def _judged(results: Results, task: str, size: int, metric: str, mine: np.ndarray) -> list[str]:
    others = {
        method: results.mean("frontier", task, method, size, metric)
        for method in results.methods("frontier", task)
        if method not in ("fmcpe", "reference")
    }
    known = {method: value for method, value in others.items() if math.isfinite(value)}
    column = paper.SIZES.index(size) if size in paper.SIZES else None
    shown, values = results.cell("frontier", task, "fmcpe", size, metric), [float(mine.mean())]
    needed = [
        row for method in results.methods("frontier", task) for row in results.asked("frontier", task, method, size)
    ]
    when = ", so far" if any(row.status != "done" for row in needed) else ""
    if (task, metric) in EACH_PARAMETER:
        values = _each(results, task, size, metric)
        shown = ", ".join(number(value, 2) for value in values)
    asked = met = best = as_good = ""
    rivals = {method: known[method] for method in RIVALS if method in known}
    if column is not None and (task, metric) in TARGETS:
        low, high = TARGETS[task, metric][column]
        asked = f"≤ {high}" if low is None else f"≥ {low}" if high is None else f"{low} to {high}"
        met = _yes(all((low is None or v >= low) and (high is None or v <= high) for v in values)) + when
    elif column is not None and metric == "energy" and task.split(maxsplit=1)[0].endswith("tunnel") and rivals:
        rival = min(rivals, key=lambda name: rivals[name])
        asked = f"≤ {SHARE[column]} × {number(rivals[rival])} ({rival})"
        met = _yes(values[0] <= SHARE[column] * rivals[rival]) + when
    if known and not metric.startswith("coverage"):
        method = min(known, key=lambda name: known[name])
        error = mine.std(ddof=1) / math.sqrt(len(mine)) if len(mine) > 1 else 0.0
        best, as_good = f"{number(known[method])} ({method})", _yes(values[0] <= known[method] + error) + when
    beside = [results.cell("frontier", task, method, size, metric) for method in ("fmcpe-paper", "reference")]
    return [shown, asked, met, best, as_good, *beside]


def _each(results: Results, task: str, size: int, metric: str) -> list[float]:
    """Coverage of each parameter, averaged over calibration sets."""
    level = f"{int(metric[9:]) / 100:g}"
    found = [row.metrics["coverage"][level] for row in results.select("frontier", task, "fmcpe", size)]
    return np.mean(found, axis=0).tolist()


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def speed_table(results: Results) -> Table:
    """Times of the default recipe relative to the paper's recipe."""
    rows = []
    for task in results.tasks("speed"):
        for size in results.sizes("speed"):
            pair = [results.select("speed", task, method, size) for method in RECIPES]
            if all(pair):
                mine, theirs = (units[0].metrics for units in pair)
                rows.append([titled(task), str(size), *_times(mine, theirs)])
            else:
                cells = [results.cell("speed", task, method, size, "fit_seconds") for method in RECIPES]
                rows.append([titled(task), str(size), *cells, "", "", "", "", "", "", ""])
    header = [
        "task", "pairs", "fit, s", "paper's recipe, s", "ratio", "fit / its gradient steps", "fit / the paper's gradient steps",
        "inference, s", "ratio", "1000 draws for one y, ms", "fit time by part",
    ]  # fmt: skip
    note = so_far(results, "speed") + (
        "One CPU thread, both recipes in one run. Ratios above 1: the default recipe is faster. A fit that selects a closed "
        "form takes few gradient steps, so its ratio to them is large. Inference: one draw for each of many observations. "
        f"{budgets(results, 'speed')}"
    )
    return Table("speed", "Speed of the default recipe", header, rows, note)


def _times(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    fit, parts = mine["fit_seconds"], mine["parts"]
    return [
        number(fit),
        number(theirs["fit_seconds"]),
        _ratio(theirs["fit_seconds"], fit),
        _ratio(fit, parts["gradient steps"]),
        _ratio(fit, theirs["parts"]["gradient steps"], digits=2),
        number(mine["inference_seconds"]),
        _ratio(theirs["inference_seconds"], mine["inference_seconds"]),
        number(1000 * mine["one_observation_seconds"]),
        ", ".join(f"{part} {100 * seconds / max(fit, 1e-9):.0f} %" for part, seconds in _largest(parts)),
    ]


def _largest(parts: dict[str, float]) -> Sequence[tuple[str, float]]:
    return sorted(((part, seconds) for part, seconds in parts.items() if seconds > 0), key=lambda item: -item[1])


def _ratio(a: float, b: float, digits: int = 1) -> str:
    return f"{a / b:.{digits}f}" if b > 0 else ""
