"""How large a regression of data on θ (`fmcpe.forward`) may be: what left-out pairs say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fmcpe.emulator import MOST_FEATURES
from fmcpe.forward import Coordinates, Size, fit_forward, leading_directions
from fmcpe.normals import Normals
from fmcpe.polynomials import count
from fmcpe.surface import PriorPool, Surface

FEWEST_PAIRS = 8
"""Pairs from which a regression is tried."""

_DEGREES = (1, 2, 3)
_DIRECTIONS = (3, 6, 12, 24)
_WIDENINGS = tuple(1.25**k for k in range(10))
_NOTHING, _HOPELESS, _FEW = 0.02, 0.2, 30
"""Nats that say that there is nothing to be found, if a middling number of directions and the largest find no more; and below
which no belief or widening makes a regression say enough, unless pairs are few."""
_BELIEFS = (0.1, 1.0, 3.0)
_AROUND, _EACH = ((1.2, 0.0), (2.5, 0.0), (1.5, 30.0)), 16
"""Normals around the peak of a likelihood that its mean is sought with: how much wider, and how firmly held; draws of each."""
_MOST_ASKED = 300
"""Left-out pairs that are asked."""


def choose_size(
    theta: Tensor, data: Tensor, where: Coordinates, pool: PriorPool, folds: Tensor, shown: int = 0
) -> tuple[Size, float]:
    """The size whose posterior is highest at left-out θ, given y.

    Args:
        theta: Physical parameters of the pairs, (N, p).
        data: Their observations in these coordinates, (N, r).
        where: The coordinates.
        pool: The prior.
        folds: The fold of each pair, (N,), from 0 to K - 1: those of one fold are left out together.
        shown: How many numbers that the simulator shows are features beside θ, in place of its powers.

    Returns:
        The size, and how much more it says of a left-out θ than the prior does: the mean gain in log density, in nats.
    """
    number = int(folds.max()) + 1
    # of many pairs, some are asked: their mean is what is wanted
    inside = [(folds == k).nonzero()[: -(-_MOST_ASKED // number), 0] for k in range(number)]
    outside = [folds != k for k in range(number)]
    leading = [leading_directions(data[rows]) for rows in outside]
    z = pool.space.to_z_safely(theta)
    # the same for all sizes: they are compared by what they say, not by luck
    noise = [torch.randn(len(_AROUND), _EACH, len(rows), z.shape[1], device=z.device) for rows in inside]
    asked = sum(map(len, inside))

    def gains(size: Size, widenings: Sequence[float]) -> dict[Size, float]:
        """The mean gain with each widening."""
        found = dict.fromkeys((size._replace(widening=factor) for factor in widenings), 0.0)
        for k, rows in enumerate(inside):
            forward = fit_forward(theta[outside[k]], data[outside[k]], where, size, leading[k])
            seen = forward.see_reduced(data[rows], where)
            each = log_gains(Surface(forward, pool), z[rows], seen, noise[k], widenings)
            for wide, gain in zip(found, each.unbind(1), strict=True):
                found[wide] += float(gain.sum()) / asked
        return found

    known: dict[Size, float] = {}

    def best(sizes: Sequence[Size]) -> Size:
        for size in sizes:
            if size not in known:
                known.update(gains(size, (1.0,)))
        return max(sizes, key=known.__getitem__)

    # one after the other: the degree, with a middling number of directions; that number; the belief; the widening
    pairs, parameters = min(int(rows.sum()) for rows in outside), theta.shape[1]
    numbers = _numbers_of_directions(pairs, data.shape[1], parameters)
    degrees = [1] if shown else _degrees(parameters, len(data))
    size = best([Size(degree, numbers[len(numbers) // 2], shown=shown) for degree in degrees])
    size = best([size, size._replace(directions=numbers[-1])])
    if pairs > _FEW and max(abs(gain) for found, gain in known.items() if found.degree == size.degree) < _NOTHING:
        return size, known[size]
    size = best([size._replace(directions=number) for number in numbers])
    if pairs > _FEW and known[size] < _HOPELESS:
        return size, known[size]
    size = best([size._replace(belief=belief) for belief in _BELIEFS])
    found = gains(size, _WIDENINGS)
    weights = (asked * torch.tensor([found[wide] for wide in found])).softmax(0)
    widening = math.exp(float(weights @ torch.tensor([wide.widening for wide in found]).log()))
    return size._replace(widening=widening), max(found.values())


def log_gains(surface: Surface, z: Tensor, seen: Tensor, noise: Tensor, widenings: Sequence[float]) -> Tensor:
    """How much higher the posterior is at z than the prior, in nats, with each widening: (N, W).

    The likelihood at z over its mean over the prior. Of a sharp likelihood, the prior's draws all miss the peak: the mean is
    over these and over draws from normals around where z says that the peak is, weighted by how often each comes up.

    Args:
        surface: The posterior, for a widening of one.
        z: Parameters, (N, p).
        seen: What is seen of their data, (N, q).
        noise: Standard normal numbers, (A, E, N, p): E draws from each of the A normals.
        widenings: Factors of the variance.
    """
    forward, pool, (_, each, number, dim) = surface.forward, surface.pool, noise.shape
    peak = surface.normals(z, seen)
    around = [Normals(peak.centre, (peak.narrowed(hold) if hold else peak).root / wider) for wider, hold in _AROUND]
    drawn = torch.stack([one.away(steps) for one, steps in zip(around, noise, strict=True)]).flatten(0, 1)
    drawn = torch.cat([z[None], drawn])  # z itself counts: no gain is larger than draws could tell
    log_prior, (mean, factor) = surface.expect(drawn.flatten(0, 1))
    log_prior, factor = log_prior.unflatten(0, drawn.shape[:2]), factor.unflatten(0, drawn.shape[:2])
    distance = (seen - mean.unflatten(0, drawn.shape[:2])).square().sum(-1)
    constant = math.log(each) - 0.5 * dim * math.log(2 * math.pi)

    def log_often(log_prior: Tensor, *by_normals: Tensor) -> Tensor:
        """Log of how often draws come up, per volume, by these log densities of the prior and of the normals."""
        return torch.stack([log_prior + math.log(len(pool.z)), *(each + constant for each in by_normals)]).logsumexp(0)

    near = log_prior - log_often(log_prior, *(one.log_prob(drawn) for one in around))
    pool_prior = pool.log_density(pool.z, pool.theta)[:, None].expand(-1, number)
    far = pool_prior - log_often(pool_prior, *(one.log_prob_of_all(pool.z) for one in around))
    pool_distance, pool_factor = forward.distances(surface.expected[0], seen).T, surface.expected[1][:, None]
    gains = []
    for wide in widenings:
        likelihood = forward.log_likelihood(distance, wide * factor)
        terms = torch.cat([likelihood + near, forward.log_likelihood(pool_distance, wide * pool_factor) + far])
        gains.append(likelihood[0] - terms.nan_to_num(-torch.inf, -torch.inf, -torch.inf).logsumexp(0))
    return torch.stack(gains, dim=1)


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
