"""A small figure of each problem: simulations and one real observation at three θ.

``python -m fmcpe.tasks.zoo.gallery docs/zoo`` writes the figures of the documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.tasks import zoo
from fmcpe.tasks.plots import BLUE, ORANGE, image_of, small_png, spread, write_pictures
from fmcpe.tasks.zoo.problem import Problem

_SIMULATIONS = 8
_WIDTH, _HEIGHT, _DPI = 3.9, 1.35, 80


def picture(problem: Problem) -> Figure:
    """Simulations (blue) and a real observation (orange, dashed) at a low, a medium and a high first parameter.

    Images: simulation on the left (blue frame), real observation on the right (orange frame).
    """
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    with seeded(derive(problem.seed, problem.name, "gallery")):
        theta, y = spread(*problem.test_set(9, 0))
        if len(problem.x_shape) == 3:
            grid = figure.subplots(1, 2 * len(theta))
            for i, (row, real) in enumerate(zip(theta, y, strict=True)):
                _image(grid[2 * i], problem.simulator(row[None])[0], BLUE)
                _image(grid[2 * i + 1], real, ORANGE)
        else:
            for axes, row, real in zip(figure.subplots(1, len(theta)), theta, y, strict=True):
                _series(axes, problem.simulator(row.expand(_SIMULATIONS, -1)), real)
    return figure


def _series(axes: Axes, simulations: Tensor, real: Tensor) -> None:
    """Channels side by side."""
    channels = real.shape[0] if real.ndim == 2 else 1
    length = real.numel() // channels
    for c in range(channels):
        places = torch.arange(length) + 1.1 * c * length
        axes.plot(
            places, simulations.reshape(len(simulations), channels, length)[:, c].T, color=BLUE, lw=0.6, alpha=0.4
        )
        axes.plot(places, real.reshape(channels, length)[c], color=ORANGE, lw=1.2, ls="--")
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(False)


def _image(axes: Axes, image: Tensor, color: str) -> None:
    axes.imshow(image_of(image), cmap="gray")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=color, linewidth=1.5)


def as_png(problem: Problem) -> bytes:
    """The figure as a PNG of 64 colours."""
    return small_png(picture(problem), _DPI, 64)


def file_name(name: str) -> str:
    """File name of a problem's figure: ``"sir-lag.png"`` for ``"zoo/sir-lag"``."""
    return name.removeprefix("zoo/") + ".png"


def main(arguments: list[str]) -> int:
    """Write the figure of each problem to a folder, with the constants of the benchmark."""

    def pictures() -> Iterator[tuple[str, bytes]]:
        for name in zoo.names():
            yield file_name(name), as_png(zoo.get(name, zoo.SEEDS[zoo.half_of(name)]))

    return write_pictures(arguments, "python -m fmcpe.tasks.zoo.gallery docs/zoo", pictures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
