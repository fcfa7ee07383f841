"""Polynomial features."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def count(numbers: int, degree: int) -> int:
    """Number of monomials of degree 1 to `degree` in `numbers` variables."""
    return math.comb(numbers + degree, degree) - 1


class Powers:
    """All monomials of degree 1 to `degree` in p variables, by increasing degree: (B, p) -> (B, F)."""

    def __init__(self, numbers: int, degree: int) -> None:
        orders = range(1, degree + 1)
        self._levels = [torch.combinations(torch.arange(numbers), k, with_replacement=True) for k in orders]
        self.terms = [tuple(term) for level in self._levels for term in level.tolist()]

    def __call__(self, u: Tensor) -> Tensor:
        rows = u.T.contiguous()  # indexing rows is faster than indexing columns
        return torch.cat([rows[level].prod(1) for level in self._levels]).T
