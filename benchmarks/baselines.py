"""All methods by number of calibration pairs, all metrics, beside the reference posterior. Prints a table per task.

    python benchmarks/baselines.py                                              everything: many hours on two cores
    python benchmarks/baselines.py --tasks gaussian --sizes 50,200 --sets 1     a part
    python benchmarks/baselines.py --methods mf-npe,rope --data gaussian.npz    the Gaussian task from a file

One row is the mean over the calibration sets; smaller sets are prefixes of larger ones. Columns, lower is better unless said:

    W2       joint (θ, y), standardised, exact; its floor is that of the reference row, not zero
    jC2ST    joint (θ, y): accuracy of a classifier, 0.5 is perfect
    MMD²     joint (θ, y), standardised, bandwidth 10, the unbiased formula of the paper, in units of 1e-4
    MSE      of draws, θ in units of its spread over the test set
    energy   score of draws, in the same units
    cov80    share of truths in central 80 % intervals, mean over parameters; 0.80 is right; and so on
    C2ST     against the reference posterior of the first observations, answered as a batch; 0.5 is perfect
    fit, s   seconds of training; draw, s: of drawing for all test observations
"""

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
import torch

import fmcpe
from fmcpe import metrics, tasks
from fmcpe.bench.methods import METHODS, WITHOUT_PAIRS
from fmcpe.diagnostics import central_coverage

COLUMNS = ("W2", "jC2ST", "MMD²", "MSE", "energy", "cov80", "cov90", "C2ST", "fit, s", "draw, s")
DRAWS = 100


class Reference:
    """The true posterior, with the two drawing methods that `evaluate` uses; a reference is known one y at a time."""

    def __init__(self, task):
        self.task = task

    def sample_batched(self, shape, x, seed, show_progress_bars=False):
        each = [self.task.reference_posterior(y).sample(shape, seed=seed + i) for i, y in enumerate(x)]
        return torch.stack(each, dim=1)


def evaluate(posterior, test, exact, embedding):
    """All metrics of one posterior but the seconds of its fit, in the order of `COLUMNS`."""
    theta, y = test
    started = time.perf_counter()
    draws = posterior.sample_batched((DRAWS,), x=y, seed=0, show_progress_bars=False)
    seconds = time.perf_counter() - started
    truth, scaled = metrics.standardise(theta, draws)
    pairs = metrics.joint(theta, draws[0], y)
    against = posterior.sample_batched((exact.shape[0],), x=y[: exact.shape[1]], seed=1, show_progress_bars=False)
    return [
        metrics.wasserstein2(*pairs),
        metrics.joint_c2st(theta, draws[0], y, embedding=embedding),
        1e4 * metrics.mmd2(*pairs),
        metrics.mse(scaled, truth),
        metrics.energy_score(scaled, truth),
        float(central_coverage(draws, theta, 0.8).mean()),
        float(central_coverage(draws, theta, 0.9).mean()),
        float(np.mean([metrics.c2st(against[:, i], exact[:, i]) for i in range(exact.shape[1])])),
        seconds,
    ]


def problem(name, data, num_simulations, num_test, sets):
    """Task, simulations, calibration sets and test set."""
    if data is not None and name == "gaussian":
        spec = importlib.util.spec_from_file_location("gaussian_file", Path(__file__).with_name("gaussian.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        task, simulations, pools, test = module.load_file(data)
        return task, simulations, pools[:sets], tuple(part[:num_test] for part in test)
    task = tasks.get(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theta = task.simulation_prior.sample((num_simulations,))
        simulations = theta, task.simulator(theta)
    return task, simulations, [task.calibration_set(1000, seed) for seed in range(sets)], task.test_set(num_test, 0)


def show(method, size, values):
    """One line of the table."""
    print(f"{method:>17} {size:>6} " + " ".join(f"{value:>8.3f}" for value in values), flush=True)


def main():
    """Print one table per task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="gaussian,pendulum")
    parser.add_argument("--sizes", default="10,50,200,1000")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--simulations", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=1000, help="test observations")
    parser.add_argument("--observations", type=int, default=3, help="observations of the C2ST column")
    parser.add_argument("--data", help="a file like gaussian.npz, for the Gaussian task; see benchmarks/gaussian.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = options.methods.split(",")
    unknown = sorted(set(chosen) - set(METHODS))
    if unknown:
        parser.error(f"unknown method(s) {', '.join(unknown)}; choose from {', '.join(METHODS)}")

    for name in options.tasks.split(","):
        task, simulations, pools, test = problem(name, options.data, options.simulations, options.test, options.sets)
        started = time.perf_counter()
        net = task.embedding_net()
        base = fmcpe.train_npe(None, task.simulation_prior, embedding_net=net, simulations=simulations, seed=0)
        print(f"\n{name}: base posterior in {time.perf_counter() - started:.0f} s, {len(test[0])} test observations")
        print(f"{'method':>17} {'pairs':>6} " + " ".join(f"{column:>8}" for column in COLUMNS))
        embedding = None if net is None else task.embedding_net
        reference = Reference(task)
        exact = reference.sample_batched((1000,), test[1][: options.observations], seed=10_000)
        floor = evaluate(reference, test, exact, embedding)
        show("reference", "", [*floor[:-1], 0.0, *floor[-1:]])
        for method in chosen:
            for size in map(int, options.sizes.split(",")):
                rows = []
                for seed, (theta, y) in enumerate(pools):
                    started = time.perf_counter()
                    posterior = METHODS[method](base, task, simulations).fit(
                        theta[:size], y[:size], seed=seed, show_progress_bars=False
                    )
                    seconds = time.perf_counter() - started
                    values = evaluate(posterior, test, exact, embedding)
                    rows.append([*values[:-1], seconds, *values[-1:]])
                    if method in WITHOUT_PAIRS:
                        break
                show(method, "none" if method in WITHOUT_PAIRS else size, np.mean(rows, axis=0))
                if method in WITHOUT_PAIRS:
                    break


if __name__ == "__main__":
    main()
