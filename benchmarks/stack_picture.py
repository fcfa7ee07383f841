"""The picture of docs/method.md: candidates, their weights and the mixture, for one observation of the pendulum.

python benchmarks/stack_picture.py docs/images
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from fmcpe import FMCPE, tasks, train_npe
from fmcpe._random import seeded
from fmcpe.mixture import Mixture
from fmcpe.tasks.plots import small_png, write_pictures

PAIRS, DRAWS, OBSERVATION = 50, 3000, 0


def picture() -> Figure:
    """Left: the marginal of the amplitude from each candidate and from the mixture. Right: the weights."""
    task = tasks.get("pendulum")
    with seeded(0):
        base = train_npe(task.simulator, task.prior, 20_000, task.embedding_net(), seed=0, show_progress_bars=False)
    posterior = FMCPE(base, task.simulator, task.prior).fit(*task.calibration_set(PAIRS, 0), seed=0)
    theta, y = (rows[OBSERVATION : OBSERVATION + 1] for rows in task.test_set(10, 0))
    mixture = next(module for module in posterior.inner.modules() if isinstance(module, Mixture))
    members, start, drawn = mixture.members, 0, {}
    for name, count in posterior.record.members.items():
        ensemble = Mixture(members[start : start + count], torch.ones(count))
        with seeded(0):
            drawn[name] = posterior.space.to_theta(ensemble.sample(y, DRAWS)[0])[:, 1].numpy()
        start += count
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    grid = np.linspace(0.5, 10, 400)
    names = list(posterior.weights)
    colours = dict(zip(names, matplotlib.colormaps["tab10"].colors, strict=False))
    for name in names:
        shown = posterior.weights[name]
        left.plot(
            grid, gaussian_kde(drawn[name])(grid), color=colours[name], lw=1 + 1.5 * shown, alpha=0.35 + 0.65 * shown
        )
    stack = posterior.sample((DRAWS,), x=y[0], seed=0)[:, 1].numpy()
    mixed = gaussian_kde(stack)(grid)
    left.plot(grid, mixed, color="black", lw=2.5, label="mixture")
    left.set_ylim(0, 2.5 * mixed.max())  # the uncorrected posterior is far too sure, and far off
    left.axvline(float(theta[0, 1]), color="black", ls=":", label="truth")
    left.set(xlabel=task.theta_names[1], ylabel="density", yticks=[], title="Candidates and mixture, one observation")
    left.legend(frameon=False)
    right.barh(
        names[::-1], [posterior.weights[name] for name in names[::-1]], color=[colours[name] for name in names[::-1]]
    )
    right.set(xlabel="stacking weight", title=f"{PAIRS} pairs")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def pictures() -> Iterator[tuple[str, bytes]]:
    """The file and its content."""
    yield "stack.png", small_png(picture(), 110, 64)


if __name__ == "__main__":
    sys.exit(write_pictures(sys.argv[1:], "python benchmarks/stack_picture.py docs/images", pictures))
