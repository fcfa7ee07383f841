"""Enzyme kinetics: initial rates at several substrate concentrations."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, log_normal


class Enzyme(Family):
    """Both Michaelis-Menten constants; below Km only their ratio is identified. Missing physics: substrate inhibition."""

    name = "enzyme"
    physics = "inhibition by the substrate"

    def __init__(self, draw: Constants) -> None:
        number = draw.integer(7, 14)
        self.theta_names, self.shape = ("Vmax", "Km"), (number,)
        self.prior = log_normal([2.0, 1.0], [0.4, 0.7])
        self.substrate = torch.logspace(-1.3, draw.uniform(0.3, 0.7), number)
        self.noise = draw.uniform(0.03, 0.1)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        fastest, constant = theta.split(1, dim=1)
        return fastest * self.substrate / (constant + self.substrate * (1 + extra * self.substrate))
