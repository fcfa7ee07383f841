r"""Kernel densities of draws that respect the bounds of the prior, for plots.

A Gaussian kernel near a bound puts mass beyond it. Reflection returns that mass: with r the mirrors of x at the bounds,
\( f(x) = \sum_r k(r(x)) \) inside, 0 outside, which integrates to one and does not bend down at the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sbi.utils import MultipleIndependent
from sbi.utils.user_input_checks_utils import PytorchReturnTypeWrapper
from scipy import stats
from torch.distributions import Distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bounds = tuple[float, float]
"""Lower and upper bound of a parameter; infinite if there is none."""


def bounds_of(prior: Distribution) -> list[Bounds]:
    """Bounds of each parameter of a prior whose support is a box, a half-space or everything."""
    if isinstance(prior, PytorchReturnTypeWrapper):
        prior = prior.prior
    if isinstance(prior, MultipleIndependent):
        return [bound for part in prior.dists for bound in bounds_of(part)]
    constraint: Any = getattr(prior.support, "base_constraint", prior.support)
    dim = max(1, prior.event_shape.numel() * prior.batch_shape.numel())
    ends = []
    for name, default in (("lower_bound", -torch.inf), ("upper_bound", torch.inf)):
        ends.append(torch.as_tensor(getattr(constraint, name, default)).double().flatten().expand(dim).tolist())
    return list(zip(*ends, strict=True))


def as_bounds(bounds: Any, dim: int) -> list[Bounds]:
    """Bounds from a prior, from pairs (low, high) with None for no bound, or none at all."""
    if bounds is None:
        return [(-np.inf, np.inf)] * dim
    if isinstance(bounds, Distribution):
        found = bounds_of(bounds)
    else:
        found = [(-np.inf if a is None else float(a), np.inf if b is None else float(b)) for a, b in bounds]
    if len(found) != dim or any(not a < b for a, b in found):
        raise ValueError(
            f"Expected a prior over {dim} parameter(s), or as many pairs (low, high), got {found}. Pass bounds=prior."
        )
    return found


def reflected_kde(points: np.ndarray, bounds: Sequence[Bounds]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Density of draws (S, d), reflected at the bounds: (d, M) -> (M,). None if the draws do not vary.

    Draws outside the bounds are left out.
    """
    low, high = (np.array(ends) for ends in zip(*bounds, strict=True))
    inside = points[((points >= low) & (points <= high)).all(1)]
    if len(inside) < 2:
        return None
    try:
        # 2000 draws on a grid of 60² points take a second per panel; more make no visible difference
        kde = stats.gaussian_kde(inside[:: max(1, len(inside) // 2000)].T)
    except np.linalg.LinAlgError:
        return None
    mirrors = [[None, *(end for end in bound if np.isfinite(end))] for bound in bounds]

    def density(at: np.ndarray) -> np.ndarray:
        at = np.atleast_2d(at)
        total = np.zeros(at.shape[1])
        for each in product(*mirrors):
            total += kde(np.stack([row if end is None else 2 * end - row for row, end in zip(at, each, strict=True)]))
        return np.where(((at >= low[:, None]) & (at <= high[:, None])).all(0), total, 0.0)

    return density


def limits_of(columns: Sequence[np.ndarray], truth: float | None) -> Bounds:
    """Ends of an axis that shows nearly all draws of all methods, and the truth."""
    low = min(np.quantile(c, 0.002) for c in columns)
    high = max(np.quantile(c, 0.998) for c in columns)
    if truth is not None:
        low, high = min(low, truth), max(high, truth)
    margin = 0.05 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def draw_line(axes: Axes, draws: np.ndarray, limits: Bounds, bound: Bounds, color: str, dash: Any) -> None:
    """Density of one parameter, (S,), of height one; closed at the bounds."""
    density = reflected_kde(draws[:, None], [bound])
    if density is None:
        return
    x = _grid(limits, bound, 200)
    height = density(x)
    if not height.max() > 0:  # sharper than the grid: a spike
        axes.axvline(float(draws.mean()), color=color, ls=dash, lw=1.6)
        return
    height = height / height.max()
    axes.fill_between(x, height, color=color, alpha=0.12, lw=0)
    closed = np.concatenate([[0.0], height, [0.0]])
    axes.plot(np.concatenate([x[:1], x, x[-1:]]), closed, color=color, ls=dash, lw=1.6)


def draw_contours(
    axes: Axes,
    draws: np.ndarray,
    limits: Sequence[Bounds],
    bounds: Sequence[Bounds],
    levels: Sequence[float],
    color: str,
    dash: Any,
) -> None:
    """Contours of two parameters, (S, 2), that hold the given masses; none outside the bounds."""
    kde = reflected_kde(draws, bounds)
    if kde is None:
        return
    x, y = np.meshgrid(*(_grid(limit, bound, 60) for limit, bound in zip(limits, bounds, strict=True)))
    density = kde(np.stack([x.ravel(), y.ravel()])).reshape(x.shape)
    ordered = np.sort(density.ravel())[::-1]
    if ordered[0] > 0:
        mass = np.cumsum(ordered) / ordered.sum()
        heights = sorted({float(ordered[np.searchsorted(mass, level)]) for level in levels})
    if not ordered[0] > 0 or heights[0] >= ordered[0]:  # sharper than the grid: a point
        axes.plot(*draws.mean(axis=0), ".", color=color, ms=5)
        return
    axes.contourf(x, y, density, [heights[0], density.max()], colors=[color], alpha=0.12)
    axes.contour(x, y, density, heights, colors=[color], linestyles=[dash], linewidths=1.4)


def _grid(limits: Bounds, bound: Bounds, number: int) -> np.ndarray:
    return np.linspace(max(limits[0], bound[0]), min(limits[1], bound[1]), number)
