"""A series circuit of resistor, inductor and capacitor: voltage of the capacitor after a step."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, integrate, log_normal


class Circuit(Family):
    """R, L and C from the step response, which identifies only R/L and LC: a curved ridge. Missing physics: core saturation."""

    name = "circuit"
    physics = "a core whose inductance falls with the current"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(50, 90)
        self.theta_names, self.shape = ("R", "L", "C"), (length,)
        self.prior = log_normal([0.6, 1.0, 1.0], [0.4, 0.3, 0.3])
        self.step, self.voltage = draw.uniform(10.0, 16.0) / length, draw.uniform(2.0, 4.0)
        self.noise = draw.uniform(0.1, 0.3)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        resistance, inductance, capacity = theta.T
        saturation = extra[:, 0]

        def velocity(state: Tensor, t: float) -> Tensor:
            current, charge = state
            effective = inductance / (1 + saturation * current**2)
            return torch.stack([(self.voltage - resistance * current - charge / capacity) / effective, current])

        charge = integrate(velocity, torch.zeros(2, len(theta)), self.step, self.shape[0], substeps=2)[1]
        return charge / capacity[:, None]
