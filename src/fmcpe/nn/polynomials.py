"""Polynomial features."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor


def count(numbers: int, degree: int) -> int:
    """Number of monomials of degree 1 to `degree` in `numbers` variables."""
    return math.comb(numbers + degree, degree) - 1


class Powers:
    """All monomials of degree 1 to `degree` in p variables, by increasing degree: (B, p) -> (B, F).

    Each is computed as a monomial of the next lower degree times a variable.
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
        if not self._steps:
            return u
        rows = u.T.contiguous()  # indexing rows is faster than indexing columns
        levels = [rows]
        for parent, factor in self._steps:
            levels.append(levels[-1][parent] * rows[factor])
        return torch.cat(levels).T
