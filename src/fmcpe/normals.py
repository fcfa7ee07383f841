"""Normal distributions, one for each row: what Bayes' rule (`fmcpe.inversion`) proposes its draws from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_TYPICAL = 2.0
"""How many standard deviations from the centre a draw may lie."""


class Normals(NamedTuple):
    """A normal distribution for each row."""

    centre: Tensor
    """(B, p)."""
    root: Tensor
    """Lower root of the precision, (B, p, p)."""

    def held(self, z: Tensor, hold: float) -> Normals:
        """Where a draw goes that is at z and held there: all the way where the normal is narrow, a short one where it is wide.

        As if z were first blurred by 1 / `hold`, and a draw then made that knows of the blurred one: the distribution of draws
        stays what it is. On a narrow and bent ridge, steps so follow it.
        """
        if hold == 0:
            return self
        precision = (self.root @ self.root.mT).double()
        one = torch.eye(precision.shape[1]).to(precision)
        firmer, towards = precision + hold * one, (self.centre - z).double()[:, :, None]
        step = torch.cholesky_solve(precision @ towards, torch.linalg.cholesky(firmer))[:, :, 0]
        both = firmer @ torch.cholesky_solve(firmer, torch.linalg.cholesky(precision + 2 * hold * one))
        return Normals(z + step.to(z), torch.linalg.cholesky((both + both.mT) / 2).to(z))

    def narrowed(self, hold: float) -> Normals:
        """The same centres, and no direction wider than 1 / sqrt(`hold`)."""
        precision = (self.root @ self.root.mT).double()
        return Normals(
            self.centre,
            torch.linalg.cholesky(precision + hold * torch.eye(precision.shape[1]).to(precision)).to(self.root),
        )

    def where(self, these: Tensor, others: Normals) -> Normals:
        """These in rows that are marked, (B,), and the others' in the rest."""
        centre = torch.where(these[:, None], self.centre, others.centre)
        return Normals(centre, torch.where(these[:, None, None], self.root, others.root))

    def sample(self) -> Tensor:
        return self.away(torch.randn_like(self.centre))

    def away(self, steps: Tensor) -> Tensor:
        """Points so many standard deviations (..., B, p) away from the centres, (..., B, p)."""
        return self.centre + torch.linalg.solve_triangular(self.root.mT, steps[..., None], upper=True)[..., 0]

    def nearest(self, z: Tensor) -> Tensor:
        """The points nearest to z that are within two standard deviations of the centre along each axis, (B, p)."""
        precision, axes = torch.linalg.eigh((self.root @ self.root.mT).double())
        deviation = precision.clamp_min(1e-12).rsqrt()
        along = (axes.mT @ (z - self.centre).double()[:, :, None])[:, :, 0]
        along = torch.minimum(torch.maximum(along, -_TYPICAL * deviation), _TYPICAL * deviation)
        return self.centre + (axes @ along[:, :, None])[:, :, 0].to(z)

    def log_prob(self, z: Tensor) -> Tensor:
        """Up to a constant, of z (..., B, p): (..., B)."""
        standard = (self.root.mT @ (z - self.centre)[..., None])[..., 0]
        return self._log_scale() - 0.5 * standard.square().sum(-1)

    def log_prob_of_all(self, z: Tensor) -> Tensor:
        """The same of each of z (..., L, p) by each of the normals (..., B, p): (..., L, B), as one product of matrices."""
        flat = self.root.transpose(-3, -2).flatten(-2)
        offset = (self.root.mT @ self.centre[..., None])[..., 0]
        standard = (z @ flat).unflatten(-1, self.centre.shape[-2:]) - offset[..., None, :, :]
        return self._log_scale()[..., None, :] - 0.5 * standard.square().sum(-1)

    def _log_scale(self) -> Tensor:
        return self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
