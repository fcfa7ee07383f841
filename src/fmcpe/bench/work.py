"""Performing one unit in a worker process.

A worker needs no access to the run directory: it receives the bytes of the base posterior's file and returns its results to the
process that keeps the store. So a cluster needs no shared disk.
"""

from __future__ import annotations

import io
import math
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fmcpe.bench.store import Result
from fmcpe.bench.system import commit, machine
from fmcpe.bench.units import Options, Unit, options

BASE_FILE, DRAWS_FILE = "base.fmcpe", "draws.npz"
PACKAGE = Path(__file__).parents[1]
SHORT = 10.0
"""Fits shorter than this, in seconds, are timed three times, because background load would dominate."""


def perform(unit: Unit, base: bytes | None = None, data: str | None = None) -> Result:
    """Perform a unit with one thread.

    Args:
        unit: The unit.
        base: The file of its base posterior, if it has one.
        data: The folder of its measured data, if any; a cluster's workers need it at the same path.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads, started, cpu = torch.get_num_threads(), time.perf_counter(), time.process_time()
    try:
        torch.set_num_threads(1)
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metrics, files = _train_base(unit) if unit.kind == "base" else _fit(unit, base, data)
    finally:
        torch.set_num_threads(threads)
    metrics["cpu_seconds"] = time.process_time() - cpu  # in addition to wall time, as the machine may be shared
    metrics["machine"] = machine()
    return Result(metrics, time.perf_counter() - started, versions(), files)


def versions() -> dict[str, str]:
    """Versions of the packages, and the commit if the package runs from a checkout."""
    packages = ("fmcpe", "torch", "sbi", "zuko", "numpy", "scikit-learn", "POT")
    found = {"python": platform.python_version()} | {name: version(name) for name in packages}
    return found | ({"commit": commit(PACKAGE)} if commit(PACKAGE) else {})


def _train_base(unit: Unit) -> tuple[dict[str, Any], dict[str, bytes]]:
    from fmcpe import baselines, tasks, train_npe
    from fmcpe._random import seeded

    task = tasks.get(unit.task, **dict(unit.options))
    with seeded(unit.seed):
        embedding_net = task.embedding_net()
    started = time.perf_counter()
    base = train_npe(
        task.simulator, task.simulation_prior, unit.simulations, embedding_net, seed=unit.seed,
        max_num_epochs=unit.epochs, show_progress_bars=False, domain_randomisation=None if unit.randomised else False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        content = baselines.NPE(base).fit().save(Path(folder) / BASE_FILE).read_bytes()
    metrics = {"fit_seconds": seconds, "validation_loss": min(base.history["validation_loss"])}
    return metrics, {BASE_FILE: content}


def load_base(content: bytes) -> Any:
    """The base posterior in the file of a unit."""
    import fmcpe

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / BASE_FILE
        path.write_bytes(content)
        return fmcpe.load(path).shared.base.posterior  # type: ignore[attr-defined]


def task_of(unit: Unit, data: str | None) -> Any:
    """The unit's task, with measured data of the unit's fingerprint if it has one."""
    from fmcpe import tasks
    from fmcpe.tasks.chambers import fingerprint

    if not unit.data:
        return tasks.get(unit.task, **dict(unit.options))
    if data is None:
        raise ValueError(
            f"Expected the folder of the measured data of {unit.task}, got none. Pass --data {unit.task}=FOLDER."
        )
    found = fingerprint(data, unit.task)
    if found != unit.data:
        raise ValueError(
            f"Expected measured data with fingerprint {unit.data} in {data}, got {found}. Put the same files in the same "
            "folder on every worker."
        )
    return tasks.get(unit.task, data=data, **dict(unit.options))


def _fit(unit: Unit, base_file: bytes | None, data: str | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    import numpy as np

    from fmcpe._random import derive, seeded
    from fmcpe.bench.fitting import fitted
    from fmcpe.bench.measure import TEST_SEED, measured, reference_draws
    from fmcpe.bench.stack import stack_metrics
    from fmcpe.diagnostics.density import bounds_of

    task, evaluation = task_of(unit, data), unit.evaluation
    stacked: Any = None
    metrics: dict[str, Any] = {"real_side": task.real_side, "theta_names": list(task.theta_names)}
    metrics["theta_bounds"] = [[end if math.isfinite(end) else None for end in pair] for pair in bounds_of(task.prior)]
    metrics |= {"severity": task.severity, "strength": task.strength} if hasattr(task, "severity") else {}
    if unit.method == "reference":
        if task.real_side == "measured":
            return metrics | {"unknown": "measured data have no reference posterior"}, {}
        try:
            task.reference_posterior(task.test_set(1, 0)[1][0])
        except NotImplementedError as error:
            return metrics | {"unknown": str(error)}, {}
        draw = reference_draws(task)
    else:
        if base_file is None and unit.base is not None:
            raise ValueError(
                f"Expected the base posterior of {unit.label}, got none. Perform unit.base first and pass its file."
            )
        base = None if base_file is None else load_base(base_file)
        if evaluation.timed:
            return metrics | _timed(unit, task, base), {}
        started = time.perf_counter()
        posterior = fitted(unit, task, base)
        metrics["fit_seconds"] = time.perf_counter() - started
        metrics |= of_the_fit(posterior)
        if unit.task.startswith("zoo/") and getattr(posterior, "weights", None):
            stacked = posterior

        def draw(number: int, y: Any) -> Any:
            return posterior.sample_batched((number,), x=y, show_progress_bars=False)

    started = time.perf_counter()
    found, arrays = measured(draw, task, evaluation, unit.seed)
    if stacked is not None:
        with seeded(derive(unit.seed, "bench", "stack")):
            found["stack"] = stack_metrics(stacked, *task.test_set(evaluation.test, TEST_SEED))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    metrics["measuring_seconds"] = time.perf_counter() - started
    return metrics | found, {DRAWS_FILE: buffer.getvalue()}


def of_the_fit(posterior: Any) -> dict[str, Any]:
    """What a posterior says of its fit: summary, stacking weights, and candidates that were skipped."""
    found = {"summary": posterior.summary()} if hasattr(posterior, "summary") else {}
    if getattr(posterior, "weights", None):
        found |= {"weights": dict(posterior.weights), "skipped": dict(posterior.record.skipped)}
    return found


def _short(unit: Unit) -> Options:
    """The unit's recipe with one epoch."""
    return options(**dict(unit.recipe) | {"epochs": 1})


def _seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _timed_fit(unit: Unit, task: Any, base: Any) -> tuple[Any, float, float, dict[str, float]]:
    """The posterior, wall and CPU seconds, and seconds by part; the median of three runs for a short fit."""
    from fmcpe.bench.clock import timed_parts
    from fmcpe.bench.fitting import fitted

    runs: list[tuple[Any, float, float, dict[str, float]]] = []
    while len(runs) < (3 if not runs or runs[0][1] < SHORT else 1):
        with timed_parts() as clock:
            started, cpu = time.perf_counter(), time.process_time()
            posterior = fitted(unit, task, base, lambda simulator: clock.timed("simulation", simulator))
            seconds = time.perf_counter() - started, time.process_time() - cpu
        runs.append((posterior, *seconds, clock.seconds))
    return sorted(runs, key=lambda run: run[1])[len(runs) // 2]


def _timed(unit: Unit, task: Any, base: Any) -> dict[str, Any]:
    """Times of the fit and its parts, of one draw for each of many observations, and of many draws for one."""
    import torch

    from fmcpe.bench.fitting import fitted

    # warm up: exclude imports and other one-time costs
    fitted(replace(unit, pairs=min(unit.pairs, 10), simulations=300, epochs=1, recipe=_short(unit)), task, base)
    posterior, fit_seconds, fit_cpu_seconds, parts = _timed_fit(unit, task, base)
    number = unit.evaluation.timed
    y = task.test_set(min(number, task.test_limit or number), 0)[1]
    y = y[torch.arange(number) % len(y)]  # repeat observations if too few were measured

    def seconds(sample_shape: tuple[int, ...], x: Any) -> float:
        return _seconds_of(lambda: posterior.sample_batched(sample_shape, x=x, seed=0, show_progress_bars=False))

    first = seconds((min(1000, number),), y[:1])
    return of_the_fit(posterior) | {
        "fit_seconds": fit_seconds,
        "fit_cpu_seconds": fit_cpu_seconds,
        "parts": parts,
        "first_call_seconds": first,
        "one_observation_seconds": min(seconds((min(1000, number),), y[:1]) for _ in range(3)),
        "tenth_seconds": seconds((1,), y[: max(1, number // 10)]),
        "inference_seconds": seconds((1,), y),
    }
