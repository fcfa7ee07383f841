"""Physical and standardised spaces, and the maps between them.

Users, simulators and files see physical θ and data. Networks see z-scored data and z = (g(θ) - m) / s, where g removes
the prior's bounds (`sbi.utils.mcmc_transform`) and m, s are statistics of the prior's draws.
"""

from __future__ import annotations

from typing import Any

import torch
from sbi.utils.sbiutils import mcmc_transform, within_support
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import seeded


class Standardiser(nn.Module):
    """Elementwise z-scoring with the statistics of `data`, (N, *shape); constants are only centred."""

    mean: Tensor
    std: Tensor

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        std = data.std(dim=0) if data.shape[0] > 1 else torch.ones_like(data[0])
        # a smaller standard deviation is rounding error
        constant = std <= 1e-6 * data.abs().amax(dim=0).clamp_min(1e-30)
        self.register_buffer("mean", data.mean(dim=0))
        self.register_buffer("std", torch.where(constant, torch.ones_like(std), std))

    def forward(self, data: Tensor) -> Tensor:
        return (data - self.mean) / self.std

    def inverse(self, z: Tensor) -> Tensor:
        return z * self.std + self.mean


class FlatStandardiser(Standardiser):
    """The same, with flattened output: (N, *shape) -> (N, d)."""

    def forward(self, data: Tensor) -> Tensor:
        return super().forward(data).flatten(1)


class ParameterSpace(nn.Module):
    """Physical θ inside the prior's support <-> unconstrained, standardised z.

    Args:
        prior: The prior of the simulations.
        theta: Draws of the prior for the statistics, (N, p).
        limit: Bound on |z| of bounded parameters in `to_z_safely`.
    """

    limit: Tensor

    def __init__(self, prior: Distribution, theta: Tensor, limit: float = 6.0) -> None:
        super().__init__()
        self.prior = prior
        self.transform = unbounded_map(prior, theta.device)
        self.register_buffer("limit", torch.where(bounded(prior, theta), limit, torch.inf), persistent=False)
        self.standardiser = Standardiser(self.transform(theta))

    @classmethod
    def of(cls, prior: Distribution) -> ParameterSpace:
        """The space standardised by fixed draws of the prior, so that scores of all methods share one space."""
        with seeded(0):
            return cls(prior, prior.sample(torch.Size((5000,))).to(torch.float32))

    @property
    def dim(self) -> int:
        return self.standardiser.mean.shape[0]

    def to_z(self, theta: Tensor) -> Tensor:
        """The exact map; infinite on the bounds of the prior."""
        return self.standardiser(self.transform(theta))

    def to_z_safely(self, theta: Tensor) -> Tensor:
        """`to_z`, clamped to the limit for bounded parameters: a measured θ may lie on a bound, where z is infinite.

        Under a uniform prior, fewer than one draw in 25 000 lies beyond the limit.
        """
        z = self.to_z(theta)
        return torch.maximum(torch.minimum(z, self.limit), -self.limit)

    def to_theta(self, z: Tensor) -> Tensor:
        """The inverse of `to_z`, always inside the support."""
        return self.transform.inv(self.standardiser.inverse(z))

    def log_abs_det(self, theta: Tensor, z: Tensor | None = None) -> Tensor:
        """Log |det dz/dθ| at physical θ, (B,). Pass z if it is known, to save time."""
        unconstrained = self.transform(theta) if z is None else self.standardiser.inverse(z)
        log_det = self.transform.log_abs_det_jacobian(theta, unconstrained)
        return log_det - self.standardiser.std.log().sum()

    def contains(self, theta: Tensor) -> Tensor:
        """Whether each row lies inside the prior's support, (B,)."""
        return within_support(self.prior, theta)


def unbounded_map(prior: Distribution, device: torch.device | str = "cpu") -> Any:
    """Sbi's invertible map of the prior's support to R^p; refuses priors that have none, or of discrete parameters."""
    try:
        support = prior.support
    except (AttributeError, NotImplementedError):  # the map is affine
        support = None
    found = "discrete ones" if getattr(support, "is_discrete", False) else ""
    try:
        with seeded(0):  # sbi tests the map on a draw of the prior
            transform = None if found else mcmc_transform(prior, device=str(device))
    except (AssertionError, NotImplementedError) as error:
        found = f"{type(prior).__name__} ({' '.join(str(error).split())})"
    if found:
        raise ValueError(
            f"Expected a prior of p continuous parameters whose support has an invertible map to R^p, got {found}. Use e.g. "
            "BoxUniform or MultivariateNormal; for a mixture over R^p, a subclass of MixtureSameFamily with support = "
            "constraints.independent(constraints.real, 1), of torch.distributions."
        )
    return transform


def bounded(prior: Distribution, theta: Tensor) -> Tensor:
    """Whether each parameter is bounded on at least one side, (p,), by draws of the prior (N, p)."""
    # replace one parameter at a time by a value far above or below all draws
    reach = torch.diag(1e4 * (1 + theta.abs().amax(dim=0)))
    others = theta[0] * (1 - torch.eye(theta.shape[1], device=theta.device))
    return ~(within_support(prior, others + reach) & within_support(prior, others - reach))
