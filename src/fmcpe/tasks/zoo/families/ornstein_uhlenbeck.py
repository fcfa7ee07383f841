"""A path of an Ornstein-Uhlenbeck process, measured with noise."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, log_normal


class OrnsteinUhlenbeck(Family):
    """Rate, stationary standard deviation and mean from one path. Missing physics: a slow periodic drive."""

    name = "ornstein-uhlenbeck"
    physics = "a slow periodic drive"
    is_random = True
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(60, 100)
        self.theta_names, self.shape = ("rate", "deviation", "level"), (length,)
        self.prior = log_normal([0.5, 1.0, 2.0], [0.6, 0.4, 0.4])
        self.step, self.noise = draw.uniform(0.3, 0.6), draw.uniform(0.1, 0.3)
        self.tide = (2 * torch.pi * draw.uniform(1.5, 3.0) * torch.linspace(0, 1, length)).sin()

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        rate, deviation, level = theta.T
        kept = (-rate * self.step).exp()
        kick = deviation * (1 - kept**2).sqrt()
        shocks = torch.randn(self.shape[0], len(theta))
        rows = [deviation * shocks[0]]
        for shock in shocks[1:]:
            rows.append(kept * rows[-1] + kick * shock)
        return level[:, None] + torch.stack(rows, dim=1) + 3 * extra * self.tide
