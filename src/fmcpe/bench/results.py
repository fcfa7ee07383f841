"""Queries on a run directory: values of a metric over calibration sets, and units that are missing.

A directory may hold several presets of an experiment. One of them is shown: the requested one, or the most complete, so that a
large run that has just started does not hide a small finished one.
"""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fmcpe._errors import FMCPEWarning
from fmcpe.bench.plan import EXPERIMENTS, METHODS, WITHOUT_PAIRS
from fmcpe.bench.presets import PRESETS
from fmcpe.bench.store import Row, Store
from fmcpe.bench.units import Unit
from fmcpe.bench.work import DRAWS_FILE

METRICS = {
    "joint_w2": ("joint W2", "unconstrained θ and y, standardised"),
    "joint_c2st": ("joint C2ST", "unconstrained θ and y, standardised"),
    "joint_mmd2_paired": ("joint MMD², σ = 10, unbiased", "unconstrained θ and y, standardised"),
    "mse": ("MSE", "physical θ"),
    "energy": ("energy score", "unconstrained θ, standardised by the prior"),
    "c2st": ("C2ST to the reference posterior", "unconstrained θ, standardised by the reference"),
    "w2": ("W2 to the reference posterior", "unconstrained θ, standardised by the reference"),
    "mmd2": ("MMD² to the reference posterior, σ = 10, unbiased", "unconstrained θ, standardised by the reference"),
    "coverage_90": ("coverage of 90 % intervals, mean over parameters", "physical θ"),
}
"""Name and space of each metric. Lower is better for all but coverage."""


@dataclass(frozen=True)
class Results:
    """The results in a run directory.

    Args:
        directory: The run directory.
        rows: State and results of each unit.
        plans: The units of each (experiment, preset).
        owners: All runs on the directory.
        preset: The preset to show; the most complete one of each experiment if None.
    """

    directory: Path
    rows: dict[str, Row]
    plans: dict[tuple[str, str], list[str]]
    owners: list[dict[str, Any]]
    preset: str | None = None

    @classmethod
    def read(cls, directory: str | Path, preset: str | None = None) -> Results:
        """Read the store of a directory."""
        with Store(directory, read_only=True) as store:
            return cls(Path(directory), store.rows(), store.plans(), store.owners(), preset)

    @cached_property
    def presets(self) -> dict[str, str]:
        """The preset shown for each experiment: the requested one, or the most complete and, of equals, the larger."""
        order = list(PRESETS)
        found: dict[str, str] = {}
        for experiment in EXPERIMENTS:
            presets = [preset for name, preset in self.plans if name == experiment and preset in PRESETS]
            if self.preset is not None:
                presets = [preset for preset in presets if preset == self.preset]
            if presets:
                found[experiment] = min(presets, key=lambda p: (-self.share(experiment, p), order.index(p)))
        return found

    def share(self, experiment: str, preset: str) -> float:
        """Fraction of a plan that is done."""
        states = self.states(experiment, preset)
        return states.count("done") / max(1, len(states))

    def states(self, experiment: str, preset: str | None = None) -> list[str]:
        """Status of each unit of a plan, including base posteriors; of the shown preset by default."""
        key = (experiment, preset or self.presets.get(experiment, ""))
        return [self.rows[identifier].status for identifier in self.plans.get(key, [])]

    def so_far(self, experiment: str, preset: str | None = None) -> str:
        """Progress, such as "12 of 64 units done, 1 failed"; empty if all are done."""
        states = self.states(experiment, preset)
        done, failed = states.count("done"), states.count("failed")
        if done == len(states):
            return ""
        return f"{done} of {len(states)} units done" + (f", {failed} failed" if failed else "")

    def planned(self, experiment: str) -> list[Row]:
        """The fits of an experiment, in the plan's order."""
        return self._fits.get(experiment, [])

    @cached_property
    def _fits(self) -> dict[str, list[Row]]:
        shown = {name: [self.rows[unit] for unit in self.plans[name, preset]] for name, preset in self.presets.items()}
        return {name: [row for row in rows if row.unit.kind == "fit"] for name, rows in shown.items()}

    def done(self, experiment: str) -> list[Row]:
        """The fits that are done."""
        return [row for row in self.planned(experiment) if row.status == "done"]

    def tasks(self, experiment: str, done: bool = False) -> list[str]:
        """Planned tasks with their options; with `done`, those that have results."""
        rows = self.done(experiment) if done else self.planned(experiment)
        return list(dict.fromkeys(row.unit.task_label for row in rows))

    def sizes(self, experiment: str, done: bool = False) -> list[int]:
        """Numbers of pairs."""
        rows = self.done(experiment) if done else self.planned(experiment)
        return sorted({row.unit.pairs for row in rows} - {0})

    def methods(self, experiment: str, task: str | None = None, done: bool = False) -> list[str]:
        """Methods, in the order of tables."""
        rows = self.done(experiment) if done else self.planned(experiment)
        there = {row.unit.method for row in rows if task in (None, row.unit.task_label)}
        return [*(method for method in METHODS if method in there), *sorted(there - set(METHODS))]

    def asked(self, experiment: str, task: str, method: str, pairs: int | None, **recipe: float) -> list[Row]:
        """Units over calibration sets, done or not. A method without pairs has the same unit for every size."""
        wanted = set(recipe.items())
        return [
            row
            for row in self.planned(experiment)
            if row.unit.task_label == task
            and row.unit.method == method
            and (pairs is None or row.unit.pairs == pairs or method in WITHOUT_PAIRS)
            and wanted <= set(row.unit.recipe)
        ]

    def select(self, experiment: str, task: str, method: str, pairs: int | None, **recipe: float) -> list[Row]:
        """The units of `asked` that are done."""
        return [row for row in self.asked(experiment, task, method, pairs, **recipe) if row.status == "done"]

    def values(
        self, experiment: str, task: str, method: str, pairs: int | None, metric: str, **recipe: float
    ) -> np.ndarray:
        """A metric over calibration sets; empty without results."""
        rows = self.select(experiment, task, method, pairs, **recipe)
        found = [value for value in (metric_of(row, metric) for row in rows) if value is not None]
        return np.array(found, dtype=float)

    def mean(self, experiment: str, task: str, method: str, pairs: int | None, metric: str, **recipe: float) -> float:
        """The mean over calibration sets; NaN without results."""
        values = self.values(experiment, task, method, pairs, metric, **recipe)
        return float(values.mean()) if len(values) else float("nan")

    def cell(self, experiment: str, task: str, method: str, pairs: int | None, metric: str, **recipe: float) -> str:
        """Mean ± standard deviation, with the number of sets if some are missing; "not run" or "failed" if all are."""
        rows = self.asked(experiment, task, method, pairs, **recipe)
        done = [row for row in rows if row.status == "done"]
        text = spread(v for v in (metric_of(row, metric) for row in done) if v is not None)
        return text + f" ({len(done)} of {len(rows)})" if text and len(done) < len(rows) else text or missing(rows)

    def arrays(self, unit: Unit) -> dict[str, np.ndarray] | None:
        """Stored ranks and draws of a unit, or None."""
        path = self.directory / "files" / f"{unit.id}-{DRAWS_FILE}"
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            warnings.warn(
                f"Expected the draws of {unit.label} in {path}, got a damaged file ({error}). The report is made without them. "
                "Delete the file to silence this.",
                FMCPEWarning,
                stacklevel=2,
            )
            return None

    def measured(self) -> list[tuple[str, str]]:
        """Tasks with measured data, and the fingerprint of the data."""
        return sorted({(row.unit.task, row.unit.data) for row in self.rows.values() if row.unit.data})

    def stand_ins(self) -> list[str]:
        """Tasks that use a stand-in for measurements."""
        rows = [row for row in self.rows.values() if row.metrics.get("real_side") == "stand-in"]
        return sorted({row.unit.task for row in rows})


def missing(rows: Sequence[Row]) -> str:
    """Text of a table cell without a number: "failed", "not run", or empty if no unit is planned."""
    if any(row.status == "failed" for row in rows):
        return "failed"
    return "not run" if any(row.status != "done" for row in rows) else ""


def metric_of(row: Row, metric: str) -> float | None:
    """A metric of a unit, or None."""
    if metric.startswith("coverage_"):
        level = row.metrics.get("coverage", {}).get(f"{int(metric[9:]) / 100:g}")
        return None if level is None else float(np.mean(level))
    value = row.metrics.get(metric)
    return None if value is None else float(value)


def each_observation(row: Row, metric: str) -> np.ndarray:
    """A metric of a unit for each observation with a reference posterior; empty without one."""
    return np.array(row.metrics.get(f"{metric}_each", []), dtype=float)


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
