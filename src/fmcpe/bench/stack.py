"""Ablation of the stack: each candidate's score alone, its weight, and the stack without it.

The energy score of a mixture of the candidates is a quadratic form of mean distances (`fmcpe.stacking`). A unit stores the
distances of cross-validated draws, which give the weights, and of draws for test pairs, which give the score, so the stack
without a candidate needs no new fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcpe.bench.results import Results, number
from fmcpe.bench.table import Table
from fmcpe.bench.tables import budgets, so_far

if TYPE_CHECKING:
    from torch import Tensor

    from fmcpe.posterior import CorrectedPosterior

_OBSERVATIONS, _DRAWS = 300, 32


def stack_metrics(posterior: CorrectedPosterior, theta: Tensor, y: Tensor) -> dict[str, Any]:
    """Weights, and the mean distances of cross-validated draws and of draws for test pairs.

    Args:
        posterior: A posterior fitted by a `Stack`.
        theta: Physical θ of test pairs, (B, p).
        y: Their observations.
    """
    from fmcpe.mixture import Mixture
    from fmcpe.stacking import CrossFit, Distances

    report, mixture = posterior.report, next(m for m in posterior.inner.modules() if isinstance(m, Mixture))
    members, fits, start = mixture.members, [], 0
    for count in report.members.values():
        ensemble = Mixture(members[start : start + count], torch.ones(count))
        draws = ensemble.sample(y[:_OBSERVATIONS], _DRAWS)
        fits.append(CrossFit([ensemble], draws[:, None], 0.0))
        start += count
    found = Distances.of(fits, posterior.space.to_z_safely(theta[:_OBSERVATIONS]))
    test = {"to_truth": found.to_truth.mean(1).tolist(), "between": found.between.mean(2).tolist()}
    return {
        "names": list(report.members), "weights": report.weights, "cross_validated": report.distances, "test": test,
        "distinct": report.distinct, "seconds": report.candidate_seconds,
    }  # fmt: skip


def restacked(stored: dict[str, Any], without: Sequence[str] = ()) -> tuple[float, dict[str, float]]:
    """Energy score on test pairs of the stack without some candidates, and its weights."""
    from fmcpe.stacking import Distances, Stack

    kept = [i for i, name in enumerate(stored["names"]) if name not in without]
    names = [stored["names"][i] for i in kept]

    def distances(which: str) -> Distances:
        a, d = torch.tensor(stored[which]["to_truth"]), torch.tensor(stored[which]["between"])
        return Distances(a[kept][:, None], d[kept][:, kept][..., None])

    w = Stack().weights(names, distances("cross_validated"), float(stored["distinct"]))
    return float(distances("test").scores(w)), dict(zip(names, w.tolist(), strict=True))


def ablation_table(results: Results) -> Table:
    """Each candidate alone, its weight, and the stack without it, over all settings."""
    rows = [row.metrics["stack"] for row in results.rows.values() if row.status == "done" and "stack" in row.metrics]
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
    return Table("stack", "Candidates of the stack", header, cells, note)
