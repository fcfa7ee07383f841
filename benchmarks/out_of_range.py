"""What the move to the prior costs in range and gives out of range, on the zoo's development half. Writes a CSV.

    python benchmarks/out_of_range.py docs/results/trust/out-of-range.csv       rows that the CSV has are not measured again

Default fits on 10 and 30 pairs. "energy": energy score of 500 test pairs with λ as it is, over that with other choices for the
same stack: "spread": without λ_v and without simulations (λ of earlier versions); "1e-4": p_0 = 1e-4 in place of 1e-5. "share":
mean share of the prior in range; "warned": share of test observations with p < 0.001. Rays: 40 observations, moved by 1 to 1000
standard deviations of the pairs in random directions; of those with p < 0.001, the smallest ratio of a parameter's standard
deviation (physical) to the median at the pairs, or the prior's if that is smaller ("least"), the same for λ of earlier versions
("least before"), and the share of rays on which the mean standard deviation in z falls below that of their start ("falls",
"falls before").
"""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path

import torch
from sensitivity import PROBLEMS

import fmcpe
from fmcpe import FMCPE, tasks
from fmcpe._random import seeded
from fmcpe.base_posteriors.base import Remembered
from fmcpe.in_range import Range

DISTANCES = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 200.0, 1000.0)
FIELDS = (
    "problem", "pairs", "energy", "over spread", "over 1e-4", "share", "warned", "least", "least before", "falls",
    "falls before",
)  # fmt: skip


def base_of(name):
    """Task and base posterior."""
    task = tasks.get(f"zoo/{name}", seed=tasks.zoo.SEEDS["development"])
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
    )
    return task, base


def choose(posterior, kind, kept):
    """Set λ of a posterior."""
    inner = posterior.inner
    inner.typical, inner.usual, inner.p_half = kept
    if kind == "spread":
        inner.typical, inner.usual = None, Range.of(posterior.held_out.seen.flatten(1))
    elif kind == "1e-4":
        inner.p_half = 1e-4
    inner._last = Remembered()


def spread(posterior, y):
    """Standard deviations in z and of physical parameters, (B, p) each."""
    draws = posterior.sample_batched((400,), x=y, seed=0, show_progress_bars=False)
    return posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape).std(0), draws.std(0)


def measure(name, task, base, number):
    """One row."""
    theta, y = task.calibration_set(number, 0)
    posterior = FMCPE(base, task.simulator, target_prior=task.prior).fit(theta, y, seed=0, show_progress_bars=False)
    inner = posterior.inner
    kept = inner.typical, inner.usual, inner.p_half
    theta_test, y_test = task.test_set(500, 0)
    truth, energy = posterior.space.to_z_safely(theta_test), {}
    for kind in ("now", "spread", "1e-4"):
        choose(posterior, kind, kept)
        draws = posterior.sample_batched((64,), x=y_test, seed=0, show_progress_bars=False)
        z = posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape)
        energy[kind] = fmcpe.metrics.energy_score(z, truth)
    choose(posterior, "now", kept)
    found = posterior.check(y_test)
    with seeded(1):
        direction = torch.nn.functional.normalize(torch.randn(40, y[0].numel()), dim=1) * y[0].numel() ** 0.5
    direction = direction.reshape(40, *y.shape[1:]) * y.std(0)
    dim = theta.shape[1]  # spreads: standard deviations of z and of θ, then half-widths
    typical = torch.minimum(torch.tensor(kept[0]), inner.prior_spreads)[dim : 2 * dim]
    ends = []
    for kind in ("now", "spread"):
        choose(posterior, kind, kept)
        start, least, falls = spread(posterior, y_test[:40])[0].mean(1), [], torch.zeros(40, dtype=torch.bool)
        for distance in DISTANCES:
            moved = y_test[:40] + distance * direction
            out = posterior.check(moved).out_of_range
            if out.any():
                z, physical = spread(posterior, moved[out])
                least.append(float((physical / typical).min()))
                falls[out] |= z.mean(1) < 0.95 * start[out]  # 400 draws: 3.5 % standard error
        ends.append((min(least, default=float("nan")), float(falls.double().mean())))
    return (
        name, number, energy["now"], energy["now"] / energy["spread"], energy["now"] / energy["1e-4"],
        float(found.prior_share.mean()), float(found.out_of_range.double().mean()),
        ends[0][0], ends[1][0], ends[0][1], ends[1][1],
    )  # fmt: skip


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1])
    rows = list(csv.reader(path.open()))[1:] if path.exists() else []
    for name in PROBLEMS:
        missing = [number for number in (10, 30) if not any(row[:2] == [name, str(number)] for row in rows)]
        task, base = base_of(name) if missing else (None, None)
        for number in missing:
            row = measure(name, task, base, number)
            rows.append([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row])
            print(*rows[-1], file=sys.stderr, flush=True)
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([FIELDS, *rows])
    for row in (FIELDS, *rows):
        print("  ".join(f"{cell!s:>12s}" for cell in row))


if __name__ == "__main__":
    main()
