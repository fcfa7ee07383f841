"""The wind tunnel with a correct simulator and a misspecified prior.

    H ~ U[0, 45] for pairs,   H ~ (1 − τ) U[0, 45] + τ U[10, 20] for simulations

Simulator and real process are model A2C3 (`wind_tunnel_model`). A perfectly trained base posterior is the posterior under the
wrong prior; at τ = 1 its support is [10, 20].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fmcpe.tasks.base import RealSide, Side
from fmcpe.tasks.quadrature import Quadrature
from fmcpe.tasks.wind_tunnel import WindTunnel
from fmcpe.tasks.wind_tunnel_model import H_MAX


class WindTunnelPrior(WindTunnel):
    """The wind tunnel with a correct simulator and a misspecified prior, (1 − τ) U[0, 45] + τ U[10, 20].

    Args:
        tau: Weight τ of the narrow prior.
    """

    name = "wind-tunnel-prior"
    real_side: RealSide = "process"
    narrow = (10.0, 20.0)

    def __init__(self, tau: float = 1.0):
        from sbi.utils import BoxUniform

        if not 0 <= tau <= 1:
            raise ValueError(f"Expected a number from 0 to 1, got tau={tau}. Pass tau=0.5, for example.")
        super().__init__()
        self.tau = tau
        self._impulses["real"] = self._impulses["simulator"]
        low, high = self.narrow
        self._simulation_prior: Distribution = self.prior
        if tau == 1:
            self._simulation_prior = BoxUniform(torch.tensor([low]), torch.tensor([high]))
        elif tau > 0:
            self._simulation_prior = HatchMixture(tau, self.narrow)

    @property
    def simulation_prior(self) -> Distribution:
        return self._simulation_prior

    def _reference(self, y: Tensor, side: Side) -> Quadrature:
        log_likelihood = self._impulses[side].log_likelihood(y)
        if side == "real" or self.tau == 0:
            return Quadrature(log_likelihood, (0.0, H_MAX))
        if self.tau == 1:
            return Quadrature(log_likelihood, self.narrow)
        low, high = self.narrow
        wide = (1 - self.tau) / H_MAX
        return Quadrature(log_likelihood, (0.0, low, high, H_MAX), (wide, wide + self.tau / (high - low), wide))


class HatchMixture(Distribution):
    """(1 − τ) U[0, 45] + τ U[narrow], over vectors of one number."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.independent(constraints.interval(0.0, H_MAX), 1)

    def __init__(self, tau: float, narrow: tuple[float, float]):
        self.tau, self.narrow = tau, narrow
        super().__init__(event_shape=torch.Size((1,)), validate_args=False)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        shape = (*sample_shape, 1)
        low, high = self.narrow
        is_narrow = torch.rand(shape) < self.tau
        u = torch.rand(shape)
        return torch.where(is_narrow, low + (high - low) * u, H_MAX * u)

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self.narrow
        wide = ((value >= 0) & (value <= H_MAX)) * ((1 - self.tau) / H_MAX)
        narrow = ((value >= low) & (value <= high)) * (self.tau / (high - low))
        return (wide + narrow).log().squeeze(-1)

    @property
    def mean(self) -> Tensor:
        return torch.tensor([(1 - self.tau) * H_MAX / 2 + self.tau * sum(self.narrow) / 2])

    @property
    def variance(self) -> Tensor:
        low, high = self.narrow
        square = (1 - self.tau) * H_MAX**2 / 3 + self.tau * (low**2 + low * high + high**2) / 3
        return square - self.mean**2
