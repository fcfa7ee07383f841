"""Linear response with Gaussian noise: x = Aθ + b + σε, θ ~ N(0, I)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fmcpe.tasks.zoo.family import Constants, Family


class Linear(Family):
    """One to eight parameters, fewer than 40 data dimensions."""

    name = "linear"
    physics = "a quadratic response"

    def __init__(self, draw: Constants) -> None:
        p = draw.integer(1, 8)
        d = draw.integer(p + 2, 39)  # with 40 or more dimensions, data count as a series
        self.theta_names, self.shape = tuple(f"θ{i + 1}" for i in range(p)), (d,)
        self.prior = MultivariateNormal(torch.zeros(p), torch.eye(p))
        self.matrix, self.offset = draw.normal(d, p), draw.normal(d)
        self.curvature = draw.normal(d, p) / p**0.5
        self.noise = draw.uniform(0.5, 2.0)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        return theta @ self.matrix.T + self.offset + extra * (theta @ self.curvature.T).square()
