"""The g-and-k distribution, which has quantiles in closed form and no density: sample quantiles as data."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family


class GAndK(Family):
    """Location, scale, skewness and kurtosis from sample quantiles. Missing physics: even heavier tails."""

    name = "g-and-k"
    physics = "heavier tails"
    is_random = True

    def __init__(self, draw: Constants) -> None:
        self.count = draw.integer(100, 300)
        levels = torch.linspace(0.5 / 12, 1 - 0.5 / 12, draw.integer(8, 16))
        self.rows = (levels * (self.count - 1)).round().long()
        self.theta_names, self.shape = ("A", "B", "g", "k"), (len(levels),)
        self.prior = BoxUniform(torch.tensor([0.0, 0.5, 0.0, 0.0]), torch.tensor([5.0, 3.0, 3.0, 0.8]))
        self.noise = 0.0

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        location, scale, g, k = theta.split(1, dim=1)
        z = torch.randn(len(theta), self.count).sort(dim=1).values[:, self.rows]
        skew = 1 + 0.8 * torch.tanh(g * z / 2)  # (1 - e^{-gz}) / (1 + e^{-gz}), without overflow
        quantiles = location + scale * skew * (1 + z**2) ** (k + extra) * z
        return torch.asinh(quantiles)  # compresses tails of up to 10⁴ and keeps their sign
