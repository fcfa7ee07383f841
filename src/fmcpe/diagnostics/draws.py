"""Where the truth lies among posterior draws that already exist.

With `S` draws and the truth `θ` exchangeable, as they are under the right posterior, the rank of the truth
is uniform on `0..S`, for any scalar function of (θ, y) that orders them. `(rank + U) / (S + 1)` with `U ~
U[0,1]` is then uniform on [0, 1] *exactly*, whatever S is, and so are the credibilities below: bins of
equal probability, exact tests, and intervals that don't lose the `1/S` that empirical quantiles do. Ties
(draws clamped at a bound) are broken at random for the same reason.

A *credibility* is the level of the smallest region that holds the truth; its distribution function is the
expected coverage. The regions here are

    central    between two quantiles, one parameter at a time
    ellipsoid  the highest-density region of a Gaussian fitted to half of the draws; the other half is ranked, so
               the coverage is right for any posterior, and the region is nearly the smallest if it has one mode
    density    highest posterior density: needs the log density of the draws and of the truth
    tarp       balls around a random point (Lemos et al. 2023): finds faults that the others miss, such as a
               forgotten prior, but its curve doesn't say over- or under-confident

None of them, nor SBC, sees a posterior that ignores y and returns the prior: look at a score beside them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.metrics.samples import draws_and_truth, finite


def ranks(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """How many of the draws (S, B, p) lie below the truth (B, p): integers (B, p) in 0..S."""
    samples, theta = draws_and_truth(samples, theta)
    return _ranks(samples, theta, derive(seed, "ties"))


def uniforms(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """The ranks as numbers (B, p) in (0, 1), uniform under the right posterior."""
    samples, theta = draws_and_truth(samples, theta)
    return spread(_ranks(samples, theta, derive(seed, "ties")), len(samples), seed)


def central_coverage(samples: Any, theta: Any, level: float, seed: int | None = 0) -> Tensor:
    """The share of observations whose central interval of this level holds the truth, per parameter: (p,)."""
    check_levels([level])
    return (central_credibility(samples, theta, seed) <= level).double().mean(0)


def central_credibility(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """The level of the smallest central interval that holds the truth, (B, p)."""
    return (2 * uniforms(samples, theta, seed) - 1).abs()


def ellipsoid_credibility(samples: Any, theta: Any, seed: int | None = 0) -> Tensor:
    """The mass of draws nearer to the posterior's mean than the truth is, in its own covariance's metric, (B,)."""
    samples, theta = draws_and_truth(samples, theta)
    p, half = theta.shape[1], len(samples) // 2
    if half < p + 2:
        raise ValueError(f"{len(samples)} draws came, expected at least {2 * p + 4}: type num_samples=500")
    fitted, ranked = samples[:half], samples[half:]
    mean, std = fitted.mean(0), fitted.std(0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    scores = ((fitted - mean) / std).transpose(0, 1)
    # The ridge keeps draws clamped to a line from having a singular covariance.
    covariance = scores.mT @ scores / (half - 1) + 1e-6 * torch.eye(p, dtype=scores.dtype)
    root = torch.linalg.cholesky(covariance)

    def distance(points: Tensor) -> Tensor:
        centred = ((points - mean) / std).unsqueeze(-1)
        return torch.linalg.solve_triangular(root, centred, upper=False).squeeze(-1).norm(dim=-1, keepdim=True)

    counts = _ranks(distance(ranked), distance(theta), derive(seed, "ties"))
    return spread(counts, len(ranked), seed)[:, 0]


def tarp_credibility(samples: Any, theta: Any, references: Any = None, seed: int | None = 0) -> Tensor:
    """The mass of draws nearer to a reference point than the truth is, (B,).

    Distances are taken with each parameter scaled to the range of `theta`, as sbi's `run_tarp` does.

    Args:
        samples: Draws, (S, B, p).
        theta: Truth, (B, p).
        references: One point per observation, (B, p); drawn from the box around `theta` if not given. Points
            that depend on y make the test stronger.
        seed: The references, and the breaking of ties.
    """
    samples, theta = draws_and_truth(samples, theta)
    low, high = theta.amin(0), theta.amax(0)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    if references is None:
        with seeded(derive(seed, "references")):
            references = low + width * torch.rand(theta.shape, dtype=theta.dtype)
    references = finite(references, "references", "(B, p)")
    if references.shape != theta.shape:
        came = tuple(references.shape)
        raise ValueError(f"references has shape {came}, expected {tuple(theta.shape)}: type references=None")
    near_samples, near_theta = (((at - references) / width).norm(dim=-1, keepdim=True) for at in (samples, theta))
    return spread(_ranks(near_samples, near_theta, derive(seed, "ties")), len(samples), seed)[:, 0]


def density_credibility(log_prob_samples: Any, log_prob_theta: Any, seed: int | None = 0) -> Tensor:
    """The mass of draws with a higher density than the truth, (B,), from log densities (S, B) and (B,).

    The densities need no normalisation: only their order for one observation matters.
    """
    above, truth = torch.as_tensor(log_prob_samples).double(), torch.as_tensor(log_prob_theta).double()
    if above.ndim != 2 or above.shape[1:] != truth.shape or above.isnan().any() or truth.isnan().any():
        came = f"{tuple(above.shape)} and {tuple(truth.shape)}"
        raise ValueError(
            f"log densities of shapes {came} came, expected (S, B) and (B,) without NaN: "
            "type posterior.log_prob_batched(samples, x=ys)"
        )
    counts = _ranks(-above[..., None], -truth[..., None], derive(seed, "ties"))
    return spread(counts, len(above), seed)[:, 0]


def spread(counts: Tensor, num_samples: int, seed: int | None = 0) -> Tensor:
    """Ranks in 0..S as numbers in (0, 1), each drawn uniformly within the cell of its rank."""
    with seeded(derive(seed, "cells")):
        within = torch.rand(counts.shape, dtype=torch.float64)
    # torch.rand can be 0, and the tests need a number strictly inside (0, 1).
    return (counts + within.clamp(1e-9, 1 - 1e-9)) / (num_samples + 1)


def check_levels(levels: list[float]) -> None:
    """Refuse levels outside (0, 1)."""
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels {levels} came, expected numbers between 0 and 1: type levels=(0.5, 0.8, 0.95)")


def _ranks(samples: Tensor, theta: Tensor, seed: int | None) -> Tensor:
    below, equal = (samples < theta).sum(0), (samples == theta).sum(0)
    if not equal.any():
        return below
    with seeded(seed):
        return below + (torch.rand(below.shape) * (equal + 1)).floor().long().clamp_max(equal)
