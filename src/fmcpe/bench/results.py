"""What a run directory knows, ready to be asked: values of a metric over calibration sets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fmcpe.bench.plan import EXPERIMENTS, METHODS, PRESETS, WITHOUT_PAIRS
from fmcpe.bench.store import Row, Store
from fmcpe.bench.units import Unit
from fmcpe.bench.work import DRAWS_FILE

METRICS = {
    "joint_w2": ("joint W2", "unconstrained θ and y, standardised"),
    "joint_c2st": ("joint C2ST", "unconstrained θ and y, standardised"),
    "joint_mmd2": ("joint MMD², σ = 10", "unconstrained θ and y, standardised"),
    "mse": ("MSE", "physical θ"),
    "energy": ("energy score", "unconstrained θ, standardised by the prior"),
    "c2st": ("C2ST to the reference posterior", "unconstrained θ, standardised by the reference"),
    "w2": ("W2 to the reference posterior", "unconstrained θ, standardised by the reference"),
    "mmd2": ("MMD² to the reference posterior, σ = 10", "unconstrained θ, standardised by the reference"),
    "coverage_90": ("coverage of 90 % intervals, mean over parameters", "physical θ"),
}
"""Name and space of each metric. All but coverage are better the lower they are."""


@dataclass(frozen=True)
class Results:
    """Everything that was done in a directory."""

    directory: Path
    rows: dict[str, Row]
    plans: dict[tuple[str, str], list[str]]
    owners: list[dict[str, Any]]

    @classmethod
    def read(cls, directory: str | Path) -> Results:
        """What the store of a directory holds now."""
        with Store(directory, read_only=True) as store:
            return cls(Path(directory), store.rows(), store.plans(), store.owners())

    @cached_property
    def presets(self) -> dict[str, str]:
        """The preset that each experiment is reported with: the largest one there is."""
        order = list(PRESETS)
        found: dict[str, str] = {}
        for experiment in EXPERIMENTS:
            presets = [preset for name, preset in self.plans if name == experiment and preset in PRESETS]
            if presets:
                found[experiment] = min(presets, key=order.index)
        return found

    def done(self, experiment: str) -> list[Row]:
        """The fits of an experiment that are done, in the plan's order."""
        preset = self.presets.get(experiment)
        identifiers = self.plans.get((experiment, preset), []) if preset else []
        rows = [self.rows[identifier] for identifier in identifiers]
        return [row for row in rows if row.status == "done" and row.unit.kind == "fit"]

    def tasks(self, experiment: str) -> list[str]:
        """Tasks, with their options."""
        return list(dict.fromkeys(row.unit.task_label for row in self.done(experiment)))

    def sizes(self, experiment: str) -> list[int]:
        """Numbers of pairs."""
        return sorted({row.unit.pairs for row in self.done(experiment)} - {0})

    def methods(self, experiment: str, task: str | None = None) -> list[str]:
        """Methods, in the order of tables."""
        rows = self.done(experiment)
        there = {row.unit.method for row in rows if task in (None, row.unit.task_label)}
        return [method for method in METHODS if method in there]

    def select(self, experiment: str, task: str, method: str, pairs: int | None, **recipe: float) -> list[Row]:
        """Units over calibration sets. A method without pairs answers for every size."""
        wanted = set(recipe.items())
        return [
            row
            for row in self.done(experiment)
            if row.unit.task_label == task
            and row.unit.method == method
            and (pairs is None or row.unit.pairs == pairs or method in WITHOUT_PAIRS)
            and wanted <= set(row.unit.recipe)
        ]

    def values(
        self, experiment: str, task: str, method: str, pairs: int | None, metric: str, **recipe: float
    ) -> np.ndarray:
        """A metric over calibration sets; empty where there is nothing."""
        rows = self.select(experiment, task, method, pairs, **recipe)
        found = [value for value in (metric_of(row, metric) for row in rows) if value is not None]
        return np.array(found, dtype=float)

    def mean(self, experiment: str, task: str, method: str, pairs: int | None, metric: str, **recipe: float) -> float:
        """The mean over calibration sets; NaN where there is nothing."""
        values = self.values(experiment, task, method, pairs, metric, **recipe)
        return float(values.mean()) if len(values) else float("nan")

    def arrays(self, unit: Unit) -> dict[str, np.ndarray] | None:
        """Ranks and draws that a unit left, if it did."""
        path = self.directory / "files" / f"{unit.id}-{DRAWS_FILE}"
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def stand_ins(self) -> list[str]:
        """Tasks whose real side is a stand-in for measurements."""
        rows = [row for row in self.rows.values() if row.metrics.get("real_side") == "stand-in"]
        return sorted({row.unit.task for row in rows})

    def csv(self, experiment: str) -> str:
        """Every unit of an experiment and every number of it, one row each."""
        rows = self.done(experiment)
        numbers = [_flat(row.metrics) for row in rows]
        columns = list(dict.fromkeys(name for found in numbers for name in found))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["unit", "task", "method", "pairs", "set", "recipe", *columns])
        for row, found in zip(rows, numbers, strict=True):
            unit = row.unit
            settings = json.dumps(dict(unit.recipe)) if unit.recipe else ""
            head = [unit.id, unit.task_label, unit.method, unit.pairs, unit.set, settings]
            writer.writerow([*head, *(found.get(name, "") for name in columns)])
        return out.getvalue()


def metric_of(row: Row, metric: str) -> float | None:
    """One number of a unit, or None."""
    if metric.startswith("coverage_"):
        level = row.metrics.get("coverage", {}).get(f"{int(metric[9:]) / 100:g}")
        return None if level is None else float(np.mean(level))
    value = row.metrics.get(metric)
    return None if value is None else float(value)


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers, and lists of numbers by position; the bulky rank counts and texts are left out."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and name != "sbc":
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
            found |= {f"{prefix}{name}.{i}": v for i, v in enumerate(value)}
        elif isinstance(value, int | float):
            found[prefix + name] = value
    return found


def spread(values: Iterable[float], digits: int = 3) -> str:
    """Mean ± standard deviation, or an empty string."""
    numbers = np.array(list(values), dtype=float)
    if not len(numbers):
        return ""
    if len(numbers) == 1:
        return number(numbers[0], digits)
    return f"{number(numbers.mean(), digits)} ± {number(numbers.std(ddof=1), max(1, digits - 1))}"


def number(value: float, digits: int = 3) -> str:
    """A number for a table."""
    if not np.isfinite(value):
        return ""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}" if abs(value) < 10 ** max(digits, 1) else f"{value:.0f}"
