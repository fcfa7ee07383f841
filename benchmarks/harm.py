"""What the default recipe does where there is nothing to correct, and where the pairs are nonsense. Prints a table.

python benchmarks/harm.py                            gaussian and pendulum; trains their base posteriors first
python benchmarks/harm.py --run fmcpe-quick          with the base posteriors of a run of `fmcpe bench`
python benchmarks/harm.py wind-tunnel --sets 5

"right": pairs and test data come from the simulator itself; "energy" is the corrected posterior's energy score over the
uncorrected one's, on the same test pairs, and 1 means no harm. "shuffled": real data with the parameters of others; "energy"
is over the prior's, on real test pairs, and more than 1 means that the answer is wrong and too sure.
"""

import argparse
import time
import warnings

import torch

import fmcpe
from fmcpe import FMCPE, baselines, metrics, tasks
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.bench.measure import standard_space
from fmcpe.bench.store import Store
from fmcpe.bench.units import RANDOMISABLE, Unit
from fmcpe.bench.work import BASE_FILE, load_base

SIZES, TEST, DRAWS = (10, 50, 200), 500, 60


def base_posterior(task, run):
    """The base posterior of a run, or a new one."""
    if run is not None:
        with Store(run, read_only=True) as store:
            file = store.file(Unit("base", task.name, randomised=task.name in RANDOMISABLE).id, BASE_FILE)
        if not file.is_file():
            raise SystemExit(f"{run} has no base posterior of {task.name}; leave --run out, and it is trained.")
        return load_base(file.read_bytes())
    with seeded(0):
        net = task.embedding_net()
    return fmcpe.train_npe(task.simulator, task.simulation_prior, 50_000, net, seed=0)


def fitted(task, base, theta, y, seed):
    """The corrected posterior, whether it came with a warning, and the seconds it took."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FMCPEWarning)
        posterior = FMCPE(base, task.simulator, task.prior).fit(theta, y, seed=seed, show_progress_bars=False)
    warned = any(issubclass(warning.category, FMCPEWarning) for warning in caught)
    return posterior, warned, time.perf_counter() - started


def main():
    """Print one row per task, kind of pairs, size and set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["gaussian", "pendulum"])
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--run", help="directory of a run of fmcpe bench with 50 000 simulations")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'task':>14} {'pairs':>9} {'size':>5} {'set':>4} {'energy':>7} {'warned':>7} {'seconds':>8}  kept")
    for name in options.tasks:
        task = tasks.get(name)
        base, space = base_posterior(task, options.run), standard_space(task)
        with seeded(77):
            theta = task.prior.sample((TEST,)).to(torch.float32)
            x, y = task.simulator(theta), task.observe(theta)

        def energy(posterior, data, theta=theta, space=space):
            draws = posterior.sample_batched((DRAWS,), x=data, seed=5, show_progress_bars=False)
            return metrics.energy_score(space.to_z_safely(draws), space.to_z_safely(theta))

        with seeded(5):
            prior = task.prior.sample((DRAWS, TEST)).to(torch.float32)
        of_prior = metrics.energy_score(space.to_z_safely(prior), space.to_z_safely(theta))
        uncorrected = energy(baselines.NPE(base).fit(), x)
        for kind, data, unit in (("right", x, uncorrected), ("shuffled", y, of_prior)):
            for size in SIZES:
                for number in range(options.sets):
                    with seeded(1000 * size + number):
                        theta_cal = task.prior.sample((size,)).to(torch.float32)
                        y_cal = task.simulator(theta_cal) if kind == "right" else task.observe(theta_cal)
                    theta_cal = theta_cal if kind == "right" else theta_cal.roll(1, 0)
                    posterior, warned, seconds = fitted(task, base, theta_cal, y_cal, number)
                    print(
                        f"{name:>14} {kind:>9} {size:>5} {number:>4} {energy(posterior, data) / unit:>7.3f} "
                        f"{'yes' if warned else 'no':>7} {seconds:>8.1f}  {posterior.stages}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
