"""Energy scores of mixtures: a quadratic form of mean distances between cross-validated draws; weights that minimise it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcpe.candidates.base import Posterior

FAR = 1e6
"""Numerical guard: draws are clipped to this distance, in prior standard deviations, because squares of larger ones overflow in
single precision."""


@dataclass(frozen=True)
class CrossFit:
    """A candidate fitted on the training rows of every fold.

    Args:
        members: The fitted posteriors.
        draws: Draws for each pair from members that were not trained on it, (N, R, S, p).
        seconds: Fit time.
    """

    members: Sequence[Posterior]
    draws: Tensor
    seconds: float


@dataclass(frozen=True)
class Distances:
    """Mean distances, pair by pair, that determine the energy score of any mixture.

    Args:
        to_truth: a, of each candidate's draws to the truth, (K, N).
        between: D, between the draws of two candidates, (K, K, N); of one candidate, as an ensemble of its members.
    """

    to_truth: Tensor
    between: Tensor

    @classmethod
    def of(cls, fits: Sequence[CrossFit], truth: Tensor) -> Distances:
        """From cross-validated draws and true z, (N, p)."""
        each = [fit.draws.clamp(-FAR, FAR) for fit in fits]
        to_truth = torch.stack([(draws - truth[:, None, None]).norm(dim=-1).mean((1, 2)) for draws in each])
        between = truth.new_zeros(len(each), len(each), len(truth))
        for k, one in enumerate(each):
            between[k, k] = _within(one, len(fits[k].members))
            for j in range(k):
                between[k, j] = between[j, k] = torch.cdist(one.flatten(1, 2), each[j].flatten(1, 2)).mean((1, 2))
        return cls(to_truth, between)

    def rows(self, index: Tensor) -> Distances:
        """The distances of a subset of the pairs."""
        return Distances(self.to_truth[:, index], self.between[..., index])

    def scores(self, weights: Tensor) -> Tensor:
        """Energy score of a mixture on each pair, (N,)."""
        return weights @ self.to_truth - 0.5 * torch.einsum("k,l,kln->n", weights, weights, self.between)


def stack_weights(
    distances: Distances, preference: Tensor, pseudo_count: float, pairs: float, importance: Tensor | None = None
) -> Tensor:
    r"""Weights of the mixture that minimise the cross-validated energy score.

        ES(w)/s - (β·w + α Σ_k log w_k)/N,   ES(w) = a·w - ½ wᵀ D w,   s the smallest single score

    The energy score is convex in w for exact D; negative curvature, which finite draws can give, is removed. Solved by Newton's
    method with backtracking, on the simplex.

    Args:
        distances: a and D, pair by pair.
        preference: β, (K,), in units of s per pair.
        pseudo_count: α, positive, the same for all candidates.
        pairs: N, the number of pairs that count as independent.
        importance: Weight of each pair, (N,), of mean one; equal if None.

    Returns:
        w, (K,), positive, summing to one.
    """
    to_truth, between = distances.to_truth.double(), distances.between.double()
    if importance is not None:
        to_truth, between = to_truth * importance, between * importance
    a, d = to_truth.mean(1), between.mean(2)
    scale = float((a - 0.5 * d.diagonal()).min().clamp_min(1e-12))
    curvature, slope, barrier = _convex(-d) / scale, a / scale - preference.double() / pairs, pseudo_count / pairs

    def objective(w: Tensor) -> float:
        return float(w @ slope + 0.5 * w @ curvature @ w - barrier * w.log().sum())

    w = torch.full_like(a, 1 / len(a))
    for _ in range(200):
        gradient = slope + curvature @ w - barrier / w
        step = _newton_step(curvature + (barrier / w.square()).diag(), gradient)
        decrement = -float(gradient @ step)
        if decrement < 1e-12:
            break
        ratio = (-w / step)[step < 0]
        length = min(1.0, 0.99 * float(ratio.min())) if len(ratio) else 1.0
        before = objective(w)
        while objective(w + length * step) > before - 1e-4 * length * decrement and length > 1e-12:
            length /= 2
        w = (w + length * step).clamp_min(1e-300)
        w = w / w.sum()
    return w.to(distances.to_truth)


def _convex(matrix: Tensor) -> Tensor:
    """The matrix without its negative curvature on vectors that sum to zero."""
    number = len(matrix)
    centre = torch.eye(number, dtype=matrix.dtype, device=matrix.device) - 1 / number
    values, vectors = torch.linalg.eigh(centre @ matrix @ centre)
    return matrix - (vectors * values.clamp_max(0.0)) @ vectors.T


def _newton_step(hessian: Tensor, gradient: Tensor) -> Tensor:
    """The Newton step on the simplex: its entries sum to zero."""
    solved = torch.linalg.solve(hessian, torch.stack([gradient, torch.ones_like(gradient)], dim=1))
    return solved[:, 1] * (solved[:, 0].sum() / solved[:, 1].sum()) - solved[:, 0]


def of_mean_one(importance: Tensor) -> Tensor:
    """Weights of pairs divided by their mean; equal weights if all are zero."""
    mean = importance.mean()
    return importance / mean if float(mean) > 0 else torch.ones_like(importance)


def effective_number(pairs: float, importance: Tensor | None) -> float:
    """Kish's effective number of pairs, n (Σ w)² / (N Σ w²), where n of N pairs count as independent."""
    return pairs if importance is None else pairs * float(importance.mean().square() / importance.square().mean())


def half_distance(draws: Tensor) -> Tensor:
    """Half of the mean distance of two different draws, parameter by parameter, (N, S, p) -> (N, p)."""
    size = draws.shape[1]
    order = 2 * torch.arange(1, size + 1, device=draws.device) - size - 1
    return (order[:, None] * draws.sort(dim=1).values).sum(1) / (size * (size - 1))


def crps(draws: Tensor, truth: Tensor) -> Tensor:
    """CRPS of each pair and parameter, of draws (N, S, p) and truth (N, p): (N, p)."""
    return (draws - truth[:, None]).abs().mean(1) - half_distance(draws)


def _within(draws: Tensor, members: int) -> Tensor:
    """Mean distance between two draws of an ensemble of M members, from draws (N, R, S, p) of R of them: (N,).

    Two draws come from one member with probability 1/M: within/M + (1 - 1/M)·between.
    """
    number, size = draws.shape[1:3]
    each = torch.stack([torch.cdist(draws[:, r], draws[:, r]).sum((1, 2)) for r in range(number)]).mean(0)
    # over distinct draws: the zero distance of a draw to itself would favour mixtures
    each = each / (size * (size - 1))
    if number == 1 or members == 1:
        return each
    pairs = [torch.cdist(draws[:, r], draws[:, q]).mean((1, 2)) for r in range(number) for q in range(r)]
    return each / members + (1 - 1 / members) * torch.stack(pairs).mean(0)
