"""Powers and products of a few numbers, and their slopes: what regressions of data on θ are made of (`fmcpe.forward`)."""

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
        self._numbers, self._steps = numbers, []
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

    def slopes(self) -> Tensor:
        """Matrices that make slopes out of the constant and the powers: (p, 1 + F, F).

        Of polynomials with coefficients C, (F, q), the slopes along number i at u are [1, powers(u)] @ slopes[i] @ C.
        """
        place = {(): 0} | {term: 1 + i for i, term in enumerate(self.terms)}
        out = torch.zeros(self._numbers, 1 + len(self.terms), len(self.terms))
        for column, term in enumerate(self.terms):
            for i in set(term):
                rest = list(term)
                rest.remove(i)
                out[i, place[tuple(rest)], column] = term.count(i)
        return out
