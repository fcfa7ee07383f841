"""Tables: ours, with the paper's numbers beside them where it prints any.

A table has the rows and columns of the plan. What is not done stands there as "not run" or "failed", and while units are
missing the note begins with how many are done.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from fmcpe.bench import paper
from fmcpe.bench.clock import PARTS
from fmcpe.bench.plan import WITHOUT_PAIRS
from fmcpe.bench.presets import PRESETS
from fmcpe.bench.results import METRICS, Results, missing, number
from fmcpe.bench.table import Table
from fmcpe.bench.units import titled

SOME_EPOCHS = "Where the preset times some epochs of the paper's recipe alone, the others are taken to last as long."


def metric_table(results: Results, experiment: str, metric: str) -> Table:
    """Methods as rows, tasks and sizes as columns, mean ± deviation over calibration sets."""
    name, space = METRICS[metric]
    columns = [(task, size) for task in results.tasks(experiment) for size in results.sizes(experiment)]
    rows = []
    for method in results.methods(experiment):
        cells = [results.cell(experiment, task, method, size, metric) for task, size in columns]
        if any(cells):
            rows.append([method, *cells])
    header = ["method", *(f"{titled(task)}, {size}" for task, size in columns)]
    note = f"{sets_note(results, experiment)} Space: {space}."
    if "mmd2" in metric:
        note += f" {NEGATIVE}" + (f" {PAIRED}" if metric == "joint_mmd2_paired" else "")
    return Table(f"{experiment}-{metric}", name, header, rows, so_far(results, experiment) + note)


NEGATIVE = (
    "MMD² is estimated without bias and so may come out below zero, which the true one never is: a negative value is zero "
    "within the noise of the estimate."
)
PAIRED = (
    "The paper's formula also compares each pair with its own copy, which lowers it by up to 2 over the number of test pairs; "
    "it is joint_mmd2 in the CSV of every number."
)


def so_far(results: Results, experiment: str) -> str:
    """How a note begins while units are missing."""
    done = results.so_far(experiment)
    return f"So far: {done}. " if done else ""


def sets_note(results: Results, experiment: str, sets: str = "calibration sets") -> str:
    """Over how many sets the means are, and which methods need none."""
    numbers = {
        method: len({row.unit.set for row in results.planned(experiment) if row.unit.method == method})
        for method in results.methods(experiment)
    }
    most = max((n for method, n in numbers.items() if method not in WITHOUT_PAIRS), default=1)
    parts = [f"Mean ± std over {most} {sets}" if most > 1 else f"One {sets[:-1]}, no std"]
    single = [method for method in numbers if method in WITHOUT_PAIRS]
    parts += [f"{', '.join(single)}: one fit, without pairs"] if single and most > 1 else []
    return "; ".join(parts) + "."


def sbc_table(results: Results) -> Table:
    """How far each method is from calibrated, per parameter."""
    rows = []
    for task in results.tasks("sbc"):
        for size in results.sizes("sbc"):
            for method in results.methods("sbc", task):
                for row in results.asked("sbc", task, method, size)[:1]:
                    found = row.metrics.get("sbc", {})
                    for k, name in enumerate(found.get("names", [])):
                        cells = [
                            number(found[key][k], 2) if key in found else ""
                            for key in ("statistics", "p_values", "bias", "scale")
                        ]
                        rows.append([titled(task), str(size), method, name, *cells, found["verdicts"][k]])
                    if row.status != "done":
                        rows.append([titled(task), str(size), method, "", "", "", "", "", missing([row])])
    header = ["task", "pairs", "method", "parameter", "KS", "KS p", "bias", "scale", "verdict"]
    note = (
        so_far(results, "sbc")
        + "Bias in posterior deviations; scale above 1 is too narrow (∪), below 1 too wide (∩). 1 and 0 are right."
    )
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
                results.cell("independence", task, name, None, metric)
                for name, metric in ((method, "joint_c2st"), (method, "joint_mmd2_paired"), (default, "joint_c2st"))
            )
            differs = "" if printed is None else _differs(printed[i][0], printed[i][1], results, task, method)
            rows.append([f"{alpha:g}", variant, theirs, ours, differs, ours_default, their_mmd, mmd])
        c2st, mmd = (
            results.cell("independence", task, "reference", None, m) for m in ("joint_c2st", "joint_mmd2_paired")
        )
        rows.append([f"{alpha:g}", "reference", "", c2st, "", c2st, "", mmd])
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
    note = so_far(results, "independence") + (
        f'{sets_note(results, "independence", "seeds")} "differ": by more than two standard deviations of the difference. '
        "Ours: unconstrained θ and y, "
        "standardised, both copies of a y in the same fold, so that the reference scores ½. Paper: "
        f"{paper.SPACE}; plain folds, if it used them, are biased low. Matrices: drawn anew, the paper's are not printed. "
        f"{NEGATIVE} {PAIRED}"
    )
    return Table("independence", "Both maps against the x-map alone", header, rows, note)


def _differs(mean: float, std: float, results: Results, task: str, method: str) -> str:
    ours = results.values("independence", task, method, None, "joint_c2st")
    if not len(ours):
        return ""
    own = float(ours.std(ddof=1)) if len(ours) > 1 else 0.0
    answer = "yes" if abs(float(ours.mean()) - mean) > 2 * math.hypot(std, own) else "no"
    return answer + (", so far" if len(ours) < len(results.asked("independence", task, method, None)) else "")


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
                mine = results.mean("timing", task, method, size, metric)
                shown = results.cell("timing", task, method, size, metric)
                cells.append(shown + (f" [{at:g}]" if at is not None else ""))
                if at is not None and math.isfinite(mine):
                    ratios.setdefault(method, []).append(mine / at)
            rows.append([str(size), method, *cells])
    number_of = PRESETS[results.presets["timing"]].timed if "timing" in results.presets else 5000
    extra = "" if what == "fit" else f" {number_of} observations, one draw each (the paper: 5000)."
    note = so_far(results, "timing")
    note += f"Seconds, one CPU thread; in brackets the paper's, on a GPU (RTX 3060).{extra} The paper's NPE is our dpe."
    note += f" {SOME_EPOCHS}" if what == "fit" else ""
    if ratios:
        note += (
            " Ours over the paper's, median: " + ", ".join(f"{m} {np.median(r):.2g}" for m, r in ratios.items()) + "."
        )
    return Table(f"timing-{what}", f"{what.capitalize()} time", ["pairs", "method", *map(titled, tasks)], rows, note)


def breakdown_table(results: Results) -> Table:
    """Where the time of a fit goes."""
    rows = []
    for task in results.tasks("timing"):
        for method in ("fmcpe-paper", "fmcpe"):
            for part in PARTS:
                cells = []
                for size in results.sizes("timing"):
                    units = results.asked("timing", task, method, size)
                    done = [row for row in units if row.status == "done"]
                    mine = number(done[0].metrics["parts"][part]) if done else missing(units)
                    printed = paper.BREAKDOWN.get(task, {}).get(part) if method == "fmcpe-paper" else None
                    at = printed[paper.SIZES.index(size)] if printed and size in paper.SIZES else None
                    cells.append(mine + (f" [{at:g}]" if at is not None else ""))
                rows.append([titled(task), method, part, *cells])
    header = ["task", "method", "part", *(f"{size} pairs" for size in results.sizes("timing"))]
    note = (
        so_far(results, "timing")
        + f"Seconds of the fit, one CPU thread; in brackets the paper's, on a GPU, which has three parts. {SOME_EPOCHS}"
    )
    return Table("timing-breakdown", "Where the time of a fit goes", header, rows, note)


def sensitivity_table(results: Results, task: str) -> Table:
    """Learning rate × clipping, the paper's numbers beside ours."""
    grid = sorted(
        {
            (dict(row.unit.recipe)["learning_rate"], dict(row.unit.recipe)["clip"])
            for row in results.asked("sensitivity", task, "fmcpe-paper", None)
        }
    )
    printed = paper.SENSITIVITY.get(task)
    rows, both = [], []
    for rate, clip in grid:
        cells = [
            results.cell("sensitivity", task, "fmcpe-paper", None, metric, learning_rate=rate, clip=clip)
            for metric in ("joint_w2", "joint_mmd2_paired")
        ]
        label = None if clip > 1e6 else clip
        theirs = ["", ""]
        if printed and rate in paper.RATES and label in paper.CLIPS:
            w2, w2_std, mmd, mmd_std = printed[paper.RATES.index(rate)][paper.CLIPS.index(label)]
            theirs = [f"({w2} ± {w2_std})e-3", f"({mmd} ± {mmd_std})e-4"]
            mean = results.mean("sensitivity", task, "fmcpe-paper", None, "joint_w2", learning_rate=rate, clip=clip)
            both += [(w2, mean)] if math.isfinite(mean) else []
        rows.append([f"{rate:g}", "none" if label is None else f"{label:g}", theirs[0], cells[0], theirs[1], cells[1]])
    floor = [
        results.cell("sensitivity", task, "reference", None, metric) for metric in ("joint_w2", "joint_mmd2_paired")
    ]
    if any(floor):
        rows.append(["reference", "", "", floor[0], "", floor[1]])
    header = ["learning rate", "clipping", "jW2, paper", "jW2, ours", "jMMD², paper", "jMMD², ours"]
    note = so_far(results, "sensitivity") + (
        f"{sets_note(results, 'sensitivity', 'seeds')} Ours: unconstrained θ and y, standardised. Paper: {paper.SPACE}; "
        f"see the note above. {NEGATIVE} {PAIRED}"
    )
    if len(both) > 2:
        order, when = stats.spearmanr(*zip(*both, strict=True)).statistic, " so far" if len(both) < len(grid) else ""
        note += (
            f" The order of the settings by jW2 agrees{when} with the paper's to a rank correlation of {order:.2f} "
            "(1: the same)."
        )
    return Table(f"sensitivity-{task}", f"Sensitivity on {titled(task)}", header, rows, note)
