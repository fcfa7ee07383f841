r"""The simulator's mean as a polynomial of the parameters, and its noise: the prior of the regression of real data.

s(x) = μ + Wᵀ φ(θ) + ε,   (θ, x) simulations from the prior
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fmcpe.candidates.base import clipped
from fmcpe.nn.conjugate import Fit, Prior, fit_conjugate
from fmcpe.nn.directions import Directions
from fmcpe.problem import Problem
from fmcpe.spaces import ParameterSpace, Standardiser


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


class Features(nn.Module):
    """Polynomials of physical θ, or of z, standardised by `pool`, draws of the prior in z, (L, p)."""

    space: ParameterSpace

    def __init__(self, space: ParameterSpace, pool: Tensor, degree: int, physical: bool) -> None:
        super().__init__()
        object.__setattr__(self, "space", space)  # no submodule, as in `Posterior`
        self.degree, self.physical, self.pool = degree, physical, pool
        self.powers = Powers(pool.shape[1], degree)
        self.inner = Standardiser(space.to_theta(pool) if physical else pool)
        self.outer = Standardiser(self._polynomials(pool))
        self.order = torch.tensor([len(term) for term in self.powers.terms])

    def _polynomials(self, z: Tensor) -> Tensor:
        u = self.inner(self.space.to_theta(z) if self.physical else z)
        return self.powers(clipped(u))

    def forward(self, z: Tensor) -> Tensor:
        """(B, p) -> (B, F)."""
        return self.outer(self._polynomials(z))

    def at_least(self, degree: int) -> Features:
        """The same features, and those up to `degree`."""
        return self if degree <= self.degree else Features(self.space, self.pool, degree, self.physical)


def _evidence(found: tuple[Fit, Features]) -> float:
    return found[0].evidence


@dataclass(frozen=True)
class Emulator:
    """A regression of simulations on the parameters, for any directions of the data.

    Args:
        features: z -> φ, (F,).
        phi: Centred features of the simulations, (M, F).
        smoother: (ΦᵀΦ + Λ)⁻¹ Φᵀ, (F, M): coefficients of centred data.
        x: The simulations, (M, ...).
    """

    features: Features
    phi: Tensor
    smoother: Tensor
    x: Tensor

    @classmethod
    def of(cls, problem: Problem, directions: int, most: int = 200, highest: int = 8) -> Emulator:
        """From the bank of simulations; coordinates, degree and precisions are those of highest evidence.

        Args:
            problem: Where the bank is; nothing else of it is used.
            directions: Leading directions of the simulations that the evidence is of.
            most: Largest number of features.
            highest: Largest degree: monomials of higher ones are alike to within rounding.
        """
        assert problem.bank_theta is not None and problem.bank_x is not None
        z = problem.space.to_z_safely(problem.bank_theta)
        seen = Directions.of(problem.bank_x, directions)(problem.bank_x)

        def fitted(degree: int, physical: bool) -> tuple[Fit, Features]:
            kind = Features(problem.space, problem.pool, degree, physical)
            return fit_conjugate(kind(z), seen, kind.order), kind

        best: list[tuple[Fit, Features]] = []
        for physical in (False, True):
            tried = [fitted(1, physical)]
            while (
                len(tried) < highest
                and count(z.shape[1], len(tried) + 1) <= most
                and tried[-1] is max(tried, key=_evidence)
            ):
                tried.append(fitted(len(tried) + 1, physical))
            best.append(max(tried, key=_evidence))
        fit, kind = max(best, key=_evidence)
        phi = kind(z).double()
        phi = phi - phi.mean(0)
        root = fit.regression.gram_root.double()
        return cls(kind, phi, root @ (root.T @ phi.T), problem.bank_x)

    def prior(self, directions: Directions) -> Prior:
        """The simulator's mean and noise in these directions."""
        seen = directions(self.x).double()
        seen = seen - seen.mean(0)
        mean = self.smoother @ seen
        left = seen - self.phi @ mean
        noise = left.T @ left / len(left)
        floor = 1e-3 * noise.diagonal().mean() + 1e-12  # of directions without noise
        return Prior(mean, torch.linalg.cholesky(noise + floor * torch.eye(len(noise)).to(noise)).T, (-2, 3))
