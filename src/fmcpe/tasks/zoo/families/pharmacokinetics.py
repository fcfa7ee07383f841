"""A two-compartment model with absorption: concentration of a drug in blood after one oral dose."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, integrate, log_normal


class Pharmacokinetics(Family):
    """Absorption, elimination and exchange rates from a dozen samples. Missing physics: saturable elimination."""

    name = "pharmacokinetics"
    physics = "elimination that saturates at high concentrations"

    def __init__(self, draw: Constants) -> None:
        number = draw.integer(10, 16)
        self.theta_names, self.shape = ("ka", "k10", "k12", "k21"), (number,)
        self.prior = log_normal([1.0, 0.3, 0.4, 0.3], 0.4)
        self.step, self.dose = draw.uniform(10.0, 16.0) / number, draw.uniform(8.0, 12.0)
        self.noise = draw.uniform(0.05, 0.12)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        ka, k10, k12, k21 = theta.T
        saturation = extra[:, 0]

        def velocity(state: Tensor, t: float) -> Tensor:
            gut, blood, tissue = state
            out = k10 * blood / (1 + saturation * blood)
            return torch.stack([-ka * gut, ka * gut - out - k12 * blood + k21 * tissue, k12 * blood - k21 * tissue])

        start = torch.zeros(3, len(theta))
        start[0] = self.dose
        blood = integrate(velocity, start, self.step, self.shape[0], substeps=4)[1]
        return blood.clamp_min(0).log1p()
