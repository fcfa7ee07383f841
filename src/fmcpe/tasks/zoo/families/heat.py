"""Heat conduction in a rod with cooled ends: infer initial temperature and diffusivity."""

from __future__ import annotations

import math

import torch
from sbi.utils import MultipleIndependent
from torch import Tensor
from torch.distributions import Normal, Uniform

from fmcpe.tasks.zoo.family import Constants, Family


class Heat(Family):
    """The diffusivity and two to nine Fourier coefficients from a few sensors. Missing physics: losses through the side."""

    name = "heat"
    physics = "heat that is lost through the side of the rod"

    def __init__(self, draw: Constants) -> None:
        modes, sensors, times = draw.integer(2, 9), draw.integer(3, 6), draw.integer(4, 6)
        self.theta_names = ("α", *(f"c{n}" for n in range(1, modes + 1)))
        self.shape = (sensors * times,)
        coefficients = [Normal(torch.zeros(1), torch.full((1,), 1.0 / math.sqrt(n))) for n in range(1, modes + 1)]
        self.prior = MultipleIndependent([Uniform(torch.tensor([0.02]), torch.tensor([0.12])), *coefficients])
        n = torch.arange(1, modes + 1)
        self.waves = (math.pi * n[:, None] * draw.sorted_uniform(0.05, 0.95, sensors)).sin()
        self.decay, self.times = (math.pi * n) ** 2, torch.linspace(0.05, 1.0, times)
        self.noise = draw.uniform(0.03, 0.1)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        decay = (-theta[:, :1, None] * self.decay[:, None] * self.times).exp()
        profile = torch.einsum("bn,bnt,ns->bst", theta[:, 1:], decay, self.waves)
        return (profile * (-extra[:, :, None] * self.times).exp()).flatten(1)
