"""Trajectory of a projectile with quadratic drag."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, integrate


class Projectile(Family):
    """Speed, angle and drag from positions over time. Missing physics: wind."""

    name = "projectile"
    physics = "wind"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(24, 40)
        self.theta_names, self.shape = ("speed", "angle", "drag"), (2, length)
        self.prior = BoxUniform(torch.tensor([15.0, 0.4, 0.0]), torch.tensor([35.0, 1.2, 0.03]))
        self.step, self.noise = draw.uniform(1.6, 2.4) / length, draw.uniform(0.3, 0.8)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        speed, angle, drag = theta.T
        wind = 15 * extra[:, 0]

        def velocity(state: Tensor, t: float) -> Tensor:
            vx, vy = state[2] - wind, state[3]
            resistance = drag * (vx**2 + vy**2).sqrt()
            return torch.stack([state[2], vy, -resistance * vx, -9.81 - resistance * vy])

        zero = torch.zeros_like(speed)
        start = torch.stack([zero, zero, speed * angle.cos(), speed * angle.sin()])
        return integrate(velocity, start, self.step, self.shape[1])[:2].transpose(0, 1)
