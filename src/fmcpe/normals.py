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

    def part_way(self, z: Tensor, scale: Tensor) -> Normals:
        """Where a draw goes that is at z and takes a step of this scale, (B,): the distribution of draws stays what it is."""
        kept = (1 - scale.square()).sqrt()[:, None]
        return Normals(self.centre + kept * (z - self.centre), self.root / scale[:, None, None])

    def sample(self) -> Tensor:
        standard = torch.randn_like(self.centre)[:, :, None]
        return self.centre + torch.linalg.solve_triangular(self.root.mT, standard, upper=True)[:, :, 0]

    def nearest(self, z: Tensor) -> Tensor:
        """The points nearest to z that are within two standard deviations of the centre along each axis, (B, p)."""
        precision, axes = torch.linalg.eigh((self.root @ self.root.mT).double())
        deviation = precision.clamp_min(1e-12).rsqrt()
        along = (axes.mT @ (z - self.centre).double()[:, :, None])[:, :, 0]
        along = torch.minimum(torch.maximum(along, -_TYPICAL * deviation), _TYPICAL * deviation)
        return self.centre + (axes @ along[:, :, None])[:, :, 0].to(z)

    def log_prob(self, z: Tensor) -> Tensor:
        """Up to a constant, (B,)."""
        standard = (self.root.mT @ (z - self.centre)[:, :, None])[:, :, 0]
        return self.root.diagonal(dim1=1, dim2=2).log().sum(-1) - 0.5 * standard.square().sum(-1)
