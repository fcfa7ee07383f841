"""A well-specified simulator that is still wrong about θ.

    θ   ~ N(θ₀, σ₀²)
    x_i ~ N(θ + λ, σ²),   y_i ~ N(θ, σ²),   i = 1..n

At θ = θ* − λ the simulator reproduces y exactly, so the data alone cannot reveal the error, and E[θ|x=y] → θ* − λ as n
grows. Pairs (θ, y) do reveal it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fmcpe.tasks.base import Side, Task
from fmcpe.tasks.gaussian import GaussianReference, condition
from fmcpe.tasks.options import finite, positive


class Offset(Task):
    """The one-parameter offset task.

    With the defaults the simulator's posterior is 3.2 of its standard deviations from the true one.

    Args:
        lam: The simulator's offset λ; with 0 the simulator is correct.
        sigma: Noise σ of one measurement.
        prior_loc: Prior mean θ₀.
        prior_std: Prior standard deviation σ₀.
        num_measurements: Number of measurements n per observation.
    """

    name = "offset"
    theta_names = ("θ",)

    def __init__(
        self,
        lam: float = 1.0,
        sigma: float = 0.3,
        prior_loc: float = 0.0,
        prior_std: float = 1.0,
        num_measurements: int = 1,
    ):
        finite(lam=lam, prior_loc=prior_loc)
        positive(sigma=sigma, prior_std=prior_std, num_measurements=num_measurements)
        self.lam, self.sigma = lam, sigma
        self.x_shape = (num_measurements,)
        self._loc = torch.tensor([prior_loc], dtype=torch.float64)
        self._cov = torch.tensor([[prior_std**2]], dtype=torch.float64)
        self.prior = MultivariateNormal(self._loc.float(), self._cov.float())

    def _simulate(self, theta: Tensor) -> Tensor:
        return theta + self.lam + self.sigma * torch.randn(len(theta), *self.x_shape)

    def _observe(self, theta: Tensor) -> Tensor:
        return theta + self.sigma * torch.randn(len(theta), *self.x_shape)

    def _reference(self, y: Tensor, side: Side) -> GaussianReference:
        n = len(y)
        shift = self.lam if side == "simulator" else 0.0
        B = torch.ones(n, 1, dtype=torch.float64)
        R = self.sigma**2 * torch.eye(n, dtype=torch.float64)
        return condition(self._loc, self._cov, B, shift * B[:, 0], R, y.double())
