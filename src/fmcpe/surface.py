"""The posterior of a regression of data on θ as a surface over z: its height, and the normal that it looks like from a place.

`fmcpe.inversion` climbs it and draws from under it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe.forward import Forward
from fmcpe.normals import Normals
from fmcpe.spaces import ParameterSpace

_DIFFERENCE = 1e-3
_TRIED = 64


class PriorPool:
    """Draws of the prior, and what is known of it in z.

    Args:
        prior: The prior.
        theta: Draws of it, physical, (M, p).
    """

    @torch.no_grad()
    def __init__(self, prior: Distribution, theta: Tensor) -> None:
        self.prior, self.theta = prior, theta
        self.space = ParameterSpace(prior, theta).to(theta.device)
        self.z = self.space.to_z_safely(theta)
        covariance = torch.cov(self.z.T.double()).reshape(self.space.dim, self.space.dim)
        self.precision = torch.linalg.inv(covariance + 1e-6 * torch.eye(len(covariance)).to(covariance))
        some = self.z[:_TRIED]
        change = self.theta_by_z(some, self.space.to_theta(some))
        self.one_by_one = bool((change == torch.diag_embed(change.diagonal(dim1=1, dim2=2))).all())
        """Whether each parameter depends on its own z alone."""

    def log_density(self, z: Tensor, theta: Tensor) -> Tensor:
        """Of the prior, in z, at rows (B, p) of z and the θ that belong to them: (B,)."""
        return self.prior.log_prob(theta).to(theta) - self.space.log_abs_det(theta, z)

    def theta_by_z(self, z: Tensor, theta: Tensor) -> Tensor:
        """How θ changes with z: (B, p of z, p of θ)."""
        around = z + _DIFFERENCE * torch.eye(z.shape[1], device=z.device)[:, None]
        near = self.space.to_theta(around.flatten(0, 1)).unflatten(0, (z.shape[1], len(z)))
        return ((near - theta) / _DIFFERENCE).transpose(0, 1)

    def slopes_along_z(self, z: Tensor, theta: Tensor, slope: Tensor) -> Tensor:
        """Slopes with θ, (B, p, q), as slopes with z."""
        if self.one_by_one:
            return ((self.space.to_theta(z + _DIFFERENCE) - theta) / _DIFFERENCE)[:, :, None] * slope
        return self.theta_by_z(z, theta) @ slope


class Surface:
    """Log of likelihood times prior, as a density in z.

    Args:
        forward: The likelihood.
        pool: The prior, and draws of it.
    """

    @torch.no_grad()
    def __init__(self, forward: Forward, pool: PriorPool) -> None:
        self.forward, self.pool, self.space = forward, pool, pool.space
        self._expect = forward.expecting()
        self.expected = self._expect(pool.theta)
        """Of all of the pool."""

    def expect(self, z: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The log density of the prior at rows of z, (B,), and what is expected there, as `Forward.expect`."""
        theta = self.space.to_theta(z)
        return self.pool.log_density(z, theta), self._expect(theta)

    def values(self, z: Tensor, seen: Tensor) -> Tensor:
        """How high it is at each row of z, (B, p), for its own row of what is seen, (B, q): (B,)."""
        theta = self.space.to_theta(z)
        return self._value(z, theta, self._expect(theta), seen)

    def normals(self, z: Tensor, seen: Tensor, normal_noise: bool = False) -> Normals:
        """The posterior if what is expected changed with z as it does at each row, and z were normal beforehand.

        Far from all data Student's t is flat; with `normal_noise`, the noise of the regression is taken to be normal.
        """
        return self._look(z, seen, normal_noise)[1]

    def values_and_normals(self, z: Tensor, seen: Tensor) -> tuple[Tensor, Normals]:
        """`values` and `normals` of the same rows, in one look."""
        (theta, expected), normals = self._look(z, seen, False)
        return self._value(z, theta, expected, seen), normals

    def _look(
        self, z: Tensor, seen: Tensor, normal_noise: bool
    ) -> tuple[tuple[Tensor, tuple[Tensor, Tensor]], Normals]:
        theta = self.space.to_theta(z)
        mean, factor, slope = self._expect.with_slopes(theta)
        slope = self.pool.slopes_along_z(z, theta, slope).nan_to_num(0.0, 0.0, 0.0)
        off = seen - mean
        weight = 1 / factor if normal_noise else self.forward.weight(off.square().sum(-1), factor)
        weighted = weight[:, None, None] * slope
        root = torch.linalg.cholesky((weighted @ slope.mT).double() + self.pool.precision).to(z)
        towards = (weighted @ off[:, :, None])[:, :, 0] - z @ self.pool.precision.to(z)
        return (theta, (mean, factor)), Normals(z + torch.cholesky_solve(towards[:, :, None], root)[:, :, 0], root)

    def _value(self, z: Tensor, theta: Tensor, expected: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        value = self.forward.row_by_row(expected, seen) + self.pool.log_density(z, theta)
        # far out, a bounded θ is rounded to its bound, where there is no density in z
        return value.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
