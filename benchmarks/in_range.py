"""Far from the pairs: p-values, share of the prior and width of the answer against distance. Draws docs/images/in-range.png.

    python benchmarks/in_range.py docs/images/in-range.png

    python benchmarks/in_range.py --few                     p-values with two, three and five pairs, a thousand deviations away
    python benchmarks/in_range.py --unlike                  damaged series of `pendulum`, with and without a look at raw data

A default fit on 30 pairs of `gaussian`. Real observations are moved by a number of standard deviations of the pairs' data, each
in a random direction. The lower panel shows the mean posterior standard deviation in units of the prior's; the answer out
of range is never sharper than at a typical pair.
"""

from __future__ import annotations

import sys
import warnings

import torch
from matplotlib.figure import Figure

import fmcpe
from fmcpe import FMCPE, Stack, candidates, tasks
from fmcpe._random import seeded
from fmcpe.diagnostics.plots import COLORS, _tidy

DISTANCES = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0, 1000.0)


def few(task, base):
    """Prints p-values of an observation moved by a thousand deviations of 40 pairs, all numbers of y upwards."""
    theta, y = task.calibration_set(40, 0)
    far = task.test_set(1, 5)[1] + 1000 * y.std(0)
    recipe = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()])
    for number in (2, 3, 5):
        posterior = FMCPE(base, task.simulator, recipe=recipe).fit(
            theta[:number], y[:number], seed=0, show_progress_bars=False
        )
        print(number, "pairs:", posterior.check(far))


def unlike():
    """Prints which share of 200 damaged series of `pendulum` is called out of range, and the width of the answer."""
    task = tasks.get("pendulum")
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(task.simulator, task.prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False)
    theta, y = task.calibration_set(200, 0)
    posterior = FMCPE(base, task.simulator).fit(theta, y, seed=0, show_progress_bars=False)
    y = task.test_set(200, 0)[1]
    with seeded(1):
        noise, order, broken = 5 * torch.randn_like(y), torch.randperm(y.shape[1]), y.clone()
    broken[:, 50] += 100
    damaged = {"noise instead": noise, "times shuffled": y[:, order], "one number off by 100": broken}
    for raw in (posterior.inner.raw, None):
        posterior.inner.raw = raw
        print("with raw data" if raw else "summaries alone")
        for name, rows in ({"as they are": y} | damaged | {"x 10": 10 * y, "x 1000": 1000 * y}).items():
            posterior.inner._last._last = None
            found = posterior.check(rows)
            draws = posterior.sample_batched((300,), x=rows, seed=0, show_progress_bars=False)
            width = draws.std(0).median(0).values / task.prior.sample((5000,)).std(0)
            print(
                f"{name:22s} out of range {float(found.out_of_range.float().mean()):.1%}, std / prior's {width.tolist()}"
            )


def main():
    """Fit, measure, draw."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["--unlike"]:
        return unlike()
    task = tasks.get("gaussian")
    base = fmcpe.train_npe(task.simulator, task.prior, 10_000, seed=0, max_num_epochs=20, show_progress_bars=False)
    if sys.argv[1:] == ["--few"]:
        return few(task, base)
    theta, y = task.calibration_set(30, 0)
    posterior = FMCPE(base, task.simulator).fit(theta, y, seed=0, show_progress_bars=False)
    _, real = task.test_set(40, 0)
    with seeded(1):
        direction = torch.nn.functional.normalize(torch.randn(len(real), real.shape[1]), dim=1) * real.shape[1] ** 0.5
    rows = []
    for distance in DISTANCES:
        moved = real + distance * y.std(0) * direction
        found = posterior.check(moved)
        draws = posterior.sample_batched((400,), x=moved, seed=0, show_progress_bars=False)
        width = posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape).std(0).mean(1)
        rows.append((found.pairs, found.conformal, found.simulations, found.prior_share, width))
        print(f"{distance:7.1f}  " + "  ".join(f"{float(each.median()):9.2g}" for each in rows[-1]))
    parts = [torch.stack(each) for each in zip(*rows, strict=True)]  # (distances, observations) each
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    at = [max(0.2, distance) for distance in DISTANCES]
    labels = ("Student-t, pairs", "conformal, floor 1/(N + 1)", "Student-t, simulations")
    for values, label, color in zip(parts[:3], labels, COLORS, strict=False):
        band(top, at, values.clamp_min(1e-12), label, color)
    top.axhline(1e-3, color="black", lw=0.8, ls="--")
    top.text(at[0], 6e-4, "below: warned of", fontsize=8, va="top")
    top.set(yscale="log", ylabel="p-value", ylim=(1e-12, 2))
    top.legend(frameon=False, fontsize=8)
    band(bottom, at, parts[4], "posterior standard deviation / prior's", COLORS[0])
    band(bottom, at, parts[3], "share of the prior in the answer", COLORS[1])
    inside = float(parts[4][0].quantile(0.05))
    bottom.axhline(inside, color="black", lw=0.8, ls=":")
    bottom.text(at[0], inside, "5th percentile in range", fontsize=8, va="bottom")
    bottom.set(xscale="log", xlabel="distance moved, standard deviations of the pairs' data", ylim=(0, None))
    bottom.legend(frameon=False, fontsize=8)
    for axes in (top, bottom):
        _tidy(axes)
    if len(sys.argv) > 1:
        figure.savefig(sys.argv[1], dpi=110)
    return None


def band(axes, at, values, label, color):
    """Median and 5th to 95th percentile over observations."""
    low, middle, high = values.quantile(torch.tensor([0.05, 0.5, 0.95]), dim=1)
    axes.fill_between(at, low, high, color=color, alpha=0.18, lw=0)
    axes.plot(at, middle, color=color, lw=1.6, label=label)


if __name__ == "__main__":
    main()
