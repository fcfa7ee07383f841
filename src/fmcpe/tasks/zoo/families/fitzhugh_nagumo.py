"""A FitzHugh-Nagumo neuron: membrane voltage under a constant current."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, integrate


class FitzHughNagumo(Family):
    """Current and recovery parameters from a voltage trace. Missing physics: a slow adaptation current."""

    name = "fitzhugh-nagumo"
    physics = "a slow adaptation current"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(80, 120)
        self.theta_names, self.shape = ("I", "a", "τ"), (length,)
        self.prior = BoxUniform(torch.tensor([0.4, 0.5, 8.0]), torch.tensor([1.2, 0.9, 16.0]))
        self.step, self.b = draw.uniform(0.8, 1.1), draw.uniform(0.7, 0.9)
        self.noise = draw.uniform(0.15, 0.4)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        current, a, tau = theta.T
        adaptation = extra[:, 0]

        def velocity(state: Tensor, t: float) -> Tensor:
            v, w, slow = state
            return torch.stack(
                [v - v**3 / 3 - w + current - adaptation * slow, (v + a - self.b * w) / tau, (v - slow) / 40]
            )

        start = torch.tensor([-1.0, -0.5, 0.0])[:, None].expand(3, len(theta))
        return integrate(velocity, start, self.step, self.shape[0], substeps=3)[0]
