"""Two point sources in a 32 by 32 image."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family

SIZE = 32


class Sources(Family):
    """Position and flux of two exchangeable sources: two modes. Missing physics: a halo around every source."""

    name = "sources"
    physics = "a halo around every source"

    def __init__(self, draw: Constants) -> None:
        self.theta_names, self.shape = ("x₁", "y₁", "f₁", "x₂", "y₂", "f₂"), (1, SIZE, SIZE)
        low, high = [4.0, 4.0, 2.0] * 2, [28.0, 28.0, 8.0] * 2
        self.prior = BoxUniform(torch.tensor(low), torch.tensor(high))
        self.width, self.noise = draw.uniform(1.2, 2.0), draw.uniform(0.3, 0.8)
        self.places = torch.arange(SIZE) + 0.5

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        image = torch.zeros(len(theta), SIZE, SIZE)
        for x, y, flux in (theta[:, :3].split(1, 1), theta[:, 3:].split(1, 1)):
            image += flux[:, :, None] * self._spot(x, y, self.width)
            image += (0.3 * extra * flux)[:, :, None] * self._spot(x, y, 4 * self.width)
        return image[:, None]

    def _spot(self, x: Tensor, y: Tensor, width: float) -> Tensor:
        across, down = (torch.exp(-((self.places - at) ** 2) / (2 * width**2)) for at in (x, y))
        return down[:, :, None] * across[:, None, :]
