"""How far one set of samples is from another, and how good a posterior's draws are.

For samples `a ~ P` and `b ~ Q`, of `n` and `m` rows:

    C2ST    accuracy of a classifier that tells a from b         ½ where P = Q, 1 where they are apart
    W2      min over couplings γ of (Σ γ_ij |a_i - b_j|²)^½       POT's exact solver
    MMD²    mean_{i≠i'} k(a_i, a_i') + mean_{j≠j'} k(b_j, b_j') - 2 mean_{i,j} k(a_i, b_j),
            k(u, v) = exp(-|u - v|² / 2σ²)                        unbiased, so it can be negative

For draws `s_1..s_S` of a posterior and the true `θ`: MSE `mean_i |s_i - θ|²`, and the energy score
`mean_i |s_i - θ| - ½ mean_{i≠i'} |s_i - s_i'|`, a proper score (the CRPS where p = 1; lower is better).

*Joint* metrics compare the pairs `(θ_j, y_j)` with `(θ̂_j, y_j)`, `θ̂_j` being one draw for `y_j`. Their values depend
on the units, so a space is chosen: `wasserstein2(*joint(theta, theta_hat, y, space="standardised"))`. W2 has a floor
above zero at a finite number of rows: print a reference posterior's value beside it. Every metric takes `seed`.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, overload

import numpy as np
import torch
from scipy.spatial.distance import cdist, pdist
from torch import Tensor, nn

from fmcpe._random import derive, seeded
from fmcpe.metrics.pair_classifier import grouped_accuracy
from fmcpe.metrics.sample_classifier import accuracies
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

_ENTRIES = 2**22  # entries of a distance matrix held at a time: 32 MiB in double precision


def c2st(a: Any, b: Any, folds: int = 5, seed: int | None = 0) -> float:
    """Accuracy of a neural classifier that tells `a` from `b`, both (N, d), on rows it has not seen.

    Both are z-scored with the statistics of `a`. The classifier has the architecture of the "mlp" of
    `sbi.utils.metrics.c2st`, all folds trained together. Several comparisons cost less in `c2st_each`.
    """
    a, b = two_samples(a, b)
    if len(a) != len(b):
        n = min(len(a), len(b))
        raise ValueError(f"{len(a)} and {len(b)} rows, expected as many in both: type c2st(a[:{n}], b[:{n}])")
    return c2st_each(a[None], b[None], folds, seed)[0]


def c2st_each(a: Any, b: Any, folds: int = 5, seed: int | None = 0) -> list[float]:
    """`c2st` of `a[i]` and `b[i]` for each i, both (B, N, d): the B values, with all classifiers trained together."""
    a, b = finite(a, "a", "(B, N, d)"), finite(b, "b", "(B, N, d)")
    if a.shape != b.shape:
        came = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"shapes {came}, expected the same (B, N, d): type c2st(a, b) for tables (N, d)")
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
    """Accuracy of a classifier that tells the pairs `(θ_j, y_j)` from `(θ̂_j, y_j)`.

    Both copies of an observation are in the same fold; with plain folds the exact posterior scores below ½.

    Args:
        theta: True parameters, (N, p).
        theta_hat: One posterior draw per observation, (N, p).
        y: Observations, (N, ...), no two rows the same observation.
        folds: Number of folds.
        embedding: A module (copied) or a factory such as `task.embedding_net`, trained with the classifier, which
            sees its output in the place of the flattened y.
        space: Where θ and y are compared, see `joint`. The best accuracy is the same in every space, but that
            of a network is not: "physical" is sensible only where θ and y are of order one.
        transform: The map to unconstrained θ, see `joint`.
        seed: Folds, weights and batches.
    """
    theta, theta_hat, y = to_space(theta, theta_hat, y, space, transform)
    _check_folds(folds, len(theta))
    with seeded(derive(seed, "joint_c2st")):
        return grouped_accuracy(theta, theta_hat, y, folds, embedding)


def wasserstein2(a: Any, b: Any, max_points: int | None = None, seed: int | None = 0) -> float:
    """The 2-Wasserstein distance between samples (N, d) and (M, d), exact.

    `max_points` compares random subsets of that size, drawn with `seed`; the fewer, the higher the floor.
    """
    import ot

    a, b = two_samples(a, b)
    if max_points is not None and (not isinstance(max_points, Integral) or max_points < 2):
        raise ValueError(f"max_points={max_points!r} came; a whole number of at least 2, or None, was expected.")
    a, b = (_subset(part, max_points, derive(seed, "w2", i)) for i, part in enumerate((a, b)))
    # Empty weights are uniform ones.
    cost, log = ot.emd2([], [], _squared_distances(a, b).numpy(), numItermax=10**7, log=True)
    if log["warning"] is not None:
        raise RuntimeError(
            f"transport of {len(a)} to {len(b)} points ended early ({log['warning']}), expected an optimum: "
            "type wasserstein2(a, b, max_points=1000)"
        )
    return float(np.sqrt(max(float(cost), 0.0)))


def mmd2(
    a: Any, b: Any, bandwidth: float | Literal["median"] = 10.0, paired: bool = False, seed: int | None = 0
) -> float:
    """The squared maximum mean discrepancy with a Gaussian kernel, (N, d) against (M, d), unbiased.

    Args:
        a: Samples, (N, d).
        b: Samples, (M, d), independent of `a` unless `paired`.
        bandwidth: σ of the kernel, in the units of the data: 10 in the paper. "median": the median distance
            between two points of `a` and `b` together (of at most 1000 rows each, drawn with `seed`).
        paired: Row j of `a` and of `b` share an observation, as in `joint`. The paper's formula keeps these N
            pairs in the cross term and is off by up to -2/N; `paired=True` leaves them out.
        seed: See `bandwidth`.
    """
    a, b = two_samples(a, b)
    n, m = len(a), len(b)
    sigma = _bandwidth(bandwidth, a, b, seed)
    if paired and n != m:
        raise ValueError(f"paired=True with {n} and {m} rows, expected as many in both: type paired=False")

    def kernel_sum(u: Tensor, v: Tensor) -> float:
        rows = u.split(max(1, _ENTRIES // len(v)))
        return sum(torch.exp(_squared_distances(r, v) / (-2 * sigma**2)).sum().item() for r in rows)

    # k(u, u) = 1, so a sum without its diagonal is the whole sum less one per row.
    within = (kernel_sum(a, a) - n) / (n * (n - 1)) + (kernel_sum(b, b) - m) / (m * (m - 1))
    if paired:
        same = torch.exp((a - b).square().sum(1) / (-2 * sigma**2)).sum().item()
        return within - 2 * (kernel_sum(a, b) - same) / (n * (n - 1))
    return within - 2 * kernel_sum(a, b) / (n * m)


@overload
def mse(samples: Any, theta: Any, reduce: Literal[True] = True, seed: int | None = 0) -> float: ...
@overload
def mse(samples: Any, theta: Any, reduce: Literal[False], seed: int | None = 0) -> Tensor: ...
def mse(samples: Any, theta: Any, reduce: bool = True, seed: int | None = 0) -> float | Tensor:
    """Mean over draws (S, B, p) and observations of `|s - θ|²`, the squares summed over the p parameters.

    `reduce=False` gives the B values. Nothing here is random: `seed` changes nothing.
    """
    samples, theta = draws_and_truth(samples, theta)
    values = (samples - theta).square().sum(-1).mean(0)
    return values.mean().item() if reduce else values


@overload
def energy_score(samples: Any, theta: Any, reduce: Literal[True] = True, seed: int | None = 0) -> float: ...
@overload
def energy_score(samples: Any, theta: Any, reduce: Literal[False], seed: int | None = 0) -> Tensor: ...
def energy_score(samples: Any, theta: Any, reduce: bool = True, seed: int | None = 0) -> float | Tensor:
    """The energy score of draws (S, B, p) at the truth (B, p), averaged over observations; lower is better.

    A draw's distance to itself is left out, so the expected score doesn't depend on S. The number depends on
    the units of θ: `energy_score(*reversed(standardise(theta, samples)))` has those of the prior.
    `reduce=False` gives the B values. Nothing here is random: `seed` changes nothing.
    """
    samples, theta = draws_and_truth(samples, theta, at_least=2)
    S, step = len(samples), max(1, _ENTRIES // len(samples))
    # scipy, because torch.cdist is slow in low dimension, or wrong for parameters far from zero in its fast mode.
    pairs = [
        sum(pdist(x[i : i + step]).sum() + cdist(x[i : i + step], x[i + step :]).sum() for i in range(0, S, step))
        for x in samples.transpose(0, 1).numpy()
    ]
    values = (samples - theta).norm(dim=-1).mean(0) - torch.tensor(pairs) / (S * (S - 1))
    return values.mean().item() if reduce else values


def crps(samples: Any, theta: Any) -> Tensor:
    """The continuous ranked probability score of each parameter, (p,): draws (S, B, p) at the truth (B, p), mean over B.

    The energy score of one parameter by itself, in its own units; lower is better. A draw's distance to itself is left out.
    """
    samples, theta = draws_and_truth(samples, theta, at_least=2)
    number = len(samples)
    # of sorted draws, Σ_{i<j} (s_j - s_i) = Σ_i (2i - S + 1) s_i
    weights = 2 * torch.arange(number, dtype=samples.dtype) - number + 1
    pairs = torch.einsum("s,sbp->bp", weights, samples.sort(dim=0).values)
    return ((samples - theta).abs().mean(0) - pairs / (number * (number - 1))).mean(0)


def _bandwidth(value: Any, a: Tensor, b: Tensor, seed: int | None) -> float:
    """A number of any kind, numpy's and torch's too, or the median distance."""
    sigma = float("nan")
    if isinstance(value, str) and value == "median":
        some = [_subset(part, 1000, derive(seed, "mmd", i)) for i, part in enumerate((a, b))]
        sigma = torch.pdist(torch.cat(some)).median().item()
    elif isinstance(value, Real) or (isinstance(value, np.ndarray | Tensor) and value.ndim == 0):
        sigma = float(value)
    if not 0 < sigma < float("inf"):
        raise ValueError(f"bandwidth={value!r} is {sigma}, expected a positive number: type bandwidth=10.0")
    return sigma


def _check_folds(folds: int, rows: int) -> None:
    if not 2 <= folds <= rows // 2:
        raise ValueError(f"folds={folds} with {rows} rows, expected 2 to {max(2, rows // 2)}: type folds=3")


def _subset(a: Tensor, size: int | None, seed: int | None) -> Tensor:
    if size is None or len(a) <= size:
        return a
    with seeded(seed):
        return a[torch.randperm(len(a))[:size]]


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    # By a matrix product: images cost seconds. Centred, in double precision, cancellation is harmless.
    center = b.mean(0)
    a, b = a - center, b - center
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min_(0.0)
