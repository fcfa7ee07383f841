"""How long the metrics take at the sizes of the paper's experiments. Prints, never fails.

    python benchmarks/metrics.py

Pairs of the Gaussian task (3 parameters, 10 numbers) and draws of its exact posterior: the value of a metric is then its
floor. Wall time depends on what else the machine does; the processor time is that of the metric alone.
"""

import time

import torch

from fmcpe import metrics, tasks

NUMBER = 2000
LIMIT = 20.0  # seconds, for each of the first two: what docs/metrics.md promises


def main():
    """Print one line per metric."""
    torch.set_num_threads(1)
    task = tasks.get("gaussian")
    theta, y = task.test_set(NUMBER, 0)
    draws = torch.stack([task.reference_posterior(row).sample((100,), seed=i) for i, row in enumerate(y)], dim=1)
    pairs = metrics.joint(theta, draws[0], y)
    rows = {
        "joint_c2st": lambda: metrics.joint_c2st(theta, draws[0], y),
        "wasserstein2": lambda: metrics.wasserstein2(*pairs),
        "mmd2": lambda: metrics.mmd2(*pairs),
        "energy_score": lambda: metrics.energy_score(draws, theta),
    }
    print(f"{NUMBER} pairs of the Gaussian task, one thread; the limit of the first two is {LIMIT:.0f} s")
    print(f"{'metric':<14} {'value':>8} {'wall, s':>8} {'cpu, s':>7}")
    for name, compute in rows.items():
        wall, cpu = time.perf_counter(), time.process_time()
        value = compute()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name:<14} {value:>8.3f} {wall:>8.1f} {cpu:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
