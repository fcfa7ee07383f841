"""Light curve of an exoplanet's transit."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family


class Transit(Family):
    """Radius, impact parameter, duration and mid-time from a light curve. Missing physics: a variable star.

    A grazing transit of a large planet resembles a central one of a small planet: radius, impact parameter and duration lie on
    a curved ridge.
    """

    name = "transit"
    physics = "a slow variation of the star"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(80, 140)
        self.theta_names, self.shape = ("r", "b", "τ", "t₀"), (length,)
        self.prior = BoxUniform(torch.tensor([0.05, 0.0, 0.15, -0.2]), torch.tensor([0.15, 0.95, 0.4, 0.2]))
        self.times = torch.linspace(-1, 1, length)
        self.variation = (draw.uniform(2.0, 5.0) * self.times + draw.uniform(0.0, 6.0)).sin()
        self.noise = draw.uniform(0.1, 0.25)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        radius, impact, duration, middle = theta.split(1, dim=1)
        distance = (impact**2 + ((self.times - middle) / duration) ** 2).sqrt()
        covered = torch.sigmoid((1 - distance) / (0.4 * radius))  # fraction of the planet in front of the star
        return -100 * radius**2 * covered + 0.2 * extra * self.variation  # in per cent of the star's flux
