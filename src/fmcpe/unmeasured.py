r"""Parameters that were not measured over their range return to the prior; the others follow.

For a set S of parameters, with z ~ posterior, s ~ prior and A the coefficients of the base posterior's linear regression of z
on z_S (the identity on S, zero outside its columns),

    z' = (I - A) z + A s,      E z' = m + A (m_π - m),      Cov z' = (I - A) C (I - A)ᵀ + A C_π Aᵀ.

So a parameter that is confounded with one in S becomes uncertain, too, and the others keep what the pairs say about them. The
coefficients of a parameter outside S are reduced where it would become wider than the prior. z' is taken as normal, so that it
has a density.

Parameter i belongs to S with probability λ_i. Sets are nested: the k parameters of the largest λ have probability
λ_(k) - λ_(k+1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

JITTER = 1e-6
"""Numerical guard: added to the diagonal of covariances, in prior standard deviations squared."""


@dataclass(frozen=True)
class Moments:
    """Means (B, p) or (p,) and covariances (B, p, p) or (p, p)."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, draws: Tensor) -> Moments:
        """Of draws (..., S, p), in double precision."""
        draws = draws.double()
        mean = draws.mean(-2)
        centred = draws - mean[..., None, :]
        return cls(mean, centred.mT @ centred / (draws.shape[-2] - 1))

    def to(self, device: torch.device) -> Moments:
        """The same on a device."""
        return Moments(self.mean.to(device), self.covariance.to(device))


def largest_sets(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Sets of the k parameters with the largest λ, k = 0 to p: their probabilities (B, p + 1) and members (B, p + 1, p)."""
    rank = shares.argsort(dim=1, descending=True).argsort(dim=1)
    ordered = torch.nn.functional.pad(shares.sort(dim=1, descending=True).values, (1, 1))
    ordered[:, 0] = 1.0
    sizes = torch.arange(shares.shape[1] + 1, device=shares.device)
    return ordered[:, :-1] - ordered[:, 1:], rank[:, None] < sizes[:, None]


def with_prior(inner: Moments, base: Moments, prior: Moments, members: Tensor) -> MultivariateNormal:
    """The normal distribution of z' for sets S, (B, p); batch shape (B,).

    Args:
        inner: Moments of the posterior, (B, p).
        base: Moments of the base posterior, (B, p).
        prior: Moments of the prior, (p,).
        members: Whether a parameter is in S, (B, p).
    """
    chosen = members.to(base.covariance)
    eye = torch.eye(members.shape[1], dtype=chosen.dtype, device=chosen.device)
    among = chosen[:, :, None] * (base.covariance + JITTER * eye) * chosen[:, None] + (1 - chosen)[:, :, None] * eye
    a = torch.linalg.solve(among, chosen[:, :, None] * base.covariance).mT  # (B, p, p)
    a = torch.where(members[:, :, None], eye, a)
    spread = torch.einsum("bij,jk,bik->bi", a, prior.covariance, a)
    room = prior.covariance.diagonal() - inner.covariance.diagonal(dim1=1, dim2=2)
    reduced = (room.clamp_min(0) / spread.clamp_min(JITTER)).sqrt().clamp_max(1)
    a = a * torch.where(members, 1.0, reduced)[:, :, None]
    rest = eye - a
    covariance = rest @ inner.covariance @ rest.mT + a @ prior.covariance @ a.mT
    covariance = covariance + JITTER * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1)[:, None, None] * eye
    mean = inner.mean + (a @ (prior.mean - inner.mean)[:, :, None])[..., 0]
    return MultivariateNormal(mean, scale_tril=torch.linalg.cholesky(covariance), validate_args=False)
