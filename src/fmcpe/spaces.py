r"""The two spaces of the library, and the maps between them.

Users, simulators and files see *physical* \( \theta \) and data. Networks see \( z = (g(\theta) - m) / s \), where
\( g \) removes the prior's bounds (`sbi.utils.mcmc_transform`) and \( m, s \) are statistics of the simulations,
and data z-scored per number. `ParameterSpace` owns \( \theta \leftrightarrow z \) and its Jacobian.
"""

from __future__ import annotations

import torch
from sbi.utils.sbiutils import mcmc_transform, within_support
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import seeded


class Standardiser(nn.Module):
    """z-scoring per number with fixed statistics; numbers that never vary are only centred.

    Args:
        data: Rows whose statistics are taken, (N, *shape).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        std = data.std(dim=0) if data.shape[0] > 1 else torch.ones_like(data[0])
        # below this a spread is rounding error, and dividing by it would turn a constant into noise
        constant = std <= 1e-6 * data.abs().amax(dim=0).clamp_min(1e-30)
        self.register_buffer("mean", data.mean(dim=0))
        self.register_buffer("std", torch.where(constant, torch.ones_like(std), std))

    def forward(self, data: Tensor) -> Tensor:
        return (data - self.mean) / self.std

    def inverse(self, z: Tensor) -> Tensor:
        return z * self.std + self.mean


class FlatStandardiser(Standardiser):
    """The same, with each row flattened: features of data that have no embedding, (N, *shape) -> (N, d)."""

    def forward(self, data: Tensor) -> Tensor:
        return super().forward(data).flatten(1)


class ParameterSpace(nn.Module):
    r"""Physical \( \theta \) inside the prior's support <-> unconstrained, standardised z.

    Args:
        prior: The prior of the simulations.
        theta: Draws of it, (N, p), for the statistics.
    """

    LIMIT = 6.0
    limit: Tensor

    def __init__(self, prior: Distribution, theta: Tensor) -> None:
        super().__init__()
        self.prior = prior
        with seeded(0):  # sbi tries the transform on a draw of the prior
            self.transform = mcmc_transform(prior, device=str(theta.device))
        self.register_buffer("limit", _limits(prior, theta, self.LIMIT), persistent=False)
        self.standardiser = Standardiser(self.transform(theta))

    @classmethod
    def of(cls, prior: Distribution) -> ParameterSpace:
        """The space standardised by the prior: always the same draws, so that scores of all methods share one space."""
        with seeded(0):
            return cls(prior, prior.sample(torch.Size((5000,))).to(torch.float32))

    @property
    def dim(self) -> int:
        return self.standardiser.mean.shape[0]

    def to_z(self, theta: Tensor) -> Tensor:
        """The exact map; infinite on the boundary of a bounded prior."""
        return self.standardiser(self.transform(theta))

    def to_z_safely(self, theta: Tensor) -> Tensor:
        """`to_z`, but a θ on (or within rounding of) a bound is moved inside: for data that networks see.

        A measured θ may lie exactly on a bound, where z is infinite. Under a uniform prior fewer than one
        draw in 25 000 lies beyond the limit.
        """
        z = self.to_z(theta)
        return torch.maximum(torch.minimum(z, self.limit), -self.limit)

    def to_theta(self, z: Tensor) -> Tensor:
        """The inverse of `to_z`: always inside the support."""
        return self.transform.inv(self.standardiser.inverse(z))

    def log_abs_det(self, theta: Tensor, z: Tensor | None = None) -> Tensor:
        """Log |dz/dθ| at physical θ, of shape (B,): what a density in z gains when it is stated in θ.

        Where z is known, it saves the work of finding it again.
        """
        unconstrained = self.transform(theta) if z is None else self.standardiser.inverse(z)
        log_det = self.transform.log_abs_det_jacobian(theta, unconstrained)
        return log_det - self.standardiser.std.log().sum()

    def contains(self, theta: Tensor) -> Tensor:
        """Which rows lie inside the prior's support: (B,) booleans."""
        return within_support(self.prior, theta)


def _limits(prior: Distribution, theta: Tensor, limit: float) -> Tensor:
    """`limit` for each parameter whose range is bounded on some side, infinity for the others: (p,)."""
    inside, reach = theta[0], 1e4 * (1 + theta.abs().amax(dim=0))
    bounded = [
        not bool(within_support(prior, torch.stack([_moved(inside, i, reach[i]), _moved(inside, i, -reach[i])])).all())
        for i in range(theta.shape[1])
    ]
    return torch.where(torch.tensor(bounded, device=theta.device), limit, torch.inf)


def _moved(theta: Tensor, index: int, value: Tensor) -> Tensor:
    theta = theta.clone()
    theta[index] = value
    return theta
