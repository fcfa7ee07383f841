r"""No correction: the base posterior evaluated at y, as if y were simulated, \( \hat p(\theta | x = y) \)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fmcpe.candidates.base import Candidate, Transported
from fmcpe.problem import Problem


@dataclass(frozen=True)
class Uncorrected(Candidate):
    """The base posterior at y."""

    name = "uncorrected"
    uses_pairs = False
    preferred = True

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[Transported]:
        return [Transported(problem.summarised, problem.space) for _ in subsets]
