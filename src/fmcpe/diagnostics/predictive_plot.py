"""Pictures of a posterior predictive check: histograms for few numbers, bands for series, panels for images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from fmcpe.diagnostics.plots import _BLUE, _ORANGE, _tidy

if TYPE_CHECKING:
    from fmcpe.diagnostics.predictive import PredictiveCheck


def predictive_figure(check: PredictiveCheck, max_panels: int = 9) -> Figure:
    """The observation among simulations; `max_panels` is the number of histograms or of channels, at most."""
    shape = tuple(check.y.shape)
    if check.y.numel() <= max_panels:
        return _histograms(check)
    if len(shape) >= 2 and min(sorted(shape)[-2:]) >= 8:
        return _images(check)
    return _bands(check, max_panels)


def _title(check: PredictiveCheck) -> str:
    return f"{len(check.x)} simulations at corrected draws; all numbers together: p = {check.p_value:.2g}"


def _histograms(check: PredictiveCheck) -> Figure:
    x, y, ranks = check.x.flatten(1).numpy(), check.y.flatten().numpy(), check.ranks.flatten()
    number = len(y)
    columns = min(3, number)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(0.4 + 2.7 * columns, 0.8 + 2.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[number:]:
        axes.set_axis_off()
    for k in range(number):
        axes = grid.flat[k]
        axes.hist(x[:, k], bins=30, color=_BLUE, alpha=0.5, label="simulations" if k == 0 else None)
        axes.axvline(y[k], color=_ORANGE, lw=2, label="observation" if k == 0 else None)
        axes.set_title(f"number {k + 1}: {_where(float(ranks[k]))}", fontsize=9)
        axes.set_yticks([])
        _tidy(axes)
    figure.suptitle(_title(check), fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _where(rank: float) -> str:
    return f"{100 * rank:.0f} % of simulations below"


def _bands(check: PredictiveCheck, max_panels: int) -> Figure:
    y = check.y.numpy()
    # the longest axis is time, all others are channels
    time = int(np.argmax(y.shape))
    lines = np.moveaxis(y, time, -1).reshape(-1, y.shape[time])[:max_panels]
    x = np.moveaxis(check.x.numpy(), time + 1, -1).reshape(len(check.x), -1, y.shape[time])[:, :max_panels]
    figure = Figure(figsize=(8, 0.9 + 2.3 * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), 1, squeeze=False, sharex=True)
    at = np.arange(lines.shape[1])
    for channel, line in enumerate(lines):
        axes: Any = grid[channel, 0]
        first = channel == 0
        low, high, a, b, middle = np.quantile(x[:, channel], [0.05, 0.95, 0.25, 0.75, 0.5], axis=0)
        axes.fill_between(at, low, high, color=_BLUE, alpha=0.2, lw=0, label="90 % of simulations" if first else None)
        axes.fill_between(at, a, b, color=_BLUE, alpha=0.3, lw=0, label="50 %" if first else None)
        axes.plot(at, middle, color=_BLUE, lw=1, label="median" if first else None)
        outside = (line < low) | (line > high)
        axes.plot(at, line, color="black", lw=1, label="observation" if first else None)
        axes.plot(at[outside], line[outside], ".", color=_ORANGE, ms=4, label="outside 90 %" if first else None)
        if len(lines) > 1:
            axes.set_ylabel(f"channel {channel + 1}")
        _tidy(axes)
    grid[-1, 0].set_xlabel("index")
    figure.suptitle(_title(check), fontsize=10)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure


def _images(check: PredictiveCheck) -> Figure:
    y, mean, residual = check.y.numpy(), check.x.mean(0).numpy(), check.residuals().numpy()
    if y.ndim > 2:  # the shortest axis is the channels: show their mean, and the residual that is farthest off
        axis = int(np.argmin(y.shape))
        y, mean = y.mean(axis), mean.mean(axis)
        worst = np.abs(residual).argmax(axis)
        residual = np.take_along_axis(residual, np.expand_dims(worst, axis), axis).squeeze(axis)
    while y.ndim > 2:
        y, mean, residual = y[0], mean[0], residual[0]
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    low, high = float(min(y.min(), mean.min())), float(max(y.max(), mean.max()))
    size = max(3.0, float(np.abs(residual).max()))
    shown: list[tuple[str, Any, dict[str, Any]]] = [
        ("observation", y, {"vmin": low, "vmax": high, "cmap": "gray"}),
        ("mean simulation", mean, {"vmin": low, "vmax": high, "cmap": "gray"}),
        ("difference, in standard deviations", residual, {"vmin": -size, "vmax": size, "cmap": "RdBu_r"}),
    ]
    for axes, (title, image, style) in zip(panels, shown, strict=True):
        picture = axes.imshow(image, **style)
        axes.set_title(title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        figure.colorbar(picture, ax=axes, shrink=0.75).ax.tick_params(labelsize=7)
    figure.suptitle(_title(check), fontsize=10)
    return figure
