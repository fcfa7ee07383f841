r"""Are real data like simulations? Permutation tests in the space of the base posterior's summaries.

**Conditional.** y_j is compared with S simulations at its own θ_j. If the simulator is right, these S + 1 are
exchangeable, whatever the distribution of θ_j: the p-value is exact for any number of pairs. Residuals r are those of one
from the mean of the others, whitened by the pooled covariance of all and scaled to unit mean square in each pair. Four
statistics, each a function of which of the S + 1 plays the part of y_j:

    shift   |Σ_j r_j|² / Σ_j |r_j|²             all data are off by the same
    trend   |Σ_j r_j ⊗ z_j|² / Σ_j |r_j - r̄|²   they are off by an amount that changes with θ
    spread  |Σ_j log|r_j| - mean|               they lie farther from simulations than these from each other, or nearer
    shape   |Σ_j φ(r_j, z_j)|²                  any difference: MMD of (r, z), by random Fourier features φ

The smallest of the four p-values is itself tested by the same permutations (Tippett; Westfall and Young, 1993).

**Marginal.** All y together against simulations from the prior, as in sbi's `calc_misspecification_mmd` and
`calc_misspecification_logprob` (Schmitt et al., 2023). It also rejects if θ of the pairs is distributed otherwise than the
prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sbi.diagnostics.misspecification import median_heuristic, rbf_kernel
from scipy import optimize, stats
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.in_range import whitening

MOST_DIRECTIONS = 16


@dataclass(frozen=True)
class ConditionalTest:
    """Real data against simulations at the same θ.

    Args:
        p_value: Of all statistics together, exact.
        p_values: Of each statistic, adjusted for their number.
        distance_ratio: Typical distance of y_j to simulations at θ_j, over that of another simulation; 1 if they are alike.
        common_share: Share of the squared distance that is the same for all pairs.
        detectable_shift: Common shift that is found with a probability of 80 % at a level of 5 %, in standard deviations of
            simulations at one θ.
        pairs: N.
        simulations: S.
    """

    p_value: float
    p_values: dict[str, float]
    distance_ratio: float
    common_share: float
    detectable_shift: float
    pairs: int
    simulations: int


@dataclass(frozen=True)
class MarginalTest:
    """All real data against simulations from the prior.

    Args:
        p_mmd: Permutation p-value of the MMD.
        mmd: Squared maximum mean discrepancy, Gaussian kernel, bandwidth by the median heuristic.
        p_log_prob: P-value of the log densities of y under simulations: they are lower (Mann-Whitney).
        unlike: Pairs whose log density is below that of 99 % of simulations.
        pairs: N.
        simulations: M.
    """

    p_mmd: float
    mmd: float
    p_log_prob: float
    unlike: int
    pairs: int
    simulations: int


def conditional_test(
    seen: Tensor, at_pairs: Tensor, z: Tensor, *, num_permutations: int = 999, seed: int = 0
) -> ConditionalTest:
    """Test summaries of y (N, f) against those of simulations at the same θ (N, S, f); z: θ, standardised, (N, p)."""
    together = torch.cat([seen[:, None], at_pairs], dim=1).double()
    number, size = together.shape[:2]
    residual = (together - together.mean(1, keepdim=True)) * size / (size - 1)
    directions = max(1, min(MOST_DIRECTIONS, residual.shape[2], number * (size - 1) // 3))
    r = residual @ whitening(residual.flatten(0, 1), directions)[1]
    r = r / r.square().mean((1, 2), keepdim=True).clamp_min(1e-24).sqrt()
    with seeded(derive(seed, "conditional")):
        parts = torch.randint(size, (num_permutations, number))
        fourier = _fourier(r, z.double())
    parts = torch.cat([torch.zeros(1, number, dtype=parts.dtype), parts])  # y in its own part comes first
    # relative to squared residuals, so that more noise alone is neither a shift nor a trend, and a shift is no trend
    total, squares = _sums(_centred(r), parts).square().sum(1), _sums(r.square().sum(2, keepdim=True), parts)[:, 0]
    trend = _sums(_centred(_trend(r, z.double())), parts).square().sum(1)
    found = {"shift": total / squares, "trend": trend / (squares - total / number).clamp_min(1e-9 * squares)}
    if size > 2:  # two points are equally far from each other
        found["spread"] = _sums(_centred(r.norm(dim=2, keepdim=True).clamp_min(1e-12).log()), parts)[:, 0].abs()
    found["shape"] = _sums(_centred(fourier), parts).square().sum(1)
    p_value, adjusted = _combined(found)
    ratio, share = _effect(seen.double(), at_pairs.double(), directions)
    shift = _detectable(number, size - 1, directions, 0.05 / len(found))
    return ConditionalTest(p_value, adjusted, ratio, share, shift, number, size - 1)


def _trend(r: Tensor, z: Tensor) -> Tensor:
    """Products of residuals (N, S + 1, d) with standardised z (N, p): (N, S + 1, d·p)."""
    scale = z.std(0) if len(z) > 1 else torch.ones(z.shape[1])
    scale = torch.where(scale > 1e-9, scale, torch.inf)  # a parameter that is the same for all pairs shows no trend
    return (r[..., None] * ((z - z.mean(0)) / scale)[:, None, None]).flatten(2)


def _fourier(r: Tensor, z: Tensor, frequencies: int = 128) -> Tensor:
    """Random Fourier features of a Gaussian kernel of (r, z), bandwidths by the median heuristic: (N, S + 1, 2·128)."""
    some = r.flatten(0, 1)
    some = some[torch.randperm(len(some))[:500]]
    widths = [max(1e-9, median_heuristic(each, each)) for each in (some, z[:500])]
    angle = (r / widths[0]) @ torch.randn(r.shape[2], frequencies, dtype=r.dtype)
    angle = angle + ((z / widths[1]) @ torch.randn(z.shape[1], frequencies, dtype=r.dtype))[:, None]
    return torch.cat([angle.cos(), angle.sin()], dim=2)


def _centred(features: Tensor) -> Tensor:
    return features - features.mean(1, keepdim=True)


def _sums(features: Tensor, parts: Tensor, entries: int = 20_000_000) -> Tensor:
    """Σ_j features_j(i_j) of features (N, S + 1, d), for each row i of parts (B, N): (B, d)."""
    number, size, dim = features.shape
    rows, flat, out = parts + size * torch.arange(number), features.reshape(number * size, dim), []
    for chunk in rows.split(max(1, entries // (number * size))):  # sums over pairs as one product of matrices
        chosen = torch.zeros(len(chunk), number * size, dtype=features.dtype).scatter_(1, chunk, 1.0)
        out.append(chosen @ flat)
    return torch.cat(out)


def _combined(found: dict[str, Tensor]) -> tuple[float, dict[str, float]]:
    """P-value of the smallest p-value, and the adjusted one of each statistic (B + 1,), the first of which is observed."""
    values = torch.stack(list(found.values()))
    # equal statistics, up to rounding, count as at least as large
    order = (values * (1 + 1e-9)).sort(dim=1).values
    p = 1 - torch.searchsorted(order, values).double() / values.shape[1]
    smallest = p.min(0).values
    adjusted = {name: float((smallest <= p[k, 0] + 1e-12).double().mean()) for k, name in enumerate(found)}
    return min(adjusted.values()), adjusted


def _effect(seen: Tensor, at_pairs: Tensor, directions: int) -> tuple[float, float]:
    """Distance ratio and common share, in the covariance of simulations alone; NaN with one simulation at each θ."""
    number, size = at_pairs.shape[:2]
    if size < 2:
        return math.nan, math.nan
    mean = at_pairs.mean(1, keepdim=True)
    among = (at_pairs - mean) * size / (size - 1)
    matrix = whitening(among.flatten(0, 1), directions)[1]
    real, usual = (seen[:, None] - mean) @ matrix, among @ matrix
    # the mean of S others, and of S - 1, differ in variance: (1 + 1/S) against (1 + 1/(S - 1))
    fair = ((1 + 1 / (size - 1)) / (1 + 1 / size)) ** 0.5
    log_ratio = real.norm(dim=2).clamp_min(1e-12).log().mean() - usual.norm(dim=2).clamp_min(1e-12).log().mean()
    squares = real.square().sum(2).mean()
    share = (real.mean((0, 1)).square().sum() * number / max(1, number - 1) - squares / max(1, number - 1)) / squares
    return fair * float(log_ratio.exp()), float(share.clamp(0.0, 1.0))


def _detectable(number: int, simulations: int, dim: int, alpha: float, power: float = 0.8) -> float:
    """Common shift that a χ² test of d directions finds with that power, in standard deviations."""
    limit = stats.chi2.ppf(1 - alpha, dim)
    wanted = optimize.brentq(lambda noncentral: stats.ncx2.sf(limit, dim, noncentral) - power, 1e-6, 1e4)
    return float((wanted / number * (1 + 1 / simulations)) ** 0.5)


def marginal_test(
    seen: Tensor, simulated: Tensor, *, num_permutations: int = 999, seed: int = 0, most: int = 2000
) -> MarginalTest:
    """Test summaries of y (N, f) against those of simulations from the prior (M, f); of more than `most` y, some at random."""
    with seeded(derive(seed, "marginal")):
        seen = seen[torch.randperm(len(seen))[:most]].double()
        simulated = simulated[torch.randperm(len(simulated))].double()
        together = torch.cat([seen, simulated])
        number, total = len(seen), len(together)
        labels = torch.stack(
            [torch.arange(total), *(torch.randperm(total) for _ in range(num_permutations))]
        )  # the first `number` of a row play the part of y
    directions = max(1, min(MOST_DIRECTIONS, together.shape[1], total // 3))
    mean, matrix = whitening(together, directions)
    points = (together - mean) @ matrix
    # one bandwidth for all permutations, so that the p-value is exact; sbi's depends on which points are real
    kernel = rbf_kernel(points, points, max(1e-9, median_heuristic(points, points)))
    weight = torch.full((len(labels), total), -1 / (total - number), dtype=kernel.dtype)
    weight.scatter_(1, labels[:, :number], 1 / number)
    mmd = ((weight @ kernel) * weight).sum(1)
    p_mmd = float((mmd >= mmd[0] * (1 - 1e-9)).double().mean())
    p_log_prob, unlike = _log_prob_test(seen, simulated, directions)
    return MarginalTest(p_mmd, float(mmd[0]), p_log_prob, unlike, number, total - number)


def _log_prob_test(seen: Tensor, simulated: Tensor, directions: int) -> tuple[float, int]:
    """P-value that log densities of y are as those of simulations, and the number of y below 99 % of these.

    A kernel density of one half of the simulations is evaluated at the other half and at y.
    """
    half = len(simulated) // 2
    if half < 2 * directions:
        return math.nan, 0
    mean, matrix = whitening(simulated[:half], directions)
    fitted, others, real = ((each - mean) @ matrix for each in (simulated[:half], simulated[half:], seen))
    width = half ** (-1 / (directions + 4))  # Scott's rule, in whitened directions
    usual, found = (-(torch.cdist(each, fitted) / width).square().div(-2).logsumexp(1) for each in (others, real))
    p = stats.mannwhitneyu(found.numpy(), usual.numpy(), alternative="greater", method="asymptotic").pvalue
    return float(p), int(((usual >= found[:, None]).double().mean(1) < 0.01).sum())
