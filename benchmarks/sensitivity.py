"""How much each option of the default recipe matters: half and double, on problems of the zoo's development half.

Options of a candidate change the energy score of that candidate's ensemble; options of `Stack` change that of the stack. Prints
the mean log ratio to the default ± standard error over six problems (30 pairs, one calibration set, 300 test pairs), and writes
a CSV.

    python benchmarks/sensitivity.py docs/results/zoo/sensitivity.csv
"""

from __future__ import annotations

import csv
import sys
import warnings
from dataclasses import fields, replace

import numpy as np
import torch

import fmcpe
from fmcpe import Stack, candidates, tasks
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.mixture import Mixture
from fmcpe.problem import build_problem, split_pairs
from fmcpe.stacking import training_rows

PROBLEMS = (
    "linear-gain-offset", "g-and-k-saturation", "heat-channels", "sir-nuisance", "oscillator-lag", "enzyme-missing-physics",
)  # fmt: skip
PAIRS = (30,)
TUNED = (candidates.SyntheticLikelihood(), candidates.JointFlow(), candidates.FineTuned())
OWN_FITS = ("folds", "repeats", "draws", "robust")
"""Options of `Stack` that change the fits; for all others, the fits of the default are combined again."""


def variants(default):
    """Each option at half and at twice its default."""
    for field in fields(default):
        value = getattr(default, field.name)
        if field.name == "candidates":
            continue
        if field.name == "degrees":
            yield field.name, value, [(1, 2), (1, 2, 3, 4)]
        elif field.name == "folds":
            yield field.name, value, [3, 10]
        elif isinstance(value, bool):
            yield field.name, value, [not value]
        elif field.name == "level":
            yield field.name, value, [0.4, 1.0]
        elif isinstance(value, int):
            yield field.name, value, [max(1, value // 2), 2 * value]
        else:
            yield field.name, value, [value / 2, 2 * value]


def setting(name, pairs):
    """The problem, the energy score of draws for its test pairs, and these: for each number of pairs."""
    task = tasks.get(f"zoo/{name}", seed=tasks.zoo.SEEDS["development"])
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
    )
    settings = []
    theta_test, y_test = task.test_set(300, 0)
    for number in pairs:
        theta, y = task.calibration_set(number, 0)
        with seeded(0):
            simulator = CheckedSimulator(task.simulator, y.shape[1:])
            problem = build_problem(as_base_posterior(base, task.prior), simulator, task.prior, theta, y, None)
        truth = problem.space.to_z_safely(theta_test)

        def score(posterior, truth=truth):
            with seeded(1), torch.no_grad():
                draws = posterior.sample(y_test, 64)
            return fmcpe.metrics.energy_score(draws.movedim(0, 1), truth)

        settings.append((problem, score, (theta_test, y_test)))
    return settings


def candidate_score(candidate, problem, score):
    """Of an ensemble fitted outside the folds of one split."""
    with seeded(0):
        folds = split_pairs(problem.theta, 5, 1)[0]
        members = candidate.fit_members(problem, [(folds != k).nonzero()[:, 0] for k in folds.unique()])
    return score(Mixture(members, torch.ones(len(members))))


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ratios: dict[tuple[str, str, str, str], list[float]] = {}
    for name in PROBLEMS:
        for problem, score, _ in setting(name, PAIRS):
            for candidate in TUNED:
                start = candidate_score(candidate, problem, score)
                for option, default, values in variants(candidate):
                    for value in values:
                        now = candidate_score(replace(candidate, **{option: value}), problem, score)
                        key = (candidate.name, option, str(default), str(value))
                        ratios.setdefault(key, []).append(np.log(now / start))
            stack = Stack()

            def fitted(stack, problem=problem):
                with seeded(0):
                    folds = split_pairs(problem.theta, stack.folds, stack.repeats)
                rows = training_rows(problem, folds, stack.robust)
                return folds, rows, *stack.cross_fit(problem, folds, rows, 0)

            parts = fitted(stack)
            start = score(stack.combine(problem, *parts, 0).posterior)
            for option, default, values in variants(stack):
                for value in values:
                    changed = replace(stack, **{option: value})
                    used = fitted(changed) if option in OWN_FITS else parts
                    now = score(changed.combine(problem, *used, 0).posterior)
                    ratios.setdefault(("stack", option, str(default), str(value)), []).append(np.log(now / start))
            print(name, len(problem), f"{start:.3f}", file=sys.stderr, flush=True)
    rows = [
        (*key, f"{100 * np.mean(logs):+.2f}", f"{100 * np.std(logs, ddof=1) / len(logs) ** 0.5:.2f}")
        for key, logs in ratios.items()
    ]
    header = ("of", "option", "default", "value", "log energy score, %", "standard error")
    for row in (header, *rows):
        print("  ".join(f"{cell:>22s}" for cell in row))
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main()
