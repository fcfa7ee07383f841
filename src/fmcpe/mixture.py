"""Mixtures of posteriors, and their recalibration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fmcpe._random import seeded
from fmcpe.candidates.base import Posterior, Remembered, Shared
from fmcpe.energy import effective_number, half_distance, of_mean_one
from fmcpe.serialization.registry import from_config, to_config


class Mixture(Posterior):
    """Fitted posteriors with probabilities, (M,)."""

    weights: Tensor
    least: ClassVar[int] = 128
    """Numerical limit: fewest draws of a call for each row; the share of a member is exact to one of them."""

    def __init__(self, members: Sequence[Posterior], weights: Tensor) -> None:
        super().__init__()
        self._members = nn.ModuleList(members)
        self.register_buffer("weights", weights / weights.sum().clamp_min(1e-30))

    @property
    def members(self) -> list[Posterior]:
        """The fitted posteriors."""
        return [cast(Posterior, member) for member in self._members]

    def sample(self, y: Tensor, n: int) -> Tensor:
        """Draws (B, n, p); the number from each member is drawn by systematic resampling, once for all rows.

        Each row has its own order, so that draw i of different rows comes from different members.
        """
        number = max(n, self.least)  # fewer would come from a few members, the same ones in every row
        ladder = self.weights.double().cumsum(0)
        steps = torch.arange(number, device=ladder.device)
        places = (torch.rand((), dtype=ladder.dtype, device=ladder.device) + steps) / number
        counts = torch.searchsorted(ladder, places).clamp_max(len(ladder) - 1).bincount(minlength=len(ladder))
        parts: list[Tensor] = []
        for members, numbers in self._by_kind(counts):
            parts += type(members[0]).sample_together(members, y, numbers)
        order = torch.rand(len(y), number, device=y.device).argsort(1)[:, :n]
        return torch.cat(parts, dim=1).take_along_dim(order[:, :, None], dim=1)

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for members, weights in self._by_kind(self.weights):
            found = type(members[0]).log_prob_together(members, z, y)
            parts += [each + math.log(w) for each, w in zip(found, weights, strict=True)]
        return torch.stack(parts).logsumexp(0)

    def _by_kind(self, shares: Tensor) -> Iterable[tuple[list[Posterior], list[Any]]]:
        """Members of positive share and their shares, grouped by kind."""
        groups: dict[tuple[Any, ...], tuple[list[Posterior], list[Any]]] = {}
        for member, share in zip(self.members, shares.tolist(), strict=True):
            if share > 0:
                members, found = groups.setdefault(member.kind, ([], []))
                members.append(member)
                found.append(share)
        return groups.values()

    def to_config(self) -> dict[str, Any]:
        return {"members": [to_config(member) for member in self.members]}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Mixture:
        members = [from_config(each, shared) for each in config["members"]]
        return cls(members, torch.ones(len(members)))


class Recalibrated(Posterior):
    """A posterior with its draws scaled about their mean, z -> m(y) + s (z - m(y)); s is `scale`, (p,).

    At least `draws` draws estimate m(y).
    """

    scale: Tensor

    def __init__(self, inner: Posterior, scale: Tensor, draws: int = Mixture.least) -> None:
        super().__init__()
        self.inner, self.draws, self._last = inner, draws, Remembered()
        self.register_buffer("scale", scale)

    def sample(self, y: Tensor, n: int) -> Tensor:
        z = self.inner.sample(y, max(n, self.draws))
        mean = z.mean(1, keepdim=True)
        return mean + self.scale * (z[:, :n] - mean)

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        mean = self._last(y, lambda: self._centre(y))
        return self.inner.log_prob(mean + (z - mean) / self.scale, y) - self.scale.log().sum()

    def _centre(self, y: Tensor) -> Tensor:
        """The mean of the posterior, (B, 1, p), from fixed draws."""
        with seeded(0), torch.no_grad():
            return self.inner.sample(y, 4 * self.draws).mean(1, keepdim=True)

    def to_config(self) -> dict[str, Any]:
        return {"inner": to_config(self.inner), "dim": len(self.scale)}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Recalibrated:
        return cls(from_config(config["inner"], shared), torch.ones(config["dim"]))


def recalibration(
    draws: Tensor, truth: Tensor, pairs: float, shrinkage: float, importance: Tensor | None = None
) -> Tensor:
    """Scale of each parameter's draws about their mean that minimises the CRPS, shrunk to one: (p,).

    CRPS(s)/CRPS(1) + (shrinkage / pairs) log² s, on a grid of log s.

    Args:
        draws: Cross-validated draws, (N, S, p).
        truth: True z, (N, p).
        pairs: Number of pairs that count as independent.
        shrinkage: Pseudo-count of s = 1.
        importance: Weight of each pair, (N,), of mean one; equal if None.
    """
    grid = torch.linspace(-1.5, 1.5, 61, device=draws.device)
    mean, half = draws.mean(1, keepdim=True), half_distance(draws)
    weight = 1.0 if importance is None else importance[:, None]

    def crps_of(s: float) -> Tensor:
        return (weight * ((mean + s * (draws - mean) - truth[:, None]).abs().mean(1) - s * half)).mean(0)

    crps = torch.stack([crps_of(float(log_scale.exp())) for log_scale in grid])
    objective = crps / crps[len(grid) // 2].clamp_min(1e-12) + shrinkage / pairs * grid.square()[:, None]
    return grid[objective.argmin(0)].exp()


def recalibrated_without_fold(
    draws: Tensor, truth: Tensor, folds: Tensor, groups: Tensor, shrinkage: float, importance: Tensor | None = None
) -> Tensor:
    """Cross-validated draws (N, S, p), each pair's recalibrated by a scale computed without its fold of the first split.

    Pairs of one group (N,) have the same θ and count once.
    """
    out, split = draws.clone(), folds[0]
    for k in split.unique():
        inside, outside = split == k, split != k
        if bool(outside.any()):
            weight = None if importance is None else of_mean_one(importance[outside])
            pairs = effective_number(groups[outside].unique().numel(), weight)
            scale = recalibration(draws[outside], truth[outside], pairs, shrinkage, weight)
            mean = draws[inside].mean(1, keepdim=True)
            out[inside] = mean + scale * (draws[inside] - mean)
    return out
