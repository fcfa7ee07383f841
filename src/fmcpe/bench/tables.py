"""Tables of our numbers beside those that the paper prints.

A table has the rows and columns of the plan. Missing cells read "not run" or "failed", and while units are missing the note
begins with the progress.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from scipy import stats

from fmcpe.bench import paper
from fmcpe.bench.clock import PARTS
from fmcpe.bench.plan import METHODS, WITHOUT_PAIRS
from fmcpe.bench.presets import PRESETS
from fmcpe.bench.results import METRICS, Results, missing, number
from fmcpe.bench.table import Table
from fmcpe.bench.units import RANDOMISABLE, WITHOUT_BASE, titled
from fmcpe.candidates.paper import Paper


def metric_table(results: Results, experiment: str, metric: str) -> Table:
    """Methods as rows, tasks and sizes as columns: mean ± standard deviation over calibration sets."""
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
    printed = "posterior-level" if metric in POSTERIOR_LEVEL else experiment
    note += f" {budgets(results, experiment, printed, one_draw=metric.startswith('joint'))}"
    return Table(f"{experiment}-{metric}", name, header, rows, so_far(results, experiment) + note)


NEGATIVE = (
    "The estimate of MMD² is unbiased and may be negative: a negative value is zero within the error of the estimate."
)
PAIRED = (
    "The paper's formula also compares each pair with its own copy, which lowers it by up to 2 / (number of test pairs); the "
    "CSV of all numbers has it as joint_mmd2."
)


def so_far(results: Results, experiment: str) -> str:
    """Beginning of a note while units are missing."""
    done = results.so_far(experiment)
    return f"So far: {done}. " if done else ""


def sets_note(results: Results, experiment: str, sets: str = "calibration sets") -> str:
    """Number of sets behind the means, and the methods that need none."""
    numbers = {
        method: len({row.unit.set for row in results.planned(experiment) if row.unit.method == method})
        for method in results.methods(experiment)
    }
    most = max((n for method, n in numbers.items() if method not in WITHOUT_PAIRS), default=1)
    parts = [f"Mean ± std over {most} {sets}" if most > 1 else f"One {sets[:-1]}, no std"]
    single = [method for method in numbers if method in WITHOUT_PAIRS]
    parts += [f"{', '.join(single)}: one fit, without pairs"] if single and most > 1 else []
    return "; ".join(parts) + "."


POSTERIOR_LEVEL = ("c2st", "w2", "mmd2")


def budgets(results: Results, experiment: str, printed: str = "", one_draw: bool = False) -> str:
    """Pairs, sets, test size, epochs and base posteriors: ours, and the paper's if it has the experiment.

    Args:
        results: The run.
        experiment: The experiment.
        printed: Key of the paper's budget in `paper.BUDGETS`.
        one_draw: Whether the numbers use one draw per test pair, as joint metrics do.
    """
    rows = results.planned(experiment)
    if not rows:
        return ""
    evaluations = {row.unit.evaluation for row in rows if row.unit.method != "reference"}
    sets = len({row.unit.set for row in rows if row.unit.pairs})
    parts = [f"{listed(results.sizes(experiment))} pairs", f"{sets} {'set' if sets == 1 else 'sets'}"]
    if printed == "posterior-level":
        measured = {(e.reference, e.reference_draws, e.folds) for e in evaluations if e.reference}
        parts += [f"{n} observations with {draws} draws each, {k}-fold C2ST" for n, draws, k in sorted(measured)]
    elif any(e.timed for e in evaluations):
        parts += [f"{listed(sorted({e.timed for e in evaluations}))} observations at inference"]
    else:
        fitted = [row for row in rows if row.unit.method != "reference"]
        tested = sorted({
            (row.metrics.get("test_pairs", row.unit.evaluation.test), 1 if one_draw else row.unit.evaluation.draws)
            for row in fitted
        })  # fmt: skip
        parts += [f"{n} test pairs with {draws} {'draw' if draws == 1 else 'draws'} each" for n, draws in tested]
    epochs = {dict(row.unit.recipe).get("epochs", Paper.epochs) for row in rows if "-paper" in row.unit.method}
    parts += [f"{listed(sorted(epochs))} epochs of the paper's recipe"] if epochs else []
    simulations = {row.unit.simulations for row in rows if row.unit.base is not None}
    parts += [f"{listed(sorted(simulations))} simulations for the base posterior"] if simulations else []
    ours = f"Ours: {', '.join(parts)}."
    theirs = f" Paper: {paper.BUDGETS[printed]}; {paper.SIMULATIONS} simulations." if printed in paper.BUDGETS else ""
    return f"{ours}{theirs} {bases(results, experiment)}".strip()


def bases(results: Results, experiment: str) -> str:
    """The base posterior of each method."""
    rows = [row.unit for row in results.planned(experiment) if row.unit.method not in WITHOUT_BASE]
    groups = {
        "plain simulations": [unit for unit in rows if not unit.randomised and unit.task in RANDOMISABLE],
        "domain-randomised simulations": [unit for unit in rows if unit.randomised],
    }
    named = {
        name: [method for method in METHODS if method in {unit.method for unit in units}]
        for name, units in groups.items()
    }
    parts = [f"{name} ({', '.join(methods)})" for name, methods in named.items() if methods]
    if not parts:
        return "Base posterior: plain simulations."
    vectors = any(unit.task not in RANDOMISABLE for unit in rows)
    return f"Base posterior: {'; '.join(parts)}{'; vectors: plain simulations for all' if vectors else ''}."


def listed(values: Iterable[object]) -> str:
    """Text such as "10, 50 and 200"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def sbc_table(results: Results) -> Table:
    """Miscalibration of each method, per parameter."""
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
        + "Bias in posterior standard deviations, ideally 0; scale above 1 is too narrow (∪), below 1 too wide (∩). "
        + budgets(results, "sbc", "sbc")
    )
    return Table("sbc", "Simulation-based calibration", header, rows, note)


def independence_table(results: Results) -> Table:
    """The α table: both maps against the x-map alone, with the paper's numbers."""
    rows = []
    for task in results.tasks("independence"):
        alpha = float(task.split("alpha=")[1].split()[0])
        printed = paper.INDEPENDENCE.get(alpha)
        for i, (variant, method) in enumerate((("full", "fmcpe-paper"), ("T_X only", "fmcpe-paper-x-only"))):
            row = [f"{alpha:g}", variant]
            for k, metric in enumerate(("joint_c2st", "joint_mmd2_paired")):
                digits = 3 + 2 * k
                mean, std = (None, None) if printed is None else printed[i][2 * k : 2 * k + 2]
                gap = None if printed is None or not i else 100 * (printed[1][2 * k] / printed[0][2 * k] - 1)
                row += [
                    "" if mean is None else f"{mean:.{digits}f} ± {std:.{digits}f}",
                    "" if gap is None else f"{gap:+.1f} %",
                    results.cell("independence", task, method, None, metric),
                    _gap(results, task, "fmcpe-paper", metric) if i else "",
                ]
            rows.append([*row, "" if i else results.cell("independence", task, "fmcpe", None, "joint_c2st")])
        c2st, mmd = (
            results.cell("independence", task, "reference", None, m) for m in ("joint_c2st", "joint_mmd2_paired")
        )
        rows.append([f"{alpha:g}", "reference", "", "", c2st, "", "", "", mmd, "", c2st])
    header = [
        "α", "maps", "jC2ST, paper", "Δ %, paper", "jC2ST, ours", "Δ %, ours", "jMMD², paper", "Δ %, paper",
        "jMMD², ours", "Δ %, ours", "jC2ST, default recipe",
    ]  # fmt: skip
    note = so_far(results, "independence") + (
        f"{sets_note(results, 'independence', 'seeds')} Δ %: means of the x-map alone relative to both maps. Compare how the "
        "paper's columns and ours change with α, not their values: our matrices have standard normal entries, those of the "
        "published script are scaled, and its C2ST has plain folds. Ours: unconstrained θ and y, standardised, both copies of "
        "a y in the same fold, so that the reference scores ½. Paper: "
        f"{paper.SPACE}. {NEGATIVE} {PAIRED} {budgets(results, 'independence', 'independence', one_draw=True)}"
    )
    return Table("independence", "Both maps against the x-map alone", header, rows, note)


def _gap(results: Results, task: str, method: str, metric: str) -> str:
    """Relative gap of the x-map alone, in per cent; empty if both maps have no measurable error."""
    full, alone = (results.mean("independence", task, name, None, metric) for name in (method, f"{method}-x-only"))
    return f"{100 * (alone / full - 1):+.1f} %" if full > 0 and math.isfinite(alone) else ""


def timing_table(results: Results, what: str) -> Table:
    """Fit or inference times by method, task and size, the paper's in brackets."""
    metric = "fit_seconds" if what == "fit" else "inference_seconds"
    printed: dict[str, Any] = dict(paper.TRAINING if what == "fit" else paper.INFERENCE)
    tasks, sizes = results.tasks("timing"), results.sizes("timing")
    rows = []
    for size in sizes:
        for method in results.methods("timing"):
            cells = []
            for task in tasks:
                theirs = printed.get(method, {}).get(task.split()[0])
                at = theirs[paper.SIZES.index(size)] if theirs and size in paper.SIZES else None
                shown = results.cell("timing", task, method, size, metric)
                cells.append(shown + (f" [{at:g}]" if at is not None else ""))
            rows.append([str(size), method, *cells])
    number_of = PRESETS[results.presets["timing"]].timed if "timing" in results.presets else 5000
    extra = "" if what == "fit" else f" {number_of} observations, one draw each (the paper: 5000)."
    note = so_far(results, "timing")
    note += f"Seconds, one CPU thread; in brackets the paper's, on a GPU (RTX 3060).{extra} The paper's NPE is our dpe."
    note += f" {budgets(results, 'timing', 'timing')}"
    return Table(f"timing-{what}", f"{what.capitalize()} time", ["pairs", "method", *map(titled, tasks)], rows, note)


def breakdown_table(results: Results) -> Table:
    """Fit time by part."""
    rows = []
    for task in results.tasks("timing"):
        for method in ("fmcpe-paper", "fmcpe"):
            for part in PARTS:
                cells = []
                for size in results.sizes("timing"):
                    units = results.asked("timing", task, method, size)
                    done = [row for row in units if row.status == "done"]
                    mine = number(done[0].metrics["parts"].get(part, 0.0)) if done else missing(units)
                    printed = paper.BREAKDOWN.get(task.split()[0], {}).get(part) if method == "fmcpe-paper" else None
                    at = printed[paper.SIZES.index(size)] if printed and size in paper.SIZES else None
                    cells.append(mine + (f" [{at:g}]" if at is not None else ""))
                rows.append([titled(task), method, part, *cells])
    header = ["task", "method", "part", *(f"{size} pairs" for size in results.sizes("timing"))]
    note = (
        so_far(results, "timing")
        + "Fit time in seconds, one CPU thread; in brackets the paper's, on a GPU, in three parts. "
        + budgets(results, "timing", "timing")
    )
    return Table("timing-breakdown", "Fit time by part", header, rows, note)


def sensitivity_table(results: Results, task: str) -> Table:
    """Learning rate × clipping, with the paper's numbers."""
    grid = sorted(
        {
            (dict(row.unit.recipe)["learning_rate"], dict(row.unit.recipe)["clip"])
            for row in results.asked("sensitivity", task, "fmcpe-paper", None)
        }
    )
    printed = paper.SENSITIVITY_TABLE.get(task.split(maxsplit=1)[0])
    asked = [row.unit for row in results.asked("sensitivity", task, "fmcpe-paper", None)]
    alike = {(unit.pairs, dict(unit.recipe)["epochs"], unit.evaluation.test, unit.simulations) for unit in asked} == {
        paper.SENSITIVITY
    }
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
        f"see the note above. {NEGATIVE} {PAIRED} {budgets(results, 'sensitivity', 'sensitivity')}"
    )
    if len(both) > 2 and alike:
        order, when = stats.spearmanr(*zip(*both, strict=True)).statistic, " so far" if len(both) < len(grid) else ""
        note += f" Rank correlation with the paper of the settings by jW2{when}: {order:.2f}."
    return Table(f"sensitivity-{task}", f"Sensitivity on {titled(task)}", header, rows, note)
