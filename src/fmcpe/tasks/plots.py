"""Figures of the tasks: simulated and real data side by side at the same θ.

``python -m fmcpe.tasks.plots docs/tasks`` writes the figures of the documentation.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.nn.embeddings import is_vector
from fmcpe.tasks.base import Task

BLUE, ORANGE = "#0072B2", "#D55E00"  # palette of Okabe and Ito, as in `fmcpe.diagnostics.plots`
_PANELS = 3
_IMAGES = 6
_SIMULATIONS = 12
_SCATTER = 150


def side_by_side(task: Task, seed: int = 0) -> Figure:
    """Simulated and real data of a task at the same θ, and the two priors if they differ.

    Args:
        task: Any task.
        seed: Seed of the task's test set and of the simulations' noise.
    """
    with seeded(derive(seed, task.name, "plot")):
        if len(task.x_shape) == 3:
            figure = _images(task, seed)
        elif task.x_shape == (1,):
            figure = _scatter(task, seed)
        else:
            figure = _vectors(task, seed)
    figure.suptitle(f"{task.name}\nsimulated data and {task.real_data} at the same parameters", fontsize=10)
    return figure


def _real_label(task: Task) -> str:
    return "real" if task.real_side == "process" else task.real_side


def _vectors(task: Task, seed: int) -> Figure:
    """Many simulations and one real observation at each of three θ."""
    priors_differ = int(task.simulation_prior is not task.prior)  # one panel more
    theta, y = spread(*task.test_set(9, seed))
    times: Tensor | None = getattr(task, "times", None)
    channels = y.shape[1] if y.ndim == 3 else 1
    y, length = y.flatten(1), y.shape[-1]
    places = torch.arange(1, length + 1) if times is None else times
    columns = _PANELS + priors_differ
    figure = Figure(figsize=(0.8 + 2.6 * columns, 3.3), layout="constrained")
    grid = figure.subplots(1, columns, squeeze=False)[0]
    for axes, row, real in zip(grid[priors_differ:], theta, y, strict=True):
        simulations = task.simulator(row.expand(_SIMULATIONS, -1)).flatten(1)
        marker = "o" if times is None and is_vector((length,)) else ""
        for part in (slice(c * length, (c + 1) * length) for c in range(channels)):
            axes.plot(places, simulations[:, part].T, color=BLUE, lw=0.7, alpha=0.35)
            axes.plot(places, real[part], color=ORANGE, lw=1.6, ls="--", marker=marker, ms=3)
        axes.set_title(_values(task, row), fontsize=9)
        axes.set_xlabel("number" if times is None else "time (s)")
        _tidy(axes)
    grid[priors_differ].set_ylabel(task.data_label)
    lines = [Line2D([], [], color=BLUE, lw=1.2), Line2D([], [], color=ORANGE, lw=1.6, ls="--")]
    names = [f"{_SIMULATIONS} simulations", _real_label(task)]
    figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    if priors_differ:
        _priors(grid[0], task)
    return figure


def _priors(axes: Axes, task: Task) -> None:
    simulated = task.simulation_prior.sample(torch.Size((20_000,)))[:, 0].numpy()
    real = task.prior.sample(torch.Size((20_000,)))[:, 0].numpy()
    bins = np.linspace(min(simulated.min(), real.min()), max(simulated.max(), real.max()), 46).tolist()
    axes.hist(simulated, bins, density=True, color=BLUE, alpha=0.35, label="simulations'")
    axes.hist(real, bins, density=True, histtype="step", color=ORANGE, lw=1.6, ls="--", label="true")
    axes.set_title("priors", fontsize=9)
    axes.set(xlabel=task.theta_names[0], ylabel="density")
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=8)
    _tidy(axes)


def _scatter(task: Task, seed: int) -> Figure:
    """Scalar data against the parameter."""
    theta, y = task.test_set(_SCATTER, seed)
    figure = Figure(figsize=(4.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.scatter(theta[:, 0], task.simulator(theta)[:, 0], s=10, color=BLUE, alpha=0.6, lw=0, label="simulated")
    axes.scatter(theta[:, 0], y[:, 0], s=12, color=ORANGE, marker="x", lw=0.9, label=_real_label(task))
    axes.set(xlabel=task.theta_names[0], ylabel=task.data_label)
    axes.legend(frameon=False, fontsize=8)
    _tidy(axes)
    return figure


def _images(task: Task, seed: int) -> Figure:
    """Simulated above, real below."""
    theta, y = task.test_set(_IMAGES, seed)
    figure = Figure(figsize=(1.5 * _IMAGES, 3.7), layout="constrained")
    grid = figure.subplots(2, _IMAGES, squeeze=False)
    for column, (row, pair) in enumerate(zip(theta, zip(task.simulator(theta), y, strict=True), strict=True)):
        for axes, image in zip(grid[:, column], pair, strict=True):
            axes.imshow(image_of(image), cmap="gray")
            axes.set(xticks=[], yticks=[])
        grid[0, column].set_title(_values(task, row), fontsize=8)
    grid[0, 0].set_ylabel("simulated")
    grid[1, 0].set_ylabel(_real_label(task))
    return figure


def image_of(image: Tensor) -> np.ndarray:
    """Array for `imshow`: (height, width, 3) unchanged, (1, height, width) without its channel."""
    return image[0].numpy() if image.shape[0] == 1 else image.clamp(0, 1).numpy()


def spread(theta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs with a low, a medium and a high first parameter."""
    order = theta[:, 0].argsort()
    rows = order[torch.linspace(1, len(order) - 2, _PANELS).round().long()]
    return theta[rows], y[rows]


def _values(task: Task, theta: Tensor) -> str:
    pairs = [f"{name} = {value:.3g}" for name, value in zip(task.theta_names, theta.tolist(), strict=True)]
    if len(pairs) > 2:
        middle = (len(pairs) + 1) // 2
        return ", ".join(pairs[:middle]) + "\n" + ", ".join(pairs[middle:])
    return ", ".join(pairs)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def png_text(task: Task) -> dict[str, str]:
    """PNG metadata that identify the data."""
    return {"Title": task.label, "Description": f"simulated data and {task.real_data}"}


def small_png(figure: Figure, dpi: int, colours: int, text: Mapping[str, str] | None = None) -> bytes:
    """A PNG with a palette, a third of the size of matplotlib's.

    Args:
        figure: The figure.
        dpi: Dots per inch.
        colours: Size of the palette.
        text: Metadata of the file.
    """
    from PIL import Image, PngImagePlugin

    buffer, small, info = io.BytesIO(), io.BytesIO(), PngImagePlugin.PngInfo()
    figure.savefig(buffer, format="png", dpi=dpi)
    for key, value in (text or {}).items():
        info.add_text(key, value)
    with Image.open(buffer) as image:
        palette = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    palette.save(small, format="png", optimize=True, pnginfo=info)
    return small.getvalue()


def write_pictures(arguments: list[str], usage: str, pictures: Callable[[], Iterable[tuple[str, bytes]]]) -> int:
    """Command that writes (file name, PNG) pairs to the folder given as its argument; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write(f"Expected one folder, got {len(arguments)}. Type: {usage}\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures():
        (folder / name).write_bytes(content)
    return 0


def main(arguments: list[str]) -> int:
    """Write the figure of each task to a folder."""
    from fmcpe import tasks

    def pictures() -> Iterator[tuple[str, bytes]]:
        for task in map(tasks.get, tasks.names()):
            yield f"{task.label}.png", small_png(task.plot(), 90, 256, png_text(task))

    return write_pictures(arguments, "python -m fmcpe.tasks.plots docs/tasks", pictures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
