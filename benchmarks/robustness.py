"""What one wrong pair costs: error on new pairs of fits with and without a fault among 30 pairs. Prints a table, writes a CSV.

    python benchmarks/robustness.py docs/results/trust/robustness.csv --light

"error" is the root mean square error of the posterior mean on 300 new pairs, in prior standard deviations of z; "energy" the
energy score; "clean" that of fits to the same calibration sets without the fault. "robust": `Stack(robust=)`, which leaves
such pairs out of the training rows, or 0, which keeps all. "found": repeats in which `suspects` names
the faulty pairs; "false": other pairs that it names, per fit. The recipe is the default one, or the light stack of
benchmarks/suspects.py (a second per fit); the base posterior is trained once for each problem.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from suspects import LIGHT, PAIRS, base_of, faulty

import fmcpe
from fmcpe import FMCPE, Stack
from fmcpe._random import derive
from fmcpe.diagnostics import suspects
from fmcpe.spaces import ParameterSpace

PROBLEMS = ("gaussian", "zoo/heat-gain-offset", "zoo/g-and-k-saturation")
FAULTS = ("clean", "y x 10", "flip", "swap")
FIELDS = (
    "problem",
    "robust",
    "fault",
    "repeats",
    "error",
    "clean error",
    "increase",
    "energy",
    "clean energy",
    "ratio",
    "found",
    "false",
)


def measure(name, task, base, recipe, faults, repeats):
    """Error, energy score, whether the fault was found, and false alarms, by fault, each (repeats, 4)."""
    space = ParameterSpace.of(task.prior)
    theta_test, y_test = task.test_set(300, 0)
    truth = space.to_z_safely(theta_test)
    found = {}
    for fault in faults:
        for repeat in range(repeats):
            theta, y = task.calibration_set(PAIRS, 1000 + repeat)
            generator = torch.Generator().manual_seed(derive(repeat, fault))
            theta, y, wrong = faulty(theta, y, space.to_z_safely(theta), fault, generator)
            posterior = FMCPE(base, task.simulator, task.prior, recipe=recipe).fit(
                theta, y, seed=repeat, show_progress_bars=False
            )
            draws = posterior.sample_batched((64,), x=y_test, seed=0, show_progress_bars=False)
            z = space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape)
            error = float((z.mean(0) - truth).square().mean().sqrt())
            named = {each.pair for each in suspects(posterior)}
            hit, false = bool(wrong) and set(wrong) <= named, len(named - set(wrong))
            found.setdefault(fault, []).append((error, fmcpe.metrics.energy_score(z, truth), hit, false))
            weights = {k: round(v, 2) for k, v in posterior.weights.items() if v > 0}
            print(name, fault, repeat, *(f"{v:.3f}" for v in found[fault][-1]), weights, file=sys.stderr, flush=True)
    return {fault: np.array(rows) for fault, rows in found.items()}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--light", action="store_true", help="the light stack in place of the default recipe")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--problem", nargs="*", default=PROBLEMS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, recipe = [], LIGHT if options.light else Stack()
    for name in options.problem:
        task, base = base_of(name)
        for robust in (False, True):
            found = measure(name, task, base, replace(recipe, robust=robust), FAULTS, options.repeats)
            clean = found["clean"].mean(0)
            for fault in FAULTS:
                error, energy, hit, false = found[fault].mean(0)
                numbers = (error, clean[0], error - clean[0], energy, clean[1], energy / clean[1], hit, false)
                rows.append((name, robust, fault, options.repeats, *(f"{number:.3f}" for number in numbers)))
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="") as file:
        csv.writer(file).writerows([FIELDS, *rows])
    for row in (FIELDS, *rows):
        print("  ".join(f"{cell!s:>12s}" for cell in row))


if __name__ == "__main__":
    main()
