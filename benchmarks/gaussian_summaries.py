"""Detection of misspecification from real observations without θ: plain summaries against standard normal ones.

    python benchmarks/gaussian_summaries.py docs/results/trust/gaussian-summaries.csv

A base posterior is trained twice (4000 simulations, 15 epochs of minibatches of 200), with `gaussian_summaries` 0 and 10: for
the series and images among the zoo's quick problems, and for a toy after Schmitt et al. (2024): 100 points of N(θ, I) in two
dimensions, θ ~ N(0, I), four features. Each test (`fmcpe.diagnostics.misspecification` without pairs, level 5 %) draws new
observations; false alarms have observations of the simulator itself. "nll" is the negative log posterior density of θ at 2000
new simulations, which shows what the penalty costs. Problems that the CSV has are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import nn

import fmcpe
from fmcpe import tasks
from fmcpe._random import derive, seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.bench.presets import ZOO_QUICK
from fmcpe.diagnostics import misspecification
from fmcpe.tasks import zoo

SIZES, LEVEL, GAMMAS = (1, 10, 100), 0.05, (0.0, 10.0)
FIELDS = ("problem", "half", "kind", "severity", "gamma", "observations", "tests", "mmd", "log_prob", "nll")
TOY = "normal-means"
PROBLEMS = (TOY, *(name for name in ZOO_QUICK if zoo.split(name)[0] in (*zoo.SERIES, *zoo.IMAGES)))


def toy():
    """Simulator, prior and network of the toy, and its real processes by kind."""
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))

    def points(theta, scale=1.0):
        return theta[:, :, None] + scale * torch.randn(len(theta), 2, 100)

    def contaminated(theta):
        return torch.where(torch.rand(len(theta), 1, 100) < 0.1, 5 * torch.randn(len(theta), 2, 100), points(theta))

    net = nn.Sequential(  # the same network for each point, then their mean
        nn.Conv1d(2, 32, 1),
        nn.SiLU(),
        nn.Conv1d(32, 32, 1),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.SiLU(),
        nn.Linear(32, 4),
    )
    wide = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))
    kinds = {
        "prior shifted by 1": lambda number: points(1 + prior.sample((number,))),
        "prior twice as wide": lambda number: points(wide.sample((number,))),
        "noise × 1.5": lambda number: points(prior.sample((number,)), 1.5),
        "noise × 0.7": lambda number: points(prior.sample((number,)), 0.7),
        "10 % contaminated": lambda number: contaminated(prior.sample((number,))),
    }
    return points, prior, net, {kind: ("toy", draw) for kind, draw in kinds.items()}


def problem(name):
    """The same of a problem of the zoo."""
    if name == TOY:
        return toy()
    task = tasks.get(name, seed=zoo.SEEDS[zoo.half_of(name)])

    def draw(number):
        return task.calibration_set(number, int(torch.randint(10**6, ())))[1]

    wrong = {} if task.severity == "none" else {zoo.split(name)[1]: (task.severity, draw)}
    return task.simulator, task.simulation_prior, task.embedding_net(), wrong


def measure(name, null_tests, tests):
    """Rejection rates of one problem, a row for each network, real process and number of observations."""
    half = "toy" if name == TOY else zoo.half_of(name)
    with seeded(0):
        simulator, prior, net, kinds = problem(name)
    for gamma in GAMMAS:
        base = fmcpe.train_npe(
            simulator, prior, 4000, net, seed=0, max_num_epochs=15, training_batch_size=200, gaussian_summaries=gamma,
            show_progress_bars=False,
        )  # fmt: skip
        with seeded(1), torch.no_grad():
            theta = prior.sample((2000,)).float()
            density = as_base_posterior(base).log_prob(theta[:, None], simulator(theta))
        nll = -float(density.mean())
        processes = {"none": ("none", lambda number: simulator(prior.sample((number,)).float())), **kinds}
        for kind, (severity, draw) in processes.items():
            for number in SIZES:
                repeats, found = null_tests if kind == "none" else tests, []
                for repeat in range(repeats):
                    with seeded(derive(repeat, name, kind, number)):
                        y = draw(number)
                    test = misspecification(
                        base, y, simulator, num_simulations=200, num_permutations=99, seed=repeat
                    ).marginal
                    found.append([test.p_mmd, test.p_log_prob])
                rates = (np.array(found) <= LEVEL).mean(0)
                yield (
                    name,
                    half,
                    kind,
                    severity,
                    gamma,
                    number,
                    repeats,
                    *(f"{rate:.3f}" for rate in rates),
                    f"{nll:.3f}",
                )


def main():
    """Measure what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--problem", action="append", help="only these")
    parser.add_argument("--null-tests", type=int, default=60)
    parser.add_argument("--tests", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = set()
    if options.csv.exists():
        with options.csv.open() as file:
            done = {row["problem"] for row in csv.DictReader(file)}
    else:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerow(FIELDS)
    for name in options.problem or PROBLEMS:
        if name in done:
            continue
        rows = list(measure(name, options.null_tests, options.tests))
        with options.csv.open("a", newline="") as file:
            csv.writer(file).writerows(rows)
        print(name, file=sys.stderr, flush=True)
    with options.csv.open() as file:
        report(list(csv.DictReader(file)))


def report(rows):
    """Tables of rejection rates, in per cent, γ = 0 / γ = 10, and of the loss."""

    def rate(chosen, gamma, test="mmd"):
        chosen = [row for row in chosen if float(row["gamma"]) == gamma]
        total = sum(int(row["tests"]) for row in chosen)
        return 100 * sum(float(row[test]) * int(row["tests"]) for row in chosen) / total if total else float("nan")

    def line(label, chosen):
        cells = []
        for number in SIZES:
            part = [row for row in chosen if int(row["observations"]) == number]
            cells.append(" / ".join(f"{rate(part, gamma):5.1f}" for gamma in GAMMAS))
        print(f"{label:46s} " + "  ".join(f"{cell:>15s}" for cell in cells))

    header = f"{'rejected, γ = 0 / γ = 10; observations:':46s} " + "  ".join(f"{number:15d}" for number in SIZES)
    null, wrong = ([row for row in rows if (row["kind"] == "none") == right] for right in (True, False))
    total = sum(int(row["tests"]) for row in null) // (len(SIZES) * len(GAMMAS))
    low, high = (100 * stats.binom.ppf(q, total, LEVEL) / total for q in (0.025, 0.975))
    print(
        f"\nFalse alarms at 5 %, per cent ({total} tests a cell: 95 % of them between {low:.1f} and {high:.1f})\n{header}"
    )
    for name in dict.fromkeys(row["problem"] for row in null):
        line(name, [row for row in null if row["problem"] == name])
    line("all", null)
    print(f"\nPower, per cent\n{header}")
    for name, kind in dict.fromkeys((row["problem"], row["kind"]) for row in wrong):
        line(f"{name}, {kind}", [row for row in wrong if (row["problem"], row["kind"]) == (name, kind)])
    for half in dict.fromkeys(row["half"] for row in wrong):
        line(f"all of {half}", [row for row in wrong if row["half"] == half])
    print("\nNegative log posterior density at new simulations, γ = 0 / γ = 10")
    for name in dict.fromkeys(row["problem"] for row in rows):
        each = [next(float(r["nll"]) for r in null if r["problem"] == name and float(r["gamma"]) == g) for g in GAMMAS]
        print(f"{name:46s} " + " / ".join(f"{value:7.3f}" for value in each))


if __name__ == "__main__":
    main()
