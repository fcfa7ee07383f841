"""Ranks and credibilities of the true parameters among existing posterior draws.

Under the correct posterior, the `S` draws and the true `θ` are exchangeable, so the rank of the truth by any scalar
function of (θ, y) is uniform on `0..S`. `(rank + U) / (S + 1)` with `U ~ U[0,1]` is then *exactly* uniform on [0, 1]
for every S, and so are the credibilities below. Bins have equal probability, tests are exact, and intervals do not
have the `1/S` error of empirical quantiles. Ties (draws clamped at a bound) are broken at random for the same reason.

A *credibility* is the level of the smallest region that contains the truth; its distribution function is the
expected coverage. The regions are

    central    between two quantiles, one parameter at a time
    ellipsoid  the highest-density region of a Gaussian fitted to half of the draws; the other half is ranked, so
               the coverage is exact for any correct posterior, and the region is nearly minimal if it is unimodal
    density    highest posterior density: needs the log density of the draws and of the truth
    tarp       balls around a random point (Lemos et al. 2023): detects errors that the others miss, such as a
               wrong prior, but its curve does not distinguish over- from under-confidence

Neither they nor SBC detect a posterior that ignores y and returns the prior: report a score as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.metrics.samples import draws_and_truth, finite


def ranks(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """Number of draws (S, B, p) below the truth (B, p): integers (B, p) in 0..S."""
    samples, theta = draws_and_truth(samples, theta)
    return _ranks(samples, theta, derive(seed, "ties"))


def uniforms(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """Normalised ranks (B, p) in (0, 1), uniform under the correct posterior."""
    samples, theta = draws_and_truth(samples, theta)
    return spread(_ranks(samples, theta, derive(seed, "ties")), len(samples), seed)


def central_coverage(samples: Any, theta: Any, level: float, seed: int | None = 0) -> Tensor:
    """Fraction of observations whose central interval of this level contains the truth, per parameter: (p,)."""
    check_levels([level])
    return (central_credibility(samples, theta, seed) <= level).double().mean(0)


def central_credibility(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """Level of the smallest central interval that contains the truth, (B, p)."""
    return (2 * uniforms(samples, theta, seed) - 1).abs()


def ellipsoid_credibility(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """Fraction of draws with a smaller Mahalanobis distance to the posterior mean than the truth, (B,)."""
    samples, theta = draws_and_truth(samples, theta)
    p, half = theta.shape[1], len(samples) // 2
    if half < p + 2:
        raise ValueError(f"Expected at least {2 * p + 4} draws, got {len(samples)}. Pass num_samples=500.")
    fitted, ranked = samples[:half], samples[half:]
    mean, std = fitted.mean(0), fitted.std(0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    scores = ((fitted - mean) / std).transpose(0, 1)
    # the ridge prevents a singular covariance of draws clamped to a line
    covariance = scores.mT @ scores / (half - 1) + 1e-6 * torch.eye(p, dtype=scores.dtype)
    root = torch.linalg.cholesky(covariance)

    def distance(points: Tensor) -> Tensor:
        centred = ((points - mean) / std).unsqueeze(-1)
        return torch.linalg.solve_triangular(root, centred, upper=False).squeeze(-1).norm(dim=-1, keepdim=True)

    counts = _ranks(distance(ranked), distance(theta), derive(seed, "ties"))
    return spread(counts, len(ranked), seed)[:, 0]


def tarp_credibility(samples: Any, theta: Any, references: Any = None, seed: int | None = 0) -> Tensor:
    """Fraction of draws nearer to a reference point than the truth, (B,).

    Each parameter is scaled to the range of `theta`, as in sbi's `run_tarp`.

    Args:
        samples: Draws, (S, B, p).
        theta: True parameters, (B, p).
        references: One point per observation, (B, p); drawn from the box around `theta` if not given. Points
            that depend on y give a stronger test.
        seed: Seed of the references and of tie-breaking.
    """
    samples, theta = draws_and_truth(samples, theta)
    low, high = theta.amin(0), theta.amax(0)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    if references is None:
        with seeded(derive(seed, "references")):
            references = low + width * torch.rand(theta.shape, dtype=theta.dtype)
    references = finite(references, "references", "(B, p)")
    if references.shape != theta.shape:
        given = tuple(references.shape)
        raise ValueError(f"Expected references of shape {tuple(theta.shape)}, got {given}. Pass references=None.")
    near_samples, near_theta = (((at - references) / width).norm(dim=-1, keepdim=True) for at in (samples, theta))
    return spread(_ranks(near_samples, near_theta, derive(seed, "ties")), len(samples), seed)[:, 0]


def density_credibility(log_prob_samples: Any, log_prob_theta: Any, seed: int | None = 0) -> Tensor:
    """Fraction of draws with a higher density than the truth, (B,), from log densities (S, B) and (B,).

    The densities may be unnormalised: only their order within an observation matters.
    """
    above, truth = torch.as_tensor(log_prob_samples).double(), torch.as_tensor(log_prob_theta).double()
    if above.ndim != 2 or above.shape[1:] != truth.shape or above.isnan().any() or truth.isnan().any():
        raise ValueError(
            f"Expected log densities (S, B) and (B,) without NaN, got shapes {tuple(above.shape)} and "
            f"{tuple(truth.shape)}. Compute them with posterior.log_prob_batched(samples, x=ys)."
        )
    counts = _ranks(-above[..., None], -truth[..., None], derive(seed, "ties"))
    return spread(counts, len(above), seed)[:, 0]


def spread(counts: Tensor, num_samples: int, seed: int | None = 0) -> Tensor:
    """Ranks in 0..S as numbers in (0, 1), each uniform within the cell of its rank."""
    with seeded(derive(seed, "cells")):
        within = torch.rand(counts.shape, dtype=torch.float64)
    # torch.rand can return 0, but Φ⁻¹ needs a number strictly inside (0, 1)
    return (counts + within.clamp(1e-9, 1 - 1e-9)) / (num_samples + 1)


def check_levels(levels: list[float]) -> None:
    """Raise an error for levels outside (0, 1)."""
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"Expected levels between 0 and 1, got {levels}. Pass levels=(0.5, 0.8, 0.95).")


def _ranks(samples: Tensor, theta: Tensor, seed: int | None) -> Tensor:
    below, equal = (samples < theta).sum(0), (samples == theta).sum(0)
    if not equal.any():
        return below
    with seeded(seed):
        return below + (torch.rand(below.shape) * (equal + 1)).floor().long().clamp_max(equal)
