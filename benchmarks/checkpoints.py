"""Which weights the paper's recipe should keep, how its gradients should be clipped, and values where the paper is silent.

    python benchmarks/checkpoints.py [--jobs 2] [--out benchmarks/checkpoints.csv]

Each setting is fitted to the same calibration sets (seeds 3, 4, 5: those of the tables in docs/results are 0, 1, 2) of 10, 50
and 200 pairs, on `gaussian` and `pendulum`, with plain base posteriors of 50 000 simulations, and scored on 500 test pairs of a
test stream of their own. The last lines compare each setting with the first one, set by set.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

TASKS, SIZES, SETS = ("gaussian", "pendulum"), (10, 50, 200), (3, 4, 5)
COMMON = {"hidden": 64, "schedule": "constant"}
SETTINGS = {
    "last epoch, per network, constant": {},
    "best sum, per network, constant": {"checkpoint": "best"},
    "last epoch, jointly, constant": {"clip_jointly": True},
    "best sum, jointly, constant": {"clip_jointly": True, "checkpoint": "best"},
    "last epoch, per network, cosine": {"schedule": "cosine"},
    "best sum, per network, cosine": {"schedule": "cosine", "checkpoint": "best"},
    "last epoch, jointly, cosine": {"schedule": "cosine", "clip_jointly": True},
    "best sum, jointly, cosine": {"schedule": "cosine", "clip_jointly": True, "checkpoint": "best"},
    "first line, convolutional head": {"x_head": "embedding"},
    "first line, 400 epochs": {"epochs": 400},
    "first line, blocks of 128": {"hidden": 128},
    "best sum, blocks of 128": {"hidden": 128, "checkpoint": "best"},
}
BASES: dict = {}


def base_of(name: str):
    """A plain base posterior, trained once per process pool and task."""
    from fmcpe import baselines, load, tasks, train_npe
    from fmcpe._random import seeded

    path = Path("fmcpe-bench") / f"checkpoints-{name}.fmcpe"
    if not path.is_file():
        task = tasks.get(name)
        with seeded(0):
            net = task.embedding_net()
        base = train_npe(
            task.simulator, task.prior, 50_000, net, seed=0, show_progress_bars=False,
            domain_randomisation=False if net is not None else None,
        )  # fmt: skip
        path.parent.mkdir(exist_ok=True)
        baselines.NPE(base).fit().save(path)
    return load(path).shared.base.posterior


def score(job: tuple[str, int, int, str]) -> tuple[float, float]:
    """Energy score and mean 90 % coverage of one fit."""
    import torch

    from fmcpe import FMCPE, Paper, tasks
    from fmcpe.bench.measure import standard_space
    from fmcpe.diagnostics import central_coverage
    from fmcpe.metrics import energy_score

    torch.set_num_threads(1)
    name, size, number, setting = job
    task = tasks.get(name)
    BASES[name] = BASES.get(name) or base_of(name)
    method = FMCPE(BASES[name], task.simulator, task.prior, recipe=Paper(**COMMON | SETTINGS[setting]))
    posterior = method.fit(*task.calibration_set(size, number), seed=number, show_progress_bars=False)
    theta, y = task.test_set(500, 1)
    draws = posterior.sample_batched((60,), x=y, seed=0, show_progress_bars=False)
    space = standard_space(task)
    energy = energy_score(space.to_z_safely(draws), space.to_z_safely(theta))
    return energy, float(central_coverage(draws, theta, 0.9).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name in TASKS:
        base_of(name)
    jobs = list(itertools.product(TASKS, SIZES, SETS, SETTINGS))
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(jobs, pool.map(score, jobs), strict=True))
    if options.out:
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows([("task", "pairs", "set", "setting", "energy", "coverage 90 %")])
            csv.writer(file).writerows([(*job, *values) for job, values in found.items()])
    first = next(iter(SETTINGS))
    for name in TASKS:
        print(f"\n{name}: energy score (90 % coverage), mean of sets {SETS}")
        for setting in SETTINGS:
            cells = []
            for size in SIZES:
                values = [found[name, size, number, setting] for number in SETS]
                energy, coverage = (sum(column) / len(column) for column in zip(*values, strict=True))
                cells.append(f"{size}: {energy:.3f} ({coverage:.2f})")
            print(f"  {setting:34s}", "   ".join(cells))
    print("\nlog energy against the first setting, mean ± standard error over all tasks, sizes and sets")
    for setting in list(SETTINGS)[1:]:
        logs = [
            math.log(found[name, size, number, setting][0] / found[name, size, number, first][0])
            for name, size, number in itertools.product(TASKS, SIZES, SETS)
        ]
        mean = sum(logs) / len(logs)
        error = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1) / len(logs))
        print(f"  {setting:34s} {mean:+.3f} ± {error:.3f}")


if __name__ == "__main__":
    main()
