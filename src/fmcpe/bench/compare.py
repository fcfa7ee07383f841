"""Comparison of two runs: metrics of their common units, and units that only one has."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fmcpe.bench.results import METRICS, Results, metric_of, number
from fmcpe.bench.table import Table
from fmcpe.bench.units import titled

COMPARED = (*METRICS, "fit_seconds", "inference_seconds")


def compare(a: str | Path, b: str | Path) -> str:
    """Compare run B with run A, as text."""
    first, second = Results.read(a), Results.read(b)
    done = [{key: row for key, row in results.rows.items() if row.status == "done"} for results in (first, second)]
    shared = [key for key in done[0] if key in done[1]]
    lines = [f"A: {a}", f"B: {b}", f"{len(shared)} units in both, {len(done[0]) - len(shared)} in A only, "
             f"{len(done[1]) - len(shared)} in B only"]  # fmt: skip
    lines += _settings(first, second)
    groups: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for key in shared:
        unit = done[0][key].unit
        for metric in COMPARED:
            pair = metric_of(done[0][key], metric), metric_of(done[1][key], metric)
            if pair[0] is not None and pair[1] is not None:
                group = (titled(unit.task_label), unit.method, str(unit.pairs or "-"), metric)
                groups.setdefault(group, []).append((pair[0], pair[1]))
    rows, same = [], 0
    for group, pairs in groups.items():
        before, after = np.array(pairs).T
        if np.array_equal(before, after):
            same += 1
            continue
        change = after.mean() - before.mean()
        relative = f"{100 * change / abs(before.mean()):+.1f} %" if before.mean() else ""
        rows.append([*group, number(float(before.mean())), number(float(after.mean())), relative, str(len(pairs))])
    lines.append(f"{same} means are identical, {len(rows)} changed")
    if rows:
        header = ["task", "method", "pairs", "metric", "A", "B", "change", "sets"]
        lines.append("\n" + Table("compare", "Means over calibration sets", header, rows).as_text())
    failed = {key for key, row in second.rows.items() if row.status == "failed"} & set(done[0])
    lines += [f"failed in B only: {done[0][key].unit.label}" for key in sorted(failed)]
    return "\n".join(lines)


def _settings(first: Results, second: Results) -> list[str]:
    """Versions, and experiments that only one run has."""
    lines = []
    versions = [{item for row in results.rows.values() for item in row.versions.items()} for results in (first, second)]
    if versions[0] != versions[1]:
        only = [", ".join(f"{k} {v}" for k, v in sorted(versions[i] - versions[1 - i])) for i in (0, 1)]
        lines.append(f"versions differ: A {only[0] or 'nothing else'}; B {only[1] or 'nothing else'}")
    for name, mine, other in (("A", set(first.plans), set(second.plans)), ("B", set(second.plans), set(first.plans))):
        extra = sorted(f"{experiment} ({preset})" for experiment, preset in mine - other)
        if extra:
            lines.append(f"only {name} has {', '.join(extra)}")
    return lines
