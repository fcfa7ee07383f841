"""Tests of the simulator on the zoo: false alarms where it is right, power where it is wrong. Prints tables, writes a CSV.

    python benchmarks/misspecification.py docs/results/trust/misspecification.csv

Summaries are those of a small base posterior (3000 simulations, 10 epochs) for series and images, and the data themselves for
vectors. A repeat draws new pairs and new simulations; every test has a level of 5 %. Rows that the CSV already has are not measured
again. "sbi" is `calc_misspecification_mmd` of sbi, on the same summaries, where the simulator is right.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from sbi.diagnostics.misspecification import calc_misspecification_mmd
from scipy import stats

import fmcpe
from fmcpe import tasks
from fmcpe._random import derive, seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.diagnostics import conditional_test, marginal_test
from fmcpe.spaces import ParameterSpace

SIZES, PERMUTATIONS, LEVEL = (10, 30, 100), 199, 0.05
FIELDS = (
    "problem", "half", "kind", "severity", "pairs", "repeats", "conditional", "shift", "trend", "spread", "shape", "mmd",
    "log_prob", "sbi",
)  # fmt: skip
CONTROLS = {"gaussian": "right", "gaussian (pairs in a corner)": "right, other θ"}


def summary_of(task, simulator, prior):
    """The base posterior's summary: the data themselves for vectors."""
    with seeded(0):
        net = task.embedding_net()
    if net is None:
        return lambda x: x.flatten(1)
    base = fmcpe.train_npe(simulator, prior, 3000, net, seed=0, max_num_epochs=10, show_progress_bars=False)
    summarise = as_base_posterior(base, task.prior).summarised().summarise
    return lambda x: summarise(x).flatten(1).detach()


def setting(name):
    """Half, kind and severity; a function of (pairs, repeat) that gives θ and y; simulator, its prior, and the summary."""
    if name in CONTROLS:
        task = tasks.get("gaussian")

        def draw(number, repeat):
            theta = task.prior.sample((number,)).float()
            if CONTROLS[name] != "right":
                theta = theta.mean(0) + 2 + 0.3 * (theta - theta.mean(0))
            return theta, task.simulator(theta)

        return ("control", CONTROLS[name], "none"), draw, task.simulator, task.prior, task.prior, lambda x: x.flatten(1)
    half = tasks.zoo.half_of(name)
    task = tasks.get(name, seed=tasks.zoo.SEEDS[half])
    labels = (half, tasks.zoo.split(name)[1], task.severity)
    summarise = summary_of(task, task.simulator, task.simulation_prior)

    def draw(number, repeat):
        return task.calibration_set(number, 10_000 + repeat)

    return labels, draw, task.simulator, task.simulation_prior, task.prior, summarise


def measure(name, sizes, repeats):
    """Rejection rates of one problem, a row per number of pairs."""
    labels, draw, simulator, simulation_prior, prior, summarise = setting(name)
    space = ParameterSpace.of(prior)
    for number in sizes:
        found = []
        for repeat in range(repeats):
            with seeded(derive(repeat, name, number)), torch.no_grad():
                theta, y = draw(number, repeat)
                x = summarise(simulator(theta.repeat_interleave(16, 0))).unflatten(0, (number, 16))
                bank = summarise(simulator(simulation_prior.sample((300,)).float()))
                y = summarise(y)
            options = {"num_permutations": PERMUTATIONS, "seed": repeat}
            one = conditional_test(y, x, space.to_z_safely(theta), **options)
            all_ = marginal_test(y, bank, **options)
            sbi = np.nan
            if labels[2] == "none" and number == 30:
                with seeded(repeat):
                    sbi = calc_misspecification_mmd(y, bank, n_shuffle=100)[0]
            p = [one.p_value, *(one.p_values[k] for k in ("shift", "trend", "spread", "shape"))]
            found.append([*p, all_.p_mmd, all_.p_log_prob, sbi])
        rates = (np.array(found) <= LEVEL).mean(0)
        rates[-1] = np.nan if np.isnan(found[0][-1]) else rates[-1]
        yield (name, *labels, number, repeats, *(f"{rate:.3f}" for rate in rates))


def main():
    """Measure what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--null-repeats", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=10)
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
    for name in (*CONTROLS, *tasks.zoo.names()):
        if name in done:
            continue
        null = name in CONTROLS or name.endswith("-none")
        rows = list(measure(name, SIZES, options.null_repeats if null else options.repeats))
        with options.csv.open("a", newline="") as file:
            csv.writer(file).writerows(rows)
        print(*rows[-1], file=sys.stderr, flush=True)
    with options.csv.open() as file:
        report(list(csv.DictReader(file)))


def report(rows):
    """Tables of rejection rates, in per cent."""
    tests = FIELDS[6:]

    def line(label, chosen):
        total = sum(int(row["repeats"]) for row in chosen)
        cells = []
        for test in tests:
            rates = [(float(row[test]), int(row["repeats"])) for row in chosen if row[test] != "nan"]
            cells.append(f"{100 * np.average(*zip(*rates, strict=True)):8.1f}" if rates else f"{'':8s}")
        print(f"{label:34s} {total:6d} " + " ".join(cells))

    header = f"{'':34s} {'tests':>6s} " + " ".join(f"{test[:8]:>8s}" for test in tests)
    null = [row for row in rows if row["severity"] == "none" and row["kind"] != "right, other θ"]
    total = sum(int(row["repeats"]) for row in null)
    low, high = (100 * stats.binom.ppf(q, total, LEVEL) / total for q in (0.025, 0.975))
    print(
        f"\nFalse alarms at 5 %, per cent of tests (95 % of {total} tests at the nominal rate: {low:.1f} to {high:.1f})\n{header}"
    )
    for name in dict.fromkeys(row["problem"] for row in null):
        line(name, [row for row in null if row["problem"] == name])
    for number in SIZES:
        line(f"{number} pairs", [row for row in null if int(row["pairs"]) == number])
    line("all", null)
    line("gaussian (pairs in a corner)", [row for row in rows if row["kind"] == "right, other θ"])
    wrong = [row for row in rows if row["severity"] not in ("none",) and row["kind"] != "prior-shift"]
    print(f"\nPower, per cent of tests\n{header}")
    for half in ("development", "reporting"):
        for severity in ("mild", "moderate", "severe"):
            for number in SIZES:
                chosen = [
                    row
                    for row in wrong
                    if row["half"] == half and row["severity"] == severity and int(row["pairs"]) == number
                ]
                if chosen:
                    line(f"{half}, {severity}, {number} pairs", chosen)
    print(f"\nBy kind, 30 pairs, both halves\n{header}")
    for kind in sorted({row["kind"] for row in rows if row["half"] != "control"}):
        line(
            kind, [row for row in rows if row["kind"] == kind and int(row["pairs"]) == 30 and row["half"] != "control"]
        )


if __name__ == "__main__":
    main()
