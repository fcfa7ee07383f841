"""Are wrong pairs found? One y × 10, one sign flip of y, two swapped rows, or none, among 30. Prints a table, writes a CSV.

    python benchmarks/suspects.py docs/results/trust/suspects.csv                       light stack, 100 repeats of each
    python benchmarks/suspects.py docs/results/trust/suspects-default.csv --default --repeats 10
    python benchmarks/suspects.py suspects-many.csv --problem pendulum --fault clean --pairs 200 --repeats 20

"found": the faulty pair, or both swapped rows, are named; "one": at least one of the swapped rows; "false": other pairs that
are named, per fit; "first": the most suspect pair is faulty. Swapped rows are at least one prior standard deviation apart in z.
The light stack (prior, uncorrected, residual shift, synthetic likelihood) takes a second; the base posterior is trained once.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import fmcpe
from fmcpe import FMCPE, Stack, candidates, tasks
from fmcpe._random import derive, seeded
from fmcpe.diagnostics import suspects
from fmcpe.spaces import ParameterSpace

FAULTS = ("clean", "y x 10", "flip", "swap")
LIGHT = Stack(
    [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood()]
)
PROBLEMS = ("gaussian", "zoo/heat-gain-offset")
PAIRS = 30
FIELDS = ("problem", "recipe", "fault", "repeats", "found", "one", "first", "false")


def faulty(theta, y, z, fault, generator):
    """The pairs with a fault, and the rows that have it."""
    theta, y = theta.clone(), y.clone()
    j = int(torch.randint(len(y), (), generator=generator))
    if fault == "y x 10":
        y[j] *= 10
    elif fault == "flip":
        y[j] *= -1
    elif fault == "swap":
        apart = ((z - z[j]).norm(dim=1) >= 1).nonzero()[:, 0]
        k = int(apart[int(torch.randint(len(apart), (), generator=generator))])
        theta[[j, k]] = theta[[k, j]]
        return theta, y, [j, k]
    return theta, y, [] if fault == "clean" else [j]


def base_of(name):
    """Task and base posterior."""
    seed = {} if not name.startswith("zoo/") else {"seed": tasks.zoo.SEEDS[tasks.zoo.half_of(name)]}
    task = tasks.get(name, **seed)
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
    )
    return task, base


def measure(name, recipe, label, faults, repeats, keep=None, pairs=PAIRS):
    """A row per fault; `keep` is called with each posterior, the faulty rows, and where it came from."""
    task, base = base_of(name)
    space = ParameterSpace.of(task.prior)
    for fault in faults:
        found = []
        for repeat in range(repeats):
            theta, y = task.calibration_set(pairs, 1000 + repeat)
            generator = torch.Generator().manual_seed(derive(repeat, fault))
            theta, y, wrong = faulty(theta, y, space.to_z_safely(theta), fault, generator)
            posterior = FMCPE(base, task.simulator, task.prior, recipe=recipe).fit(
                theta, y, seed=repeat, show_progress_bars=False
            )
            if keep is not None:
                keep(posterior, wrong, (name, fault, repeat))
            named = [each.pair for each in suspects(posterior)]
            found.append(
                [
                    bool(wrong) and set(wrong) <= set(named),
                    bool(set(wrong) & set(named)),
                    bool(named) and named[0] in wrong,
                    len(set(named) - set(wrong)),
                ]
            )
        means = np.array(found, dtype=float).mean(0)
        row = (name, label, fault, repeats, *(f"{value:.3f}" for value in means))
        print(*row, file=sys.stderr, flush=True)
        yield row


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--default", action="store_true", help="the default recipe in place of the light stack")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--problem", nargs="*", default=PROBLEMS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--fault", nargs="*", default=FAULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    recipe, label = (Stack(), "default") if options.default else (LIGHT, "light")
    rows = []
    for name in options.problem:
        rows += list(measure(name, recipe, label, options.fault, options.repeats, pairs=options.pairs))
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="") as file:
        csv.writer(file).writerows([FIELDS, *rows])
    for row in (FIELDS, *rows):
        print("  ".join(f"{cell!s:>20s}" for cell in row))


if __name__ == "__main__":
    main()
