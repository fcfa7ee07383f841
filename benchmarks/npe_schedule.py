"""The one-cycle schedule of `train_npe` against a fixed learning rate of 1e-4, on the same network and simulations.

    python benchmarks/npe_schedule.py [gaussian|pendulum|offset]

Trains once with the schedule, then with sbi's own trainer at the fixed rate for ten times as long, and prints the validation
loss (negative log density of θ, lower is better) that each had reached by when. Both run in this one process, one after the
other, on one thread, and are timed by the CPU time they take. sbi holds out its own share of the simulations, so the
fixed-rate network is scored on fresh ones too.
"""

import argparse
import os
import tempfile
import time

import torch
from sbi.inference import NPE

import fmcpe
from fmcpe import tasks
from fmcpe.base_posteriors.npe import FlowSize, build_estimator


def score(estimator, theta, x):
    """Mean negative log density on simulations that neither has seen."""
    estimator.eval()
    with torch.no_grad():
        return float(
            torch.cat([estimator.loss(t, d) for t, d in zip(theta.split(2000), x.split(2000), strict=True)]).mean()
        )


def main():
    """Print who reached what, and when."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="gaussian")
    parser.add_argument("--simulations", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    task = tasks.get(options.task)
    theta = task.prior.sample((options.simulations,))
    x = task.simulator(theta)
    fresh_theta = task.prior.sample((10_000,))
    fresh_x = task.simulator(fresh_theta)

    started = time.process_time()
    base = fmcpe.train_npe(None, task.prior, embedding_net=task.embedding_net(), simulations=(theta, x), seed=0)
    budget = time.process_time() - started
    target = score(base.posterior_estimator, fresh_theta, fresh_x)
    print(f"{task.name}: schedule, {budget:.0f} CPU s, loss {target:.3f}")

    os.chdir(tempfile.mkdtemp())  # sbi's trainer writes its logs where it stands
    net = task.embedding_net()
    trainer = NPE(
        task.prior,
        density_estimator=lambda t, d: build_estimator(t, d, task.prior, FlowSize(), net),
        show_progress_bars=False,
    ).append_simulations(theta, x)
    spent, epochs = 0.0, 0
    while spent < 10 * budget:
        epochs += 5
        started = time.process_time()
        estimator = trainer.train(
            learning_rate=1e-4,
            training_batch_size=256,
            max_num_epochs=epochs,
            stop_after_epochs=10_000,
            validation_fraction=0.05,
            resume_training=epochs > 5,
        )
        spent += time.process_time() - started
        loss = score(estimator, fresh_theta, fresh_x)
        print(
            f"{task.name}: fixed 1e-4, {spent:.0f} CPU s ({spent / budget:.1f} times as long), {epochs} epochs, loss {loss:.3f}"
        )
        if loss <= target:
            break


if __name__ == "__main__":
    main()
