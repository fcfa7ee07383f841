"""Distances between sets of samples, and scores of posterior draws.

For samples `a ~ P` and `b ~ Q`, of `n` and `m` rows:

    C2ST    accuracy of a classifier between a and b             ½ where P = Q, 1 where they do not overlap
    W2      min over couplings γ of (Σ γ_ij |a_i - b_j|²)^½       POT's exact solver
    MMD²    mean_{i≠i'} k(a_i, a_i') + mean_{j≠j'} k(b_j, b_j') - 2 mean_{i,j} k(a_i, b_j),
            k(u, v) = exp(-|u - v|² / 2σ²)                        unbiased, so it can be negative

For draws `s_1..s_S` of a posterior and the true `θ`: MSE `mean_i |s_i - θ|²`, and the energy score
`mean_i |s_i - θ| - ½ mean_{i≠i'} |s_i - s_i'|`, a proper score (the CRPS where p = 1; lower is better).

*Joint* metrics compare the pairs `(θ_j, y_j)` with `(θ̂_j, y_j)`, `θ̂_j` being one draw for `y_j`. Their values depend
on the units, so choose a space: `wasserstein2(*joint(theta, theta_hat, y, space="standardised"))`. W2 of a finite
sample is above zero even where P = Q: report it beside that of a reference posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, overload

import numpy as np
import torch
from scipy.spatial.distance import cdist, pdist
from torch import Tensor, nn

from fmcpe import energy
from fmcpe._options import is_whole
from fmcpe._random import derive, seeded
from fmcpe.metrics.classifiers import accuracies, grouped_accuracy
from fmcpe.metrics.samples import Space, draws_and_truth, finite, joint, standardise, to_space, two_samples

__all__ = [
    "c2st",
    "c2st_each",
    "crps",
    "energy_score",
    "joint",
    "joint_c2st",
    "mmd2",
    "mse",
    "standardise",
    "wasserstein2",
]


def c2st(a: Any, b: Any, folds: int = 5, seed: int | None = 0) -> float:
    """Cross-validated accuracy of a neural classifier between `a` and `b`, both (N, d).

    Both are z-scored with the statistics of `a`. The classifier has the architecture of the "mlp" of
    `sbi.utils.metrics.c2st`. `c2st_each` is faster for several comparisons.

    Example:
        >>> from fmcpe import metrics
        >>> a, b = torch.zeros(200, 2).normal_(), torch.zeros(200, 2).normal_()
        >>> abs(metrics.c2st(a, b) - 0.5) < 0.1, metrics.c2st(a, b + 10)
        (True, 1.0)
    """
    a, b = two_samples(a, b)
    if len(a) != len(b):
        n = min(len(a), len(b))
        raise ValueError(f"Expected as many rows in a as in b, got {len(a)} and {len(b)}. Call c2st(a[:{n}], b[:{n}]).")
    return c2st_each(a[None], b[None], folds, seed)[0]


def c2st_each(a: Any, b: Any, folds: int = 5, seed: int | None = 0) -> list[float]:
    """`c2st` of `a[i]` and `b[i]` for each i, both (B, N, d); all classifiers are trained as one batch."""
    a, b = finite(a, "a", "(B, N, d)"), finite(b, "b", "(B, N, d)")
    if a.shape != b.shape:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"Expected a and b of one shape (B, N, d), got {shapes}. Call c2st(a, b) for tables (N, d).")
    _check_folds(folds, a.shape[1])
    pairs = torch.stack([torch.stack(standardise(*pair)) for pair in zip(a, b, strict=True)])
    with seeded(derive(seed, "c2st")):
        values: list[float] = accuracies(pairs[:, 0], pairs[:, 1], folds).tolist()
    return values


def joint_c2st(
    theta: Any,
    theta_hat: Any,
    y: Any,
    folds: int = 3,
    embedding: nn.Module | Callable[[], nn.Module] | None = None,
    *,
    space: Space = "standardised",
    transform: Callable[[Tensor], Tensor] | None = None,
    seed: int | None = 0,
) -> float:
    """Cross-validated accuracy of a classifier between the pairs `(θ_j, y_j)` and `(θ̂_j, y_j)`.

    Both pairs of an observation are in the same fold; with plain folds the exact posterior scores below ½.

    Args:
        theta: True parameters, (N, p).
        theta_hat: One posterior draw per observation, (N, p).
        y: Observations, (N, ...), no two rows the same observation.
        folds: Number of folds.
        embedding: A module (copied) or a factory such as `task.embedding_net`, trained with the classifier, that
            replaces the flattened y.
        space: See `joint`. Networks need inputs of order one: use "physical" only where θ and y are.
        transform: See `joint`.
        seed: Seed of folds, weights and batches.
    """
    theta, theta_hat, y = to_space(theta, theta_hat, y, space, transform)
    _check_folds(folds, len(theta))
    with seeded(derive(seed, "joint_c2st")):
        return grouped_accuracy(theta, theta_hat, y, folds, embedding)


def wasserstein2(a: Any, b: Any, max_points: int | None = None, seed: int | None = 0) -> float:
    """The 2-Wasserstein distance between samples (N, d) and (M, d), exact.

    `max_points` compares random subsets of that size, drawn with `seed`; fewer points give a larger distance.

    Example:
        >>> from fmcpe import metrics
        >>> a = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> metrics.wasserstein2(a, a + torch.tensor([3.0, 4.0]))
        5.0
    """
    import ot

    a, b = two_samples(a, b)
    if max_points is not None and not is_whole(max_points, 2):
        raise ValueError(
            f"Expected max_points to be a whole number of at least 2, or None, got {max_points!r}. Try 1000."
        )
    a, b = (_subset(part, max_points, derive(seed, "w2", i)) for i, part in enumerate((a, b)))
    # POT takes empty weights as uniform.
    cost, log = ot.emd2([], [], _squared_distances(a, b).numpy(), numItermax=10**7, log=True)
    if log["warning"] is not None:
        raise RuntimeError(
            f"Expected optimal transport of {len(a)} to {len(b)} points, got an early stop ({log['warning']}). Call "
            "wasserstein2(a, b, max_points=1000)."
        )
    return float(np.sqrt(max(float(cost), 0.0)))


def mmd2(
    a: Any,
    b: Any,
    bandwidth: float | Literal["median"] = 10.0,
    paired: bool = False,
    seed: int | None = 0,
    *,
    max_entries: int = 2**22,
) -> float:
    """The unbiased squared maximum mean discrepancy with a Gaussian kernel, (N, d) against (M, d).

    Args:
        a: Samples, (N, d).
        b: Samples, (M, d), independent of `a` unless `paired`.
        bandwidth: σ of the kernel, in the units of the data: 10 in the paper. "median": the median distance between two
            points of `a` and `b` together (at most 1000 rows of each, drawn with `seed`).
        paired: Row j of `a` and of `b` share an observation, as in `joint`. The paper's formula keeps these N pairs in
            the cross term, with a bias of up to -2/N; `paired=True` leaves them out.
        seed: See `bandwidth`.
        max_entries: Entries of the distance matrix held in memory at once.
    """
    a, b = two_samples(a, b)
    n, m = len(a), len(b)
    sigma = _bandwidth(bandwidth, a, b, seed)
    if paired and n != m:
        raise ValueError(f"Expected as many rows in a as in b with paired=True, got {n} and {m}. Pass paired=False.")

    def kernel_sum(u: Tensor, v: Tensor) -> float:
        rows = u.split(max(1, max_entries // len(v)))
        return sum(torch.exp(_squared_distances(r, v) / (-2 * sigma**2)).sum().item() for r in rows)

    # k(u, u) = 1, so a sum without its diagonal is the whole sum less one per row.
    within = (kernel_sum(a, a) - n) / (n * (n - 1)) + (kernel_sum(b, b) - m) / (m * (m - 1))
    if paired:
        same = torch.exp((a - b).square().sum(1) / (-2 * sigma**2)).sum().item()
        return within - 2 * (kernel_sum(a, b) - same) / (n * (n - 1))
    return within - 2 * kernel_sum(a, b) / (n * m)


def mse(samples: Any, theta: Any) -> float:
    """Mean of `|s - θ|²` over draws (S, B, p) and observations, summed over parameters."""
    samples, theta = draws_and_truth(samples, theta)
    return (samples - theta).square().sum(-1).mean().item()


@overload
def energy_score(samples: Any, theta: Any, reduce: Literal[True] = True, *, max_entries: int = ...) -> float: ...
@overload
def energy_score(samples: Any, theta: Any, reduce: Literal[False], *, max_entries: int = ...) -> Tensor: ...
def energy_score(samples: Any, theta: Any, reduce: bool = True, *, max_entries: int = 2**22) -> float | Tensor:
    """The energy score of draws (S, B, p) at the truth (B, p), averaged over observations; lower is better.

    The distance of a draw to itself is left out, so the expected score does not depend on S. The score has the units of
    θ: `energy_score(*reversed(standardise(theta, samples)))` is in standard deviations of the prior.

    Args:
        samples: Draws, (S, B, p).
        theta: True parameters, (B, p).
        reduce: False returns the B values.
        max_entries: Entries of the distance matrix held in memory at once.

    Example:
        >>> from fmcpe import metrics
        >>> samples = torch.tensor([[[0.0]], [[2.0]]])  # two draws for one observation of one parameter
        >>> metrics.energy_score(samples, torch.tensor([[1.0]]))  # mean distance to the truth, minus half of that between draws
        0.0
        >>> metrics.energy_score(samples, torch.tensor([[5.0]]))
        3.0
    """
    samples, theta = draws_and_truth(samples, theta, at_least=2)
    S, step = len(samples), max(1, max_entries // len(samples))
    # scipy: torch.cdist is slow in low dimension, and its fast mode is inaccurate for parameters far from zero.
    pairs = [
        sum(pdist(x[i : i + step]).sum() + cdist(x[i : i + step], x[i + step :]).sum() for i in range(0, S, step))
        for x in samples.transpose(0, 1).numpy()
    ]
    values = (samples - theta).norm(dim=-1).mean(0) - torch.tensor(pairs) / (S * (S - 1))
    return values.mean().item() if reduce else values


def crps(samples: Any, theta: Any, reduce: bool = True) -> Tensor:
    """The mean continuous ranked probability score of each parameter, (p,): draws (S, B, p) at the truth (B, p).

    It is the energy score of one parameter, in its own units; lower is better. ``reduce=False`` returns that of each
    observation, (B, p).

    Example:
        >>> from fmcpe import metrics
        >>> samples = posterior.sample_batched((200,), x=y_test, seed=0)
        >>> metrics.crps(samples, theta_test) < metrics.crps(prior.sample((200, 50)), theta_test)
        tensor([True])
    """
    samples, theta = draws_and_truth(samples, theta, at_least=2)
    values = energy.crps(samples.movedim(0, 1), theta)
    return values.mean(0) if reduce else values


def _bandwidth(value: Any, a: Tensor, b: Tensor, seed: int | None) -> float:
    sigma = float("nan")
    if isinstance(value, str) and value == "median":
        some = [_subset(part, 1000, derive(seed, "mmd", i)) for i, part in enumerate((a, b))]
        sigma = torch.pdist(torch.cat(some)).median().item()
    elif isinstance(value, Real) or (isinstance(value, np.ndarray | Tensor) and value.ndim == 0):
        sigma = float(value)
    if not 0 < sigma < float("inf"):
        raise ValueError(
            'Expected bandwidth to be a positive number, or "median" of distinct points, got '
            f"{value!r}. Try bandwidth=10.0."
        )
    return sigma


def _check_folds(folds: int, rows: int) -> None:
    if not 2 <= folds <= rows // 2:
        raise ValueError(f"Expected 2 to {max(2, rows // 2)} folds for {rows} rows, got folds={folds}. Try folds=3.")


def _subset(a: Tensor, size: int | None, seed: int | None) -> Tensor:
    if size is None or len(a) <= size:
        return a
    with seeded(seed):
        return a[torch.randperm(len(a))[:size]]


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    # A matrix product, for speed with images. With centred data in double precision, cancellation is harmless.
    center = b.mean(0)
    a, b = a - center, b - center
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min_(0.0)
