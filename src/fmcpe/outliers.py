r"""Wrong calibration pairs: y is improbable given θ, under a robust regression on all pairs, or two rows have been swapped.

The summary of y, less the mean summary of simulations at θ, is regressed on θ and on leading components of that mean: a ridge
regression with Student-t weights (Lange, Little and Taylor, 1989), its penalty by leave-one-out, its studentised residuals
whitened by their weighted covariance. An outlying pair gets little weight, so it masks neither itself nor another.

The reference distribution is that of all pairs' distances. Cube roots of squared distances are nearly normal (Wilson and
Hilferty, 1931), so they have a Student-t p-value by median and interquartile range, which do not move with a few wrong pairs.
Where their upper tenth is wider than that, because the noise depends on θ or has heavy tails, it sets the scale (as in
boxplots for skewed data, Hubert and Vandervieren, 2008): up to a tenth of the pairs may be wrong.

Pairs with the same θ are one group: the median distance of a group is compared with those of other groups, and the residual of
a pair with the median residual of its repeats. A residual that all repeats share is the error of the fit at that θ, not of one
pair.

Two swapped rows are rarely outliers; they are found by the evidence of a regression with and without the swap
(`fmcpe.swaps`), and count if their p-value is smaller than those of both rows alone.

`Stack` leaves a pair with p < 0.1/n, by the p-values among the n training rows alone, out of the fits of its candidates, out
of the score that its weights minimise, and out of the range of the pairs. Everything that is reported counts all pairs. There
the p-value of an outlier is also at least that of an exponential tail of log distances (a Pareto tail) with a scale by the
median excess of the ⌈√n⌉ largest: a few of many pairs are usual where real data have heavy tails, and a wrong pair does not
move the median.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from fmcpe.in_range import student_tail, whitening
from fmcpe.problem import Problem, groups_of
from fmcpe.swaps import Swaps, swap_gains


def plausible_rows(problem: Problem, rows: Tensor, robust: bool = True, level: float = 0.1, fewest: int = 8) -> Tensor:
    """The rows that are neither outliers among these rows nor swapped.

    Clean rows are lost where y is far from linear in θ and in the simulator's mean.

    Args:
        problem: The pairs, simulations and base posterior.
        rows: Row numbers, (n,).
        robust: Whether to remove rows; otherwise all are returned.
        level: Family-wise level: the probability that a clean set of pairs loses one, if its noise is about Gaussian.
        fewest: Smallest number of pairs for which outliers are removed.
    """
    if not robust or len(rows) < fewest:
        return rows
    x = None if problem.x is None else problem.x[rows].flatten(2).mean(1)
    z, seen = problem.z[rows], problem.seen[rows].flatten(1)
    p = p_values(*data_distances(z, seen, x, groups_of(problem.theta[rows])[0]), fewest, heavy=True)
    p = torch.minimum(p, swaps_of(z, seen, x).unless(p).bound)
    return rows[p >= level / len(rows)]


def swaps_of(z: Tensor, seen: Tensor, simulated: Tensor | None, most: int = 3000) -> Swaps:
    """The most probable swap of each pair.

    Args:
        z: θ in unconstrained space, (N, p).
        seen: Summaries of y, (N, f).
        simulated: Mean summary of simulations at θ, (N, f), if there are any.
        most: Number of pairs above which no swap is looked for: there are N²/2 of them, and one matters little.
    """
    if len(z) > most:
        none = torch.ones_like(z[:, 0])
        return Swaps(none, none, torch.arange(len(z), device=z.device))
    features = [features_of(z, each) for each in ([None] if simulated is None else [None, simulated])]
    return Swaps.of(swap_gains(features, leading(standardised(seen.double()))))


def data_distances(z: Tensor, seen: Tensor, simulated: Tensor | None, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance of each summary of y to its prediction from θ, (N,); the same within its group of repeats, (N,); the groups.

    Args:
        z: θ in unconstrained space, (N, p).
        seen: Summaries of y, (N, f).
        simulated: Mean summary of simulations at θ, (N, f), if there are any.
        group: Which pairs are repeats, (N,).
    """
    features, targets = features_of(z, simulated), seen.double()
    targets = targets if simulated is None else targets - simulated.double()
    return *_robust_distances(features, leading(standardised(targets)), group), group


def features_of(z: Tensor, simulated: Tensor | None) -> Tensor:
    """θ, and leading components of the mean summary of simulations at θ, (N, f), standardised."""
    features = standardised(z.double())
    return features if simulated is None else torch.cat([features, _components(simulated.double())], dim=1)


def p_values(distances: Tensor, within: Tensor, group: Tensor, fewest: int = 8, heavy: bool = False) -> Tensor:
    """Student-t p-value of each distance among all of them, (N,), by median and robust scale of its ⅔ power.

    Args:
        distances: (N,).
        within: Distances of repeats after their group's shared residual is subtracted, (N,).
        group: Which pairs are repeats, (N,), whole numbers from 0. The p-value of a repeat is twice the smaller of that of its
            group's median among all groups, and of its own distance within the group among all repeats.
        fewest: Groups, or repeats beyond the first of each, below which all p-values are one.
        heavy: Whether the p-value is also at least that of an estimated Pareto tail.
    """
    tail = _heavy_tail if heavy else _robust_tail
    values, inside = (each.double().pow(2 / 3) for each in (distances, within))
    sizes = torch.bincount(group)
    between, own = torch.ones_like(values), torch.ones_like(values)
    if len(sizes) >= fewest:
        medians = torch.empty(len(sizes), dtype=values.dtype, device=values.device)
        medians[group] = values
        for k in (sizes > 1).nonzero()[:, 0].tolist():
            medians[k] = values[group == k].quantile(0.5)
        between = tail(medians, len(sizes) - 1)[group]
    repeated, freedom = sizes[group] > 1, int((sizes - 1).sum())
    if freedom >= fewest:
        own[repeated] = tail(inside[repeated], freedom)
    return torch.where(repeated, (2 * torch.minimum(between, own)).clamp_max(1.0), between)


def shared_residuals(residuals: Tensor, group: Tensor) -> Tensor:
    """Median residual of the other repeats of each pair's θ, (N, p); zero for a pair without."""
    out = torch.zeros_like(residuals)
    for k in (torch.bincount(group) > 1).nonzero()[:, 0].tolist():
        rows = (group == k).nonzero()[:, 0]
        for j in rows.tolist():
            out[j] = residuals[rows[rows != j]].quantile(0.5, dim=0)
    return out


def standardised(rows: Tensor) -> Tensor:
    """Columns of zero mean and unit variance; constants are zero."""
    std = rows.std(0)
    return (rows - rows.mean(0)) / torch.where(std > 1e-9 * rows.abs().amax(0).clamp_min(1e-30), std, torch.inf)


def _robust_tail(values: Tensor, freedom: int) -> Tensor:
    """Upper tail of Student's t at each value; its scale is by both quartiles, or by the upper tenth if that is larger."""
    at = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype, device=values.device)
    low, middle, high = values.quantile(at)
    upper = values.quantile(0.9, interpolation="lower") - middle
    scale = torch.maximum((high - low) / (2 * stats.norm.ppf(0.75)), upper / stats.norm.ppf(0.9)).clamp_min(1e-9)
    return student_tail((values - middle) / scale, freedom)


def _heavy_tail(values: Tensor, freedom: int, pseudo: int = 12) -> Tensor:
    """The larger one of `_robust_tail` and of an exponential tail of log values above a threshold.

    Its scale is by the median excess of the ⌈√n⌉ largest, regularised by `pseudo` excesses of a normal distribution with the
    interquartile range of the log values.
    """
    number = len(values)
    rows = values.clamp_min(1e-12).log()
    largest = min(math.ceil(number**0.5), number - 1)
    ordered = rows.sort(descending=True).values
    low, high = rows.quantile(torch.tensor([0.25, 0.75], dtype=rows.dtype, device=rows.device))
    quantile = stats.norm.isf(largest / number)
    usual = (high - low) / (2 * stats.norm.ppf(0.75)) * (stats.norm.pdf(quantile) * number / largest - quantile)
    found = (ordered[:largest] - ordered[largest]).median() / math.log(2)
    scale = ((pseudo * usual + largest * found) / (pseudo + largest)).clamp_min(1e-9)
    exponential = largest / number * (-(rows - ordered[largest]).clamp_min(0) / scale).exp()
    return torch.maximum(_robust_tail(values, freedom), exponential)


def _components(rows: Tensor, most: int = 4, many: int = 256) -> Tensor:
    """Leading principal components of rows (N, f), of unit variance; by their Gram matrix, which is faster, if f > `many`."""
    rows = standardised(rows)
    if rows.shape[1] > many:
        squares, vectors = (each.flip(-1) for each in torch.linalg.eigh(rows @ rows.T))
        values = squares.clamp_min(0).sqrt()
    else:
        vectors, values, _ = torch.linalg.svd(rows, full_matrices=False)
    varies = values[:most] > 1e-6 * max(1.0, float(values[0]))  # others are arbitrary directions
    return vectors[:, :most][:, varies] * len(rows) ** 0.5


def leading(rows: Tensor, most: int = 16, many: int = 256) -> Tensor:
    """Rows (N, f), in `most` principal directions if f > `many`: a decomposition of all would take longer than a fit."""
    if rows.shape[1] <= many:
        return rows
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    return (vectors * values.clamp_min(0.0).sqrt()).flip(1)[:, :most]


def _robust_distances(
    features: Tensor, targets: Tensor, group: Tensor, freedom: float = 4.0, rounds: int = 6
) -> tuple[Tensor, Tensor]:
    """Mahalanobis distances of studentised residuals of a ridge regression with Student-t weights, and within groups."""
    number = len(targets)
    size = max(1, min(16, targets.shape[1], number // 3))
    design = torch.cat([features.new_ones(number, 1), features], dim=1)
    weight = features.new_ones(number)
    penalised = torch.ones(design.shape[1], dtype=design.dtype, device=design.device)
    penalised[0] = 1e-9
    distance = within = weight
    for _ in range(rounds):
        fits = []
        for penalty in (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3):
            weighted = weight[:, None] * design
            gain = torch.linalg.solve(design.T @ weighted + penalty * penalised.diag(), weighted.T)
            leverage = (design * gain.T).sum(1).clamp_max(0.95)
            residuals = targets - design @ (gain @ targets)
            left_out = residuals / (1 - leverage)[:, None]
            fits.append((float(weight @ left_out.square().sum(1)), residuals / (1 - leverage)[:, None].sqrt()))
        best = min(fits, key=lambda each: each[0])[1]
        best = best - weight @ best / weight.sum()
        whiten = whitening(weight.sqrt()[:, None] * best, size)[1]
        distance, within = ((each @ whiten).norm(dim=1) for each in (best, best - shared_residuals(best, group)))
        scaled = distance.square() * (stats.chi2.median(size) / distance.median().square().clamp_min(1e-24))
        weight = (freedom + size) / (freedom + scaled)
        weight = weight / weight.mean()
    return distance, within
