"""How large a regression of data on θ (`fmcpe.forward`) may be: what left-out pairs say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fmcpe.emulator import MOST_FEATURES
from fmcpe.forward import Coordinates, Size, fit_forward, leading_directions
from fmcpe.polynomials import count

FEWEST_PAIRS = 8
"""Pairs from which a regression is tried."""

_DEGREES = (1, 2, 3)
_DIRECTIONS = (3, 6, 12, 24)
_WIDENINGS = tuple(1.25**k for k in range(10))
_HOPELESS, _FEW = 0.2, 30
"""Nats below which no belief or widening makes a regression say enough, unless pairs are few."""
_BELIEFS = (0.1, 1.0, 3.0)


def choose_size(
    theta: Tensor, data: Tensor, where: Coordinates, prior_theta: Tensor, folds: Tensor, shown: int = 0
) -> tuple[Size, float]:
    """The size with which left-out θ are best told from draws of the prior, given y.

    Args:
        theta: Physical parameters of the pairs, (N, p).
        data: Their observations in these coordinates, (N, r).
        where: The coordinates.
        prior_theta: Draws of the prior, (M, p).
        folds: The fold of each pair, (N,), from 0 to K - 1: those of one fold are left out together.
        shown: How many numbers that the simulator shows are features beside θ, in place of its powers.

    Returns:
        The size, and how much more it says of a left-out θ than a guess does: the mean gain in log probability, in nats.
    """
    parts = [(folds == k, folds != k) for k in range(int(folds.max()) + 1)]
    leading = [leading_directions(data[outside]) for _, outside in parts]

    def gains(size: Size, widenings: Sequence[float]) -> dict[Size, float]:
        """The mean gain with each widening."""
        found = dict.fromkeys((size._replace(widening=factor) for factor in widenings), 0.0)
        for (inside, outside), directions in zip(parts, leading, strict=True):
            forward = fit_forward(theta[outside], data[outside], where, size, directions)
            seen, (mean, factor) = forward.see_reduced(data[inside], where), forward.expect(theta[inside])
            others, other_factor = forward.expect(prior_theta)
            distance, other_distance = (seen - mean).square().sum(-1), forward.distances(others, seen)
            for wide in found:
                true = forward.log_likelihood(distance, wide.widening * factor)[:, None]
                rest = forward.log_likelihood(other_distance, wide.widening * other_factor)
                found[wide] += float((true[:, 0] - torch.cat([true, rest], dim=1).logsumexp(1)).sum())
        return {wide: total / len(data) + math.log(1 + len(prior_theta)) for wide, total in found.items()}

    known: dict[Size, float] = {}

    def best(sizes: Sequence[Size]) -> Size:
        for size in sizes:
            if size not in known:
                known.update(gains(size, (1.0,)))
        return max(sizes, key=known.__getitem__)

    # one after the other: the degree, with a middling number of directions; that number; the belief; the widening
    pairs, parameters = min(int(outside.sum()) for _, outside in parts), theta.shape[1]
    numbers = _numbers_of_directions(pairs, data.shape[1], parameters)
    degrees = [1] if shown else _degrees(parameters, len(data))
    size = best([Size(degree, numbers[len(numbers) // 2], shown=shown) for degree in degrees])
    size = best([size._replace(directions=number) for number in numbers])
    if pairs > _FEW and known[size] < _HOPELESS:
        return size, known[size]
    size = best([size._replace(belief=belief) for belief in _BELIEFS])
    found = gains(size, _WIDENINGS)
    weights = (len(data) * torch.tensor([found[wide] for wide in found])).softmax(0)
    widening = math.exp(float(weights @ torch.tensor([wide.widening for wide in found]).log()))
    return size._replace(widening=widening), max(found.values())


def _numbers_of_directions(pairs: int, numbers: int, parameters: int) -> list[int]:
    """How many directions so many pairs and numbers allow, not fewer than there are parameters to be told.

    All numbers of a short vector are a choice too.
    """
    most = max(1, min(numbers, pairs - 2))
    choices = (*_DIRECTIONS, *((numbers,) if numbers <= _DIRECTIONS[-1] else ()))
    return sorted({max(min(q, most), min(parameters, most)) for q in choices})


def _degrees(parameters: int, pairs: int) -> list[int]:
    """Degrees that so many pairs allow."""
    most = min(MOST_FEATURES, pairs / 2)
    return [degree for degree in _DEGREES if degree == 1 or count(parameters, degree) <= most]
