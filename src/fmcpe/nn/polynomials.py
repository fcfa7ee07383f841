"""Powers and products of a few numbers: the features of regressions of data on θ."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor


def count(numbers: int, degree: int) -> int:
    """How many powers and products of so many numbers there are, without the constant."""
    return math.comb(numbers + degree, degree) - 1


class Powers:
    """All powers and products of p numbers up to a degree, those of the first degree first, without the constant.

    Each is one of the degree below times one of the numbers.

    Args:
        numbers: p.
        degree: The highest.
    """

    def __init__(self, numbers: int, degree: int) -> None:
        self.terms = [term for k in range(1, degree + 1) for term in combinations_with_replacement(range(numbers), k)]
        self._steps = list[tuple[Tensor, Tensor]]()
        below: dict[tuple[int, ...], int] = {(i,): i for i in range(numbers)}
        for k in range(2, degree + 1):
            level = [term for term in self.terms if len(term) == k]
            self._steps.append(
                (torch.tensor([below[term[:-1]] for term in level]), torch.tensor([term[-1] for term in level]))
            )
            below = {term: i for i, term in enumerate(level)}

    def __call__(self, u: Tensor) -> Tensor:
        """(B, p) -> (B, F)."""
        if not self._steps:
            return u
        rows = u.T.contiguous()  # whole rows are picked faster than columns
        levels = [rows]
        for parent, factor in self._steps:
            levels.append(levels[-1][parent] * rows[factor])
        return torch.cat(levels).T
