r"""Raw data shifted into the simulator's domain: \( y' = y + g(h(y)) \), then \( \hat p(\theta | y') \).

g is a ridge regression of \( \bar x(\theta_j) - y_j \) on the base posterior's summary of y_j; \( \bar x(\theta) \) is the
mean of simulations at θ. A smooth difference of simulator and reality (a lag, a drift, a gain) is determined by few pairs. The
shift is applied to the raw data, noise included; it is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Candidate, Shared, Transported, base_of, clipped
from fmcpe.nn.ridge import Ridge, fit_ridge
from fmcpe.problem import Problem
from fmcpe.spaces import FlatStandardiser, ParameterSpace


class Shifted(Transported):
    """One fitted member: `ridge` gives the shift from summaries of y, standardised by `y_scale`."""

    def __init__(self, base: BasePosterior, space: ParameterSpace, y_scale: FlatStandardiser, ridge: Ridge) -> None:
        super().__init__(base, space)
        self.y_scale, self.ridge = y_scale, ridge

    def source(self, y: Tensor, n: int) -> Tensor:
        features = clipped(self.y_scale(self.base.summarise(y)))
        return super().source(y + self.ridge(features).unflatten(1, y.shape[1:]), n)

    def to_config(self) -> dict[str, Any]:
        return super().to_config() | {"shape": list(self.y_scale.mean.shape), "numbers": self.ridge.bias.numel()}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Shifted:
        y_scale = FlatStandardiser(torch.zeros(2, *config["shape"]))
        size, numbers = y_scale.mean.numel(), config["numbers"]
        ridge = Ridge.empty(centre=size, weight=(size, numbers), bias=numbers)
        return cls(base_of(config, shared), shared.space, y_scale, ridge)


@dataclass(frozen=True)
class ResidualShift(Candidate):
    """A regression of the residual in data space, then the base posterior."""

    name = "residual_shift"

    def skipped(self, problem: Problem) -> str | None:
        return "it needs a simulator, or simulations paired with the pairs" if problem.x_mean is None else None

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[Shifted]:
        return [self._fit(problem, rows) for rows in subsets]

    def _fit(self, problem: Problem, rows: Tensor) -> Shifted:
        assert problem.x_mean is not None
        y_scale = FlatStandardiser(problem.seen[rows])
        features = clipped(y_scale(problem.seen[rows]))
        wanted = (problem.x_mean[rows] - problem.y[rows]).flatten(1)
        mean, directions = wanted.mean(0), _leading(wanted)
        ridge = fit_ridge(features, (wanted - mean) @ directions)
        return Shifted(problem.summarised, problem.space, y_scale, ridge.mapped(directions.T, mean))


def _leading(rows: Tensor, most: int = 64) -> Tensor:
    """Orthonormal directions of largest variance of rows (n, d), (d, r): all for short vectors, `most` otherwise."""
    number, size = rows.shape
    if size <= most:
        return torch.eye(size, device=rows.device)
    return torch.svd_lowrank(rows - rows.mean(0), q=min(most, number, size))[2]
