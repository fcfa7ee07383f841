"""What roughening costs where nothing is rough: log density of clean simulations, with and without. Prints a table.

python benchmarks/roughening.py                      pendulum and wind-tunnel, 50 000 simulations each
python benchmarks/roughening.py pendulum --seeds 3
"""

import argparse
import time

import torch

import fmcpe
from fmcpe import tasks
from fmcpe._random import seeded


def main():
    """Print one row per task, seed and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["pendulum", "wind-tunnel"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--simulations", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'task':>14} {'seed':>5} {'domain_randomisation':>8} {'log density of clean θ':>24} {'CPU s':>7}")
    for name in options.tasks:
        task = tasks.get(name)
        with seeded(7):
            theta = task.simulation_prior.sample((3000,))
            x = task.simulator(theta)
        for seed in range(options.seeds):
            for domain_randomisation in (False, True):
                with seeded(seed):
                    net = task.embedding_net()
                started = time.process_time()
                base = fmcpe.train_npe(
                    task.simulator,
                    task.simulation_prior,
                    options.simulations,
                    net,
                    seed=seed,
                    domain_randomisation=domain_randomisation,
                )
                seconds = time.process_time() - started
                with torch.no_grad():
                    density = -float(base.posterior_estimator.loss(theta, x).mean())
                print(f"{name:>14} {seed:>5} {domain_randomisation!s:>8} {density:>24.3f} {seconds:>7.0f}", flush=True)


if __name__ == "__main__":
    main()
