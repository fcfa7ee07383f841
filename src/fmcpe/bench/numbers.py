"""All units of an experiment with all their numbers, as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from fmcpe.bench.results import Results
from fmcpe.bench.store import Row
from fmcpe.bench.units import titled

HEAD = ("unit", "task", "method", "pairs", "set", "seed", "status", "seconds", "recipe")
RANK_COLUMNS = {
    "statistics": "KS statistic",
    "p_values": "p-value",
    "bias": "bias",
    "scale": "scale",
    "verdicts": "verdict",
}
"""Rank statistics to export, one column per parameter; counts are omitted for size."""


def all_numbers(results: Results, experiment: str) -> str:
    """One row per planned unit, done or not, as CSV."""
    rows = results.planned(experiment)
    numbers = [_flat(row.metrics) | _ranks(row) for row in rows]
    columns = list(dict.fromkeys(name for found in numbers for name in found))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*HEAD, *columns])
    for row, found in zip(rows, numbers, strict=True):
        unit = row.unit
        status = "not run" if row.status in ("waiting", "running") else row.status
        settings = json.dumps(dict(unit.recipe)) if unit.recipe else ""
        seconds = "" if row.seconds is None else row.seconds
        task = titled(unit.task_label)
        head = [unit.id, task, unit.method, unit.pairs, unit.set, unit.seed, status, seconds, settings]
        writer.writerow([*head, *(found.get(name, "") for name in columns)])
    return out.getvalue()


def _ranks(row: Row) -> dict[str, Any]:
    """Rank statistics by parameter, such as "sbc.p-value.omega", and the numbers of observations and draws."""
    found = row.metrics.get("sbc")
    if found is None:
        return {}
    columns: dict[str, Any] = {f"sbc.{name}": found[name] for name in ("observations", "num_samples") if name in found}
    for key, name in RANK_COLUMNS.items():
        columns |= {f"sbc.{name}.{p}": v for p, v in zip(found["names"], found.get(key, []), strict=False)}
    return columns


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers, and lists of numbers by position, without texts."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and name != "sbc":
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
            found |= {f"{prefix}{name}.{i}": v for i, v in enumerate(value)}
        elif isinstance(value, int | float):
            found[prefix + name] = value
    return found
