"""The prior, which ignores y; it gets the weight if the pairs carry no information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe.candidates.base import Candidate, Posterior, Shared
from fmcpe.problem import Problem
from fmcpe.spaces import ParameterSpace


class PriorPosterior(Posterior):
    """The target prior, over physical θ, in z."""

    def __init__(self, prior: Distribution, space: ParameterSpace) -> None:
        super().__init__()
        object.__setattr__(self, "space", space)
        self.prior = prior

    def sample(self, y: Tensor, n: int) -> Tensor:
        theta = self.prior.sample(torch.Size((len(y) * n,))).to(y.device, torch.float32)
        return self.space.to_z_safely(theta).unflatten(0, (len(y), n))

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        return log_prior(self.prior, self.space, z)

    def to_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> PriorPosterior:
        return cls(shared.target_prior, shared.space)


def log_prior(prior: Distribution, space: ParameterSpace, z: Tensor) -> Tensor:
    """Log density of a prior over physical θ, as a density in z: (..., p) -> (...)."""
    flat = z.reshape(-1, z.shape[-1])
    theta = space.to_theta(flat)
    return (prior.log_prob(theta).to(z) - space.log_abs_det(theta, flat)).reshape(z.shape[:-1])


@dataclass(frozen=True)
class Prior(Candidate):
    """The target prior."""

    name = "prior"
    uses_pairs = False

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[PriorPosterior]:
        return [PriorPosterior(problem.target_prior, problem.space) for _ in subsets]
