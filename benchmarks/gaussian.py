"""How close the corrected posterior comes to the exact one on the Gaussian task, by number of pairs. Prints a table.

    python benchmarks/gaussian.py                        the library's own task
    python benchmarks/gaussian.py --data gaussian.npz    a file of simulations, pairs and matrices (see `load_file`)

C2ST is against the exact posterior of three test observations (0.5 is perfect), the mean of three calibration sets; coverage
is that of the central 90 % intervals on held-out observations; the error is that of the posterior mean in exact standard
deviations. Smaller calibration sets are prefixes of larger ones.
"""

import argparse
import time

import numpy as np
import torch

import fmcpe
from fmcpe import FMCPE, baselines, metrics, tasks
from fmcpe.diagnostics import central_coverage

RESEARCH_CODE = {10: 0.99, 50: 0.97, 200: 0.92, 1000: 0.76}
"""C2ST of the paper's research code on the file `gaussian.npz`, mean of three calibration sets."""


def load_file(path):
    """Task, simulations and calibration pools from one file."""
    data = np.load(path)
    pools = [(torch.tensor(data[f"theta_cal_{i}"]), torch.tensor(data[f"y_cal_{i}"])) for i in range(3)]
    simulations = torch.tensor(data["theta_sim"]), torch.tensor(data["x_sim"])
    test = torch.tensor(data["theta_test"]), torch.tensor(data["y_test"])
    return tasks.Gaussian.from_npz(path), simulations, pools, test


def make_data(num_simulations):
    """The same from the library's task."""
    task = tasks.get("gaussian")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theta = task.prior.sample((num_simulations,))
        simulations = theta, task.simulator(theta)
    return task, simulations, [task.calibration_set(1000, seed) for seed in range(3)], task.test_set(2000, 0)


def evaluate(task, posterior, test, num_observations=3):
    """C2ST, coverage and error of one posterior."""
    theta, y = (t[:500] for t in test)
    exact = [task.reference_posterior(row) for row in y]
    scores = [
        metrics.c2st(
            posterior.sample((2000,), x=y[i], seed=0, show_progress_bars=False),
            exact[i].sample((2000,), seed=1),
            seed=0,
        )
        for i in range(num_observations)
    ]
    draws = posterior.sample_batched((100,), x=y, seed=0, show_progress_bars=False)
    mean, std = torch.stack([e.mean for e in exact]), exact[0].cov.diagonal().sqrt()
    error = ((draws.mean(0) - mean) / std).abs().mean()
    return float(np.mean(scores)), float(central_coverage(draws, theta, 0.9).mean()), float(error)


def main():
    """Print one row per number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a file like gaussian.npz; without it, the library's own task")
    parser.add_argument("--recipe", default="paper", choices=("paper", "default"))
    parser.add_argument("--sizes", default="10,50,200,1000")
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--simulations", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(1)

    task, simulations, pools, test = load_file(options.data) if options.data else make_data(options.simulations)
    started = time.perf_counter()
    base = fmcpe.train_npe(None, task.prior, simulations=simulations, seed=0)
    print(
        f"base posterior: {time.perf_counter() - started:.0f} s, validation loss {min(base.history['validation_loss']):.3f}"
    )
    c2st, coverage, error = evaluate(task, baselines.NPE(base).fit(), test)
    print(f"uncorrected: C2ST {c2st:.3f}, 90 % coverage {coverage:.2f}, error {error:.1f}\n")

    head = f"{'pairs':>6} {'C2ST':>6} {'(each set)':>20} {'90 % coverage':>14} {'error':>6} {'fit, s':>7}"
    print(head + (f" {'research code':>14}" if options.data else ""))
    for size in map(int, options.sizes.split(",")):
        rows = []
        for seed, (theta, y) in enumerate(pools[: options.sets]):
            started = time.perf_counter()
            method = FMCPE(base, task.simulator, recipe=options.recipe)
            posterior = method.fit(theta[:size], y[:size], seed=seed, show_progress_bars=False)
            seconds = time.perf_counter() - started
            rows.append((*evaluate(task, posterior, test), seconds))
        c2st, coverage, error, seconds = np.mean(rows, axis=0)
        each = " ".join(f"{row[0]:.3f}" for row in rows)
        line = f"{size:>6} {c2st:>6.3f} {each:>20} {coverage:>14.2f} {error:>6.2f} {seconds:>7.0f}"
        print(line + (f" {RESEARCH_CODE[size]:>14.2f}" if options.data and size in RESEARCH_CODE else ""), flush=True)


if __name__ == "__main__":
    main()
