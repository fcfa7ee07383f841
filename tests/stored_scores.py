"""Scores of the method on fixed problems, and those that are stored, with their Monte-Carlo error.

    python tests/stored_scores.py                          compute all again and store them (a quarter of an hour on one core)
    python tests/stored_scores.py gaussian zoo/linear-none  only these

A *run* trains a base posterior, fits five calibration sets and averages their scores: the log energy score on 500 test
pairs, the distance of the mean coverage of 90 % intervals from 0.9, and C2ST to the exact posterior where there is one. Runs
differ in the seed of the base posterior and the fits alone, never in the data, so their spread is the Monte-Carlo error of
the method. It is what a harmless change of the code moves a score by.
"""

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, tasks
from fmcpe.bench.measure import measured
from fmcpe.bench.units import Evaluation
from fmcpe.tasks import zoo

FILE = Path(__file__).with_suffix(".json")
RUNS, SETS, LIMIT = 4, 5, 3.0
SCORES = ("log_energy", "coverage", "c2st")
"""The smaller the better."""
EXACT = {"gaussian": 100, "offset": 30}
"""Tasks with an exact posterior, and their number of pairs."""
ZOO = ("zoo/linear-none", "zoo/linear-gain-offset", "zoo/heat-channels")
"""A part of the development half, chosen for being quick: each with 30 pairs."""
PROBLEMS = (*EXACT, *ZOO)

Scores = dict[str, float]


def run(problem: str, seed: int, recipe: Any = "default") -> Scores:
    """Scores of one run, averaged over calibration sets."""
    task = tasks.get(problem, **({"seed": zoo.SEEDS["development"]} if problem in ZOO else {}))
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, task.embedding_net(), seed=seed, max_num_epochs=10,
        show_progress_bars=False,
    )  # fmt: skip
    rows = [
        _scores(task, FMCPE(base, task.simulator, task.prior, recipe=recipe), problem, k, seed) for k in range(SETS)
    ]
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def _scores(task: Any, method: FMCPE, name: str, calibration_set: int, seed: int) -> Scores:
    pairs = task.calibration_set(EXACT.get(name, 30), calibration_set)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        posterior = method.fit(*pairs, seed=seed, show_progress_bars=False)
        found, _ = measured(
            lambda n, y: posterior.sample_batched((n,), x=y, show_progress_bars=False), task,
            Evaluation(test=500, draws=100, reference=5 if name in EXACT else 0, reference_draws=1000, joint=False), seed,
        )  # fmt: skip
    scores = {"log_energy": math.log(found["energy"]), "coverage": abs(float(np.mean(found["coverage"]["0.9"])) - 0.9)}
    return scores | ({"c2st": found["c2st"]} if name in EXACT else {})


def stored() -> dict[str, list[Scores]]:
    """The stored runs of each problem."""
    return json.loads(FILE.read_text())["runs"] if FILE.is_file() else {}


def spread(known: Mapping[str, list[Scores]], score: str) -> dict[str, float]:
    """Monte-Carlo standard deviation of one run, for each problem: its own, or the one that all share if that is larger.

    Four runs know a standard deviation poorly.
    """
    own = {p: float(np.std([r[score] for r in runs], ddof=1)) for p, runs in known.items() if score in runs[0]}
    shared = float(np.sqrt(np.mean(np.square([*own.values()]))))
    return {problem: max(value, shared) for problem, value in own.items()}


def compared(found: Mapping[str, Scores]) -> tuple[str, list[str]]:
    """A table of new scores beside stored ones, and what became worse, in words.

    A score is worse if it exceeds the mean of the stored runs by three standard errors of the difference, on one problem or
    on the mean over all.
    """
    known, lines, worse = {p: stored()[p] for p in found}, [], []
    for score in SCORES:
        spreads = spread(known, score)
        differences, errors = [], []
        for problem in spreads:
            runs = [row[score] for row in known[problem]]
            difference, error = (
                found[problem][score] - float(np.mean(runs)),
                spreads[problem] * math.sqrt(1 + 1 / len(runs)),
            )
            lines.append(_line(problem, score, difference, error))
            worse += [lines[-1]] if difference > LIMIT * error else []
            differences.append(difference)
            errors.append(error)
        mean, error = float(np.mean(differences)), math.sqrt(sum(e**2 for e in errors)) / len(errors)
        lines.append(_line("mean of all", score, mean, error))
        worse += [lines[-1]] if mean > LIMIT * error else []
    return "\n".join(lines), worse


def _line(problem: str, score: str, difference: float, error: float) -> str:
    return f"{problem:32} {score:11} {difference:+.4f} ± {error:.4f}"


def all_problems(recipe: Any = "default", report: Callable[[str], Any] = print) -> dict[str, Scores]:
    """Scores of a run with the first seed, for every problem."""
    found = {}
    for problem in PROBLEMS:
        found[problem] = run(problem, 0, recipe)
        report(f"{problem}: {found[problem]}")
    return found


def main(names: list[str]) -> None:
    """Compute and store."""
    torch.set_num_threads(1)
    for problem in names or PROBLEMS:
        runs = [run(problem, seed) for seed in range(RUNS)]
        known = stored() | {problem: runs}
        ordered = {name: known[name] for name in PROBLEMS if name in known}
        FILE.write_text(
            json.dumps({"command": "python tests/stored_scores.py", "runs": ordered}, indent=1, allow_nan=False) + "\n"
        )
        print(problem, {key: [round(row[key], 4) for row in runs] for key in runs[0]}, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
