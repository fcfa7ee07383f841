"""The profile of a laser beam on a 32 by 32 camera."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family

SIZE = 32


class Beam(Family):
    """Centre, both widths and power of an elliptic beam. Missing physics: a skewed profile."""

    name = "beam"
    physics = "astigmatism that skews the profile"

    def __init__(self, draw: Constants) -> None:
        self.theta_names, self.shape = ("x", "y", "σₓ", "σᵧ", "power"), (1, SIZE, SIZE)
        low, high = [11.0, 11.0, 2.0, 2.0, 2.0], [21.0, 21.0, 6.0, 6.0, 6.0]
        self.prior = BoxUniform(torch.tensor(low), torch.tensor(high))
        self.noise, self.places = draw.uniform(0.3, 0.8), torch.arange(SIZE) + 0.5

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        x, y, across, down, power = theta.split(1, dim=1)
        u, v = (self.places - x) / across, (self.places - y) / down
        skewed = u * torch.exp(-0.3 * extra * torch.tanh(u))
        return (power * torch.exp(-(v**2) / 2))[:, None, :, None] * torch.exp(-(skewed**2) / 2)[:, None, None, :]
