"""Run directories with made-up numbers, for tests of everything that is made of them."""

import io

import numpy as np

from fmcpe.bench.clock import PARTS
from fmcpe.bench.plan import plan
from fmcpe.bench.store import Result, Store
from fmcpe.bench.work import BASE_FILE, DRAWS_FILE

GOODNESS = {"reference": 0.1, "fmcpe": 0.5, "fmcpe-paper": 0.8}
"""Errors by method; all others have 2. The method is the best there is, as the paper says."""


MACHINE = "a processor, 2 cores, 24 GiB of memory, Linux"


def made_up(unit, shift=0.0):
    """A result such as a unit of the real thing has."""
    if unit.kind == "base":
        metrics = {"validation_loss": 0.0, "machine": MACHINE}
        return Result(metrics, 1.0, {"fmcpe": "1"}, {BASE_FILE: b"base"})
    rng, p = np.random.default_rng(unit.set), 2
    alpha = dict(unit.options).get("alpha", 0.0)
    error = GOODNESS.get(unit.method, 2.0 + 0.1 * alpha) * (1 + 1 / max(1, unit.pairs)) + shift
    if unit.evaluation.timed:
        parts = dict.fromkeys(PARTS, 0.1)
        parts |= {"base draws": 1.0, "x-transport": 3.0}
        seconds = {"fit_seconds": {"fmcpe-paper": 20.0, "fmcpe": 1.0}.get(unit.method, 2.0), "inference_seconds": error}
        times = {"first_call_seconds": 1.0, "one_observation_seconds": 0.01, "tenth_seconds": 0.1, "parts": parts}
        return Result(seconds | times, 1.0, {"fmcpe": "1"})
    rate, clip = dict(unit.recipe).get("learning_rate", 0.0), dict(unit.recipe).get("clip", 0.0)
    rates = abs(np.log10(rate / 1e-3)) + 1e-3 * (clip < 2) if unit.recipe and rate else 0.0
    names = ("energy", "mse", "joint_w2", "joint_c2st", "joint_mmd2_paired", "c2st", "w2", "mmd2", "fit_seconds")
    metrics = dict.fromkeys(names, error + rates) | {"joint_mmd2": -9.0}  # the paper's form, which no table shows
    metrics |= {"crps": [error, error]} | ({"severity": "mild"} if unit.task.startswith("zoo/") else {})
    metrics |= {f"{name}_each": [error, 1.1 * error, 1.2 * error] for name in ("c2st", "w2", "mmd2")}
    metrics |= {"coverage": {"0.8": [0.8, 0.7], "0.9": [0.9, 0.8]}, "theta_names": ["a", "b"], "real_side": "stand-in"}
    metrics["sbc"] = {
        "num_samples": 20, "counts": [[5, 15], [15, 5], [10, 10], [10, 10]], "band": [5, 15], "p_values": [0.5, 0.5],
        "bias": [error, 0.0], "scale": [1.0, 1.0], "verdicts": ["calibrated: no miscalibration detected"] * 2,
        "names": ["a", "b"],
        "observations": 40, "statistics": [0.125, 0.25],
    }  # fmt: skip
    buffer = io.BytesIO()
    arrays = {"draws": rng.normal(size=(60, p)), "theta": np.zeros(p), "ranks": rng.integers(0, 21, (40, p))}
    np.savez_compressed(buffer, **arrays)
    return Result(metrics, 1.0, {"fmcpe": "1"}, {DRAWS_FILE: buffer.getvalue()})


def fill(directory, experiments, shift=0.0, wanted=lambda unit: True, preset="smoke"):
    """A run directory with made-up results; those of some units only, if they are said. The others wait."""
    with Store(directory, f"fmcpe bench run all --preset {preset}") as store:
        for experiment in experiments:
            units = plan(experiment, preset)
            store.add(experiment, preset, units)
            chosen = [unit.id for unit in units if wanted(unit)]
            while claimed := store.claim(chosen):
                store.finish(claimed, made_up(store.rows([claimed])[claimed].unit, shift))
    return directory
