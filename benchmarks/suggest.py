"""Do suggested pairs help more than prior draws? 20 pairs of the prior and 20 more: drawn from it, or suggested.

Ratio of the energy score of 500 test pairs after 20 + 20 suggested pairs to that after 20 + 20 prior draws, on problems of the
zoo's development half. Prints geometric means with 95 % intervals over problems (sets of one problem are averaged first).

    python benchmarks/suggest.py docs/results/trust/suggest.csv

The CSV also has two arms that were removed from the library because they did not help: maximin designs, and a prior tilted by
the disagreement of the stack's members.

Resumable: rows that the CSV has are not measured again. Base posteriors are those of benchmarks/learning_curve.py.
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from learning_curve import LIGHT, problem_of
from scipy import stats

import fmcpe
from fmcpe import Stack
from fmcpe._random import derive, seeded
from fmcpe.diagnostics.learning_curve import unseen_scores
from fmcpe.diagnostics.suggest import design_weights, suggest

PROBLEMS = (
    "linear-gain-offset", "linear-channels", "linear-prior-shift", "g-and-k-saturation", "g-and-k-outliers",
    "heat-missing-physics", "heat-channels", "enzyme-missing-physics", "sir-nuisance", "oscillator-lag", "transit-nuisance",
)  # fmt: skip
RECIPES = {"light": (LIGHT, (0, 1, 2)), "default": (Stack(), (0,))}
ARMS = {"light": ("space", "space, weighted"), "default": ("space",)}
FIRST, MORE, TESTS, DRAWS = 20, 20, 500, 32
HEADER = ("recipe", "problem", "set", "more pairs", "energy score", "ratio to prior draws")


def measure(recipe, name, number):
    """Energy score after 20 + 20 pairs, by how the second 20 were chosen."""
    task, base = problem_of(name)
    method = fmcpe.FMCPE(base, task.simulator, target_prior=task.prior, recipe=RECIPES[recipe][0])
    theta, y = task.calibration_set(FIRST + MORE, number)
    theta_test, y_test = task.test_set(TESTS, 0)
    # suggestions by space need the pairs and the prior, but no good posterior: the light stack's will do
    first = fmcpe.FMCPE(base, task.simulator, target_prior=task.prior, recipe=LIGHT)
    first = first.fit(theta[:FIRST], y[:FIRST], seed=0, show_progress_bars=False)

    def score(pairs, observations, weights=None):
        posterior = method.fit(pairs, observations, weights=weights, seed=0, show_progress_bars=False)
        return float(unseen_scores(posterior, theta_test, y_test, DRAWS, 0).mean())

    found = {"prior": score(theta, y)}
    for arm in ARMS[recipe]:
        new = suggest(first, MORE, seed=number)
        with seeded(derive(number, name, arm.split(",")[0])):
            pairs, observations = torch.cat([theta[:FIRST], new]), torch.cat([y[:FIRST], task.observe(new)])
        found[arm] = score(pairs, observations, design_weights(first, pairs) if "weighted" in arm else None)
    return found


def summary(rows):
    """Geometric mean of the ratio over problems, with a 95 % interval."""
    lines = ["recipe   more pairs                problems  sets   ratio to prior draws"]
    for recipe, arms in ARMS.items():
        for arm in arms:
            logs = {}
            for row in rows:
                if (row[0], row[3]) == (recipe, arm):
                    logs.setdefault(row[1], []).append(np.log(float(row[5])))
            each = np.array([np.mean(values) for values in logs.values()])
            if len(each) > 1:
                half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / len(each) ** 0.5
                low, middle, high = np.exp([each.mean() - half, each.mean(), each.mean() + half])
                sets = sum(map(len, logs.values()))
                lines.append(f"{recipe:8s} {arm:24s} {len(each):9d} {sets:5d}   {middle:.3f} ({low:.3f} to {high:.3f})")
    return lines


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "suggest.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(csv.reader(path.open()))[1:] if path.exists() else []
    for recipe, (_, sets) in RECIPES.items():
        for number in sets:
            for name in PROBLEMS:
                if any(row[:3] == [recipe, name, str(number)] for row in rows):
                    continue
                started, found = time.process_time(), measure(recipe, name, number)
                for arm, value in found.items():
                    rows.append([recipe, name, str(number), arm, f"{value:.4f}", f"{value / found['prior']:.4f}"])
                with path.open("w", newline="") as file:
                    csv.writer(file).writerows([HEADER, *rows])
                print(
                    recipe, name, number, f"{time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True
                )
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
