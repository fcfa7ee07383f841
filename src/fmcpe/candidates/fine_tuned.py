r"""The base estimator fine-tuned on the pairs, embedding included where there is one, with replayed simulations.

    minimise  E_pairs[-log q(θ_j | y_j)] + (replay / batch_size) E_bank[-log q(θ | x)]

The flow q starts as p̂; simulations x are domain-randomised.

Each member continues training from the base posterior's weights on its own rows, with early stopping on a held-out part of
them. Replayed simulations prevent forgetting; where the base posterior was trained with domain randomisation, they are
randomised too, and y is assigned a distortion level. Members are trained as one batch of networks; nothing that they share,
random numbers included, depends on the rows of a member.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fmcpe._options import LARGEST, SHARE, Limits
from fmcpe.base_posteriors.adapters import DensityBase
from fmcpe.base_posteriors.domain_randomisation import distort, draw_levels
from fmcpe.candidates.base import Candidate, Shared, Transported, split_each
from fmcpe.nn.embeddings import level_aware_part
from fmcpe.nn.estimators import stack, unstacked
from fmcpe.nn.training import descend
from fmcpe.problem import Problem
from fmcpe.spaces import ParameterSpace


class FineTunedPosterior(Transported):
    """The base posterior, on raw data, with the fine-tuned density estimator."""

    def __init__(self, base: DensityBase, space: ParameterSpace, estimator: nn.Module) -> None:
        super().__init__(base.with_estimator(estimator).summarised(), space)
        self.estimator = estimator

    def to_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> FineTunedPosterior:
        assert isinstance(shared.base, DensityBase)
        return cls(shared.base, shared.space, copy.deepcopy(shared.base.estimator))


@dataclass(frozen=True)
class FineTuned(Candidate):
    """Fine-tuning with replay.

    Args:
        steps: Gradient steps, at least.
        epochs: Passes over the pairs without the validation share, at least; 0 leaves the number to `steps`.
        learning_rate: Peak of one cycle.
        batch_size: Pairs per step.
        replay: Simulations per step; 0 for none.
        validation: Share of a member's rows that stop it early.
        level: Distortion level assigned to real data, from 0 to 1, where the base posterior is conditioned on it.
    """

    steps: int = 200
    epochs: int = 24
    learning_rate: float = 5e-3
    batch_size: int = 32
    replay: int = 16
    validation: float = 0.2
    level: float = 0.8

    name = "fine_tuned"
    effort = 10.0
    limits: ClassVar[Mapping[str, Limits]] = {
        "epochs": (0, LARGEST),
        "replay": (0, LARGEST),
        "validation": SHARE,
        "level": (0.0, 1.0),
    }

    def skipped(self, problem: Problem) -> str | None:
        tunable = isinstance(problem.base, DensityBase)
        return None if tunable else "the base posterior has no density estimator to fine-tune"

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[FineTunedPosterior]:
        assert isinstance(problem.base, DensityBase)
        estimator, rough = problem.base.estimator, level_aware_part(problem.base.estimator) is not None
        theta, y, number = problem.space.to_theta(problem.z), problem.y, len(subsets)
        members = stack(estimator, number, self.level)
        training, validation = split_each(subsets, problem.theta, self.validation)
        size = max(math.ceil(self.validation * len(problem)), *map(len, validation))
        held_out = torch.stack([torch.cat([rows, rows[:1].expand(size - len(rows))]) for rows in validation])
        counts = torch.stack([(torch.arange(size, device=y.device) < len(rows)).float() for rows in validation])
        scale = 1.0 if problem.bank_x is None else float(problem.bank_x.std())
        replayed = 0 if problem.bank_x is None else self.replay

        def batch() -> tuple[Tensor, Tensor, Tensor]:
            rows = torch.stack([index[torch.randint(len(index), (self.batch_size,))] for index in training])
            parts = [(theta[rows], y[rows], torch.full((*rows.shape, 1), self.level, device=y.device))]
            if replayed:
                assert problem.bank_theta is not None and problem.bank_x is not None
                again = torch.randint(len(problem.bank_theta), (number, replayed))
                levels = draw_levels(number * replayed, y.device)
                x = problem.bank_x[again]
                if rough:
                    x = distort(x.flatten(0, 1), levels, scale).unflatten(0, (number, replayed))
                parts.append((problem.bank_theta[again], x, levels.unflatten(0, (number, replayed))))
            return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))  # type: ignore[return-value]

        levels = torch.full((*held_out.shape, 1), self.level, device=y.device)

        @torch.no_grad()
        def validated() -> Tensor:
            losses = members(theta[held_out], y[held_out], levels)
            return (losses.nan_to_num(1e6, 1e6) * counts).sum(1) / counts.sum(1)

        def loss(step: int) -> Tensor:
            return members(*batch()).mean(1)

        steps = max(self.steps, math.ceil(self.epochs * (1 - self.validation) * len(problem) / self.batch_size))
        (best,) = descend([members], loss, steps, self.learning_rate, validate=validated)
        tuned = [unstacked(one, estimator) for one in members.members(best)]
        return [FineTunedPosterior(problem.base, problem.space, one.requires_grad_(False)) for one in tuned]
