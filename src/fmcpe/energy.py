"""Energy scores of mixtures, from cross-validated draws: a quadratic form of mean distances, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcpe.candidates.base import Posterior

FAR = 1e6
"""Numerical guard: a draw farther out, in prior standard deviations, counts as this far, because
the squares of larger ones overflow in single precision."""


@dataclass(frozen=True)
class CrossFit:
    """A candidate fitted on the training rows of every fold.

    Args:
        members: The fitted posteriors.
        draws: Draws for each pair from members that have not seen it, (N, R, S, p).
        seconds: Time of the fits.
    """

    members: Sequence[Posterior]
    draws: Tensor
    seconds: float


@dataclass(frozen=True)
class Distances:
    """Mean distances, pair by pair, that the energy score of any mixture is made of.

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
    each = each / (
        size * (size - 1)
    )  # over distinct draws: the zero distance of a draw to itself would favour mixtures
    if number == 1 or members == 1:
        return each
    pairs = [torch.cdist(draws[:, r], draws[:, q]).mean((1, 2)) for r in range(number) for q in range(r)]
    return each / members + (1 - 1 / members) * torch.stack(pairs).mean(0)
