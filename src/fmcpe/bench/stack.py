"""Ablation of the stack: each candidate's score alone, its weight, and the stack without it.

The energy score of a mixture of the candidates is a quadratic form of mean distances (`fmcpe.stacking`). A unit stores the
distances of cross-validated draws, which give the weights, and of draws for test pairs, which give the score, so the stack
without a candidate needs no new fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcpe.bench.results import Results, number
from fmcpe.bench.table import Table
from fmcpe.bench.tables import budgets, so_far
from fmcpe.bench.units import titled
from fmcpe.bench.zoo import SUBSET, Score
from fmcpe.tasks import zoo

if TYPE_CHECKING:
    from torch import Tensor

    from fmcpe.posterior import CorrectedPosterior


def stack_metrics(posterior: CorrectedPosterior, theta: Tensor, y: Tensor, draws: int = 32) -> dict[str, Any]:
    """Weights, and the mean distances of cross-validated draws and of draws for test pairs.

    Args:
        posterior: A posterior fitted by a `Stack`.
        theta: Physical θ of test pairs, (B, p).
        y: Their observations.
        draws: Draws of each candidate per observation.
    """
    from fmcpe.energy import CrossFit, Distances
    from fmcpe.mixture import Mixture

    record, mixture = posterior.record, next(m for m in posterior.inner.modules() if isinstance(m, Mixture))
    members, fits, start = mixture.members, [], 0
    for count in record.members.values():
        ensemble = Mixture(members[start : start + count], torch.ones(count))
        fits.append(CrossFit([ensemble], ensemble.sample(y, draws)[:, None], 0.0))
        start += count
    found = Distances.of(fits, posterior.space.to_z_safely(theta))
    test = {"to_truth": found.to_truth.mean(1).tolist(), "between": found.between.mean(2).tolist()}
    return {
        "names": list(record.members), "weights": record.weights, "cross_validated": record.distances, "test": test,
        "distinct": record.distinct, "seconds": record.candidate_seconds,
    }  # fmt: skip


def restacked(stored: dict[str, Any], without: Sequence[str] = ()) -> tuple[float, dict[str, float]]:
    """Energy score on test pairs of the stack without some candidates, and its weights."""
    from fmcpe.energy import Distances
    from fmcpe.stacking import Stack

    kept = [i for i, name in enumerate(stored["names"]) if name not in without]
    names = [stored["names"][i] for i in kept]

    def distances(which: str) -> Distances:
        a, d = torch.tensor(stored[which]["to_truth"]), torch.tensor(stored[which]["between"])
        return Distances(a[kept][:, None], d[kept][:, kept][..., None])

    w = Stack().weights(names, distances("cross_validated"), float(stored["distinct"]))
    return float(distances("test").scores(w)), dict(zip(names, w.tolist(), strict=True))


def _stacks(results: Results, label: str, size: int) -> list[dict[str, Any]]:
    """What `stack_metrics` found for the fits of a problem with a number of pairs."""
    done = [row.metrics for row in results.asked("zoo", label, "fmcpe", size) if row.status == "done"]
    return [metrics["stack"] for metrics in done if "stack" in metrics]


def weights_table(results: Results, experiment: str) -> Table | None:
    """Mean stacking weight of each candidate, by task and number of pairs; None if no unit recorded any."""
    cells, names = list[tuple[str, int, list[dict[str, float]]]](), dict[str, None]()
    for task in results.tasks(experiment):
        for size in results.sizes(experiment):
            found = [row.metrics.get("weights") for row in results.select(experiment, task, "fmcpe", size)]
            weights = [each for each in found if each]
            if weights:
                cells.append((titled(task), size, weights))
                names |= dict.fromkeys(name for each in weights for name in each)
    if not cells:
        return None
    rows = [
        [
            task,
            str(size),
            str(len(weights)),
            *(number(sum(w.get(n, 0.0) for w in weights) / len(weights), 2) for n in names),
        ]
        for task, size, weights in cells
    ]
    note = so_far(results, experiment) + "Mean over calibration sets; a candidate that was skipped has weight 0."
    return Table(f"{experiment}-weights", "What carried the answer", ["task", "pairs", "fits", *names], rows, note)


def ablation_table(results: Results, half: str) -> Table:
    """Each candidate alone, its weight, and the stack without it, over all fits of one half of the zoo."""
    labels = [label for label in results.tasks("zoo") if zoo.half_of(label.split(" ")[0]) == half]
    rows = [row for label in labels for size in results.sizes("zoo") for row in _stacks(results, label, size)]
    names = list(dict.fromkeys(name for row in rows for name in row["names"]))
    whole = [restacked(row)[0] for row in rows]
    cells = []
    for name in names:
        having = [(row, score) for row, score in zip(rows, whole, strict=True) if name in row["names"]]
        alone = [restacked(row, [other for other in row["names"] if other != name])[0] / score for row, score in having]
        logs = [math.log(restacked(row, [name])[0] / score) for row, score in having if len(row["names"]) > 1]
        weights = [row["weights"][name] for row, _ in having]
        seconds = [row["seconds"][name] for row, _ in having]
        error = np.std(logs, ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        cells.append([
            name, str(len(having)), number(float(np.mean(weights)), 2), f"{100 * np.mean([w > 0.2 for w in weights]):.0f} %",
            number(float(np.exp(np.mean(np.log(alone))))), f"{100 * np.mean(logs):+.2f} ± {100 * error:.2f} %",
            number(float(np.max(np.exp(logs)))), number(float(np.median(seconds)), 2),
        ])  # fmt: skip
    header = ["candidate", "fits", "mean weight", "weight above 0.2", "alone", "stack without it", "worst", "seconds"]
    note = so_far(results, "zoo") + (
        "Energy score on test pairs over that of the whole stack: of the candidate alone (geometric mean), and of the stack "
        "without it (mean ± standard error of the log ratio over fits, and the worst). Recomputed from stored distances. "
        + budgets(results, "zoo")
    )
    return Table("stack", f"Candidates of the stack, {half} half", header, cells, note)


def hindsight_table(found: Sequence[Score], results: Results, half: str) -> Table:
    """Every method and every candidate alone, over the best of them all in hindsight, setting by setting."""
    settings: dict[tuple[str, int], dict[str, float]] = {}
    for score in found:
        if score.half == half and score.method not in SUBSET:
            settings.setdefault((score.problem, score.pairs), {})[score.method] = score.energy
    for label in results.tasks("zoo"):
        for size in results.sizes("zoo"):
            rows = _stacks(results, label, size)
            setting = settings.get((label.split(" ")[0], size))
            if setting is None or not rows:
                continue
            for name in set.intersection(*(set(row["names"]) for row in rows)):
                alone = [restacked(row, [other for other in row["names"] if other != name])[0] for row in rows]
                setting[f"{name} alone"] = float(np.mean(alone))
    cells = []
    for name in dict.fromkeys(name for setting in settings.values() for name in setting):
        ratios = np.array([each[name] / min(each.values()) for each in settings.values() if name in each])
        geometric = float(np.exp(np.log(ratios).mean()))
        quantiles = [float(np.quantile(ratios, q)) for q in (0.5, 0.95, 1.0)]
        cells.append([name, str(len(ratios)), number(geometric), *map(number, quantiles)])
    cells.sort(key=lambda row: float(row[2]))
    note = so_far(results, "zoo") + (
        "Energy score, mean over sets, over the lowest of all methods and single candidates of the setting (problem × "
        "number of pairs). " + budgets(results, "zoo")
    )
    header = ["method or candidate", "settings", "geometric mean", "median", "95th percentile", "worst"]
    return Table(
        f"hindsight-{half}", f"Over the best method or candidate in hindsight, {half} half", header, cells, note
    )


def more_pairs_table(found: Sequence[Score], results: Results) -> Table:
    """How the score changes from one number of pairs to the next; calibration sets are nested."""
    energies = {(s.method, s.problem, s.pairs): s.energy for s in found if s.method.startswith("fmcpe")}
    sizes, cells = results.sizes("zoo"), []
    for method in dict.fromkeys(key[0] for key in energies):
        for few, many in pairwise(sizes):
            steps = {
                problem: math.log(energies[method, problem, many] / energy)
                for (name, problem, size), energy in energies.items()
                if name == method and size == few and (method, problem, many) in energies
            }
            if not steps:
                continue
            values, worst = list(steps.values()), max(steps, key=lambda problem: steps[problem])
            error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            cells.append([
                method, f"{few} to {many}", str(len(values)), f"{100 * np.mean(values):+.1f} ± {100 * error:.1f} %",
                str(sum(value > math.log(1.02) for value in values)), f"{worst} {100 * steps[worst]:+.1f} %",
            ])  # fmt: skip
    header = ["method", "pairs", "problems", "log energy score", "worse by over 2 %", "worst"]
    note = so_far(results, "zoo") + "Change of the energy score with more pairs. " + budgets(results, "zoo")
    return Table("more-pairs", "More pairs", header, cells, note)
