"""Tables: ours, with the paper's numbers beside them where it prints any."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from fmcpe.bench import paper
from fmcpe.bench.clock import PARTS
from fmcpe.bench.plan import PRESETS
from fmcpe.bench.results import METRICS, Results, number, spread
from fmcpe.bench.table import Table


def metric_table(results: Results, experiment: str, metric: str) -> Table:
    """Methods as rows, tasks and sizes as columns, mean ± deviation over calibration sets."""
    name, space = METRICS[metric]
    columns = [(task, size) for task in results.tasks(experiment) for size in results.sizes(experiment)]
    rows = []
    for method in results.methods(experiment):
        cells = [spread(results.values(experiment, task, method, size, metric)) for task, size in columns]
        if any(cells):
            rows.append([method, *cells])
    header = ["method", *(f"{task}, {size}" for task, size in columns)]
    sets = len({row.unit.set for row in results.done(experiment)})
    return Table(
        f"{experiment}-{metric}", name, header, rows, f"Mean ± std over {sets} calibration sets. Space: {space}."
    )


def sbc_table(results: Results) -> Table:
    """How far each method is from calibrated, per parameter."""
    rows = []
    for task in results.tasks("sbc"):
        for size in results.sizes("sbc"):
            for method in results.methods("sbc", task):
                for row in [r for r in results.select("sbc", task, method, size) if "sbc" in r.metrics][:1]:
                    found = row.metrics["sbc"]
                    for k, name in enumerate(found["names"]):
                        cells = [number(found[key][k], 2) for key in ("p_values", "bias", "scale")]
                        rows.append([task, str(size), method, name, *cells, found["verdicts"][k]])
    header = ["task", "pairs", "method", "parameter", "KS p", "bias", "scale", "verdict"]
    note = "Bias in posterior deviations; scale above 1 is too narrow (∪), below 1 too wide (∩). 1 and 0 are right."
    return Table("sbc", "Simulation-based calibration", header, rows, note)


def independence_table(results: Results) -> Table:
    """The α table: both maps against the x-map alone, the paper's numbers beside ours."""
    rows = []
    for task in results.tasks("independence"):
        alpha = float(task.split("alpha=")[1])
        printed = paper.INDEPENDENCE.get(alpha)
        for i, (variant, method) in enumerate((("full", "fmcpe-paper"), ("T_X only", "fmcpe-paper-x-only"))):
            theirs = "" if printed is None else f"{printed[i][0]:.3f} ± {printed[i][1]:.3f}"
            their_mmd = "" if printed is None else f"{printed[i][2]:.5f} ± {printed[i][3]:.5f}"
            default = method.replace("-paper", "")
            ours, mmd, ours_default = (
                results.values("independence", task, name, None, metric)
                for name, metric in ((method, "joint_c2st"), (method, "joint_mmd2"), (default, "joint_c2st"))
            )
            differs = "" if printed is None else _differs(printed[i][0], printed[i][1], ours)
            rows.append(
                [f"{alpha:g}", variant, theirs, spread(ours), differs, spread(ours_default), their_mmd, spread(mmd)]
            )
        floor = [results.mean("independence", task, "reference", None, m) for m in ("joint_c2st", "joint_mmd2")]
        rows.append([f"{alpha:g}", "reference", "", number(floor[0]), "", number(floor[0]), "", number(floor[1])])
    header = [
        "α",
        "maps",
        "jC2ST, paper",
        "jC2ST, ours",
        "differ",
        "jC2ST, default recipe",
        "jMMD², paper",
        "jMMD², ours",
    ]
    note = (
        'Mean ± std over seeds; "differ": by more than two standard deviations of the difference. Ours: unconstrained θ and y, '
        "standardised, both copies of a y in the same fold, so that the reference scores ½. Paper: "
        f"{paper.SPACE}; plain folds, if it used them, are biased low. Matrices: drawn anew, the paper's are not printed."
    )
    return Table("independence", "Both maps against the x-map alone", header, rows, note)


def _differs(mean: float, std: float, ours: np.ndarray) -> str:
    if not len(ours):
        return ""
    own = float(ours.std(ddof=1)) if len(ours) > 1 else 0.0
    return "yes" if abs(float(ours.mean()) - mean) > 2 * math.hypot(std, own) else "no"


def timing_table(results: Results, what: str) -> Table:
    """Fit or inference times by method, task and size, the paper's in brackets."""
    metric = "fit_seconds" if what == "fit" else "inference_seconds"
    printed: dict[str, Any] = dict(paper.TRAINING if what == "fit" else paper.INFERENCE)
    tasks, sizes = results.tasks("timing"), results.sizes("timing")
    rows, ratios = [], dict[str, list[float]]()
    for size in sizes:
        for method in results.methods("timing"):
            cells = []
            for task in tasks:
                theirs = printed.get(method, {}).get(task)
                at = theirs[paper.SIZES.index(size)] if theirs and size in paper.SIZES else None
                mine = number(results.mean("timing", task, method, size, metric))
                cells.append(mine + (f" [{at:g}]" if at is not None else ""))
                if at is not None and mine:
                    ratios.setdefault(method, []).append(float(mine) / at)
            rows.append([str(size), method, *cells])
    number_of = PRESETS[results.presets["timing"]].timed if "timing" in results.presets else 5000
    extra = "" if what == "fit" else f" {number_of} observations, one draw each (the paper: 5000)."
    note = f"Seconds, one CPU thread; in brackets the paper's, on a GPU (RTX 3060).{extra} The paper's NPE is our dpe."
    if ratios:
        note += (
            " Ours over the paper's, median: " + ", ".join(f"{m} {np.median(r):.2g}" for m, r in ratios.items()) + "."
        )
    return Table(f"timing-{what}", f"{what.capitalize()} time", ["pairs", "method", *tasks], rows, note)


def breakdown_table(results: Results) -> Table:
    """Where the time of a fit goes."""
    rows = []
    for task in results.tasks("timing"):
        for method in ("fmcpe-paper", "fmcpe"):
            for part in PARTS:
                cells = []
                for size in results.sizes("timing"):
                    units = results.select("timing", task, method, size)
                    mine = number(units[0].metrics["parts"][part]) if units else ""
                    printed = paper.BREAKDOWN.get(task, {}).get(part) if method == "fmcpe-paper" else None
                    at = printed[paper.SIZES.index(size)] if printed and size in paper.SIZES else None
                    cells.append(mine + (f" [{at:g}]" if at is not None else ""))
                rows.append([task, method, part, *cells])
    header = ["task", "method", "part", *(f"{size} pairs" for size in results.sizes("timing"))]
    note = "Seconds of the fit, one CPU thread; in brackets the paper's, on a GPU, which has three parts."
    return Table("timing-breakdown", "Where the time of a fit goes", header, rows, note)


def sensitivity_table(results: Results, task: str) -> Table:
    """Learning rate × clipping, the paper's numbers beside ours."""
    grid = sorted(
        {(dict(r.unit.recipe)["learning_rate"], dict(r.unit.recipe)["clip"]) for r in _grid_rows(results, task)}
    )
    printed = paper.SENSITIVITY.get(task)
    rows, both = [], []
    for rate, clip in grid:
        cells = [
            spread(results.values("sensitivity", task, "fmcpe-paper", None, metric, learning_rate=rate, clip=clip))
            for metric in ("joint_w2", "joint_mmd2")
        ]
        label = None if clip > 1e6 else clip
        theirs = ["", ""]
        if printed and rate in paper.RATES and label in paper.CLIPS:
            w2, w2_std, mmd, mmd_std = printed[paper.RATES.index(rate)][paper.CLIPS.index(label)]
            theirs = [f"({w2} ± {w2_std})e-3", f"({mmd} ± {mmd_std})e-4"]
            mean = results.mean("sensitivity", task, "fmcpe-paper", None, "joint_w2", learning_rate=rate, clip=clip)
            both.append((w2, mean))
        rows.append([f"{rate:g}", "none" if label is None else f"{label:g}", theirs[0], cells[0], theirs[1], cells[1]])
    floor = [results.mean("sensitivity", task, "reference", None, metric) for metric in ("joint_w2", "joint_mmd2")]
    if any(map(math.isfinite, floor)):
        rows.append(["reference", "", "", number(floor[0]), "", number(floor[1])])
    header = ["learning rate", "clipping", "jW2, paper", "jW2, ours", "jMMD², paper", "jMMD², ours"]
    note = (
        f"Mean ± std over seeds. Ours: unconstrained θ and y, standardised. Paper: {paper.SPACE}; see the note above."
    )
    if len(both) > 2:
        order = stats.spearmanr(*zip(*both, strict=True)).statistic
        note += f" The order of the settings by jW2 agrees with the paper's to a rank correlation of {order:.2f} (1: the same)."
    return Table(f"sensitivity-{task}", f"Sensitivity on {task}", header, rows, note)


def _grid_rows(results: Results, task: str) -> list:
    return results.select("sensitivity", task, "fmcpe-paper", None)
