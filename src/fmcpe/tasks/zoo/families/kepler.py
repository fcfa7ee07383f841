"""Radial velocity of a star with a planet, at irregular times."""

from __future__ import annotations

import math

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family


class Kepler(Family):
    """Amplitude, period, eccentricity and angles of an orbit. Missing physics: a second planet. Periods have aliases."""

    name = "kepler"
    physics = "a second planet"

    def __init__(self, draw: Constants) -> None:
        nights = draw.integer(16, 36)
        self.theta_names, self.shape = ("K", "P", "e", "ω", "M₀"), (nights,)
        low, high = [0.5, 3.0, 0.0, 0.0, 0.0], [3.0, 12.0, 0.6, 2 * math.pi, 2 * math.pi]
        self.prior = BoxUniform(torch.tensor(low), torch.tensor(high))
        self.times = draw.sorted_uniform(0.0, 40.0, nights)
        self.other = (2 * math.pi * self.times / draw.uniform(14.0, 25.0) + draw.uniform(0.0, 6.0)).sin()
        self.noise = draw.uniform(0.15, 0.4)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        amplitude, period, eccentricity, angle, start = theta.split(1, dim=1)
        mean = torch.remainder(2 * math.pi * self.times / period + start, 2 * math.pi)
        anomaly = mean + eccentricity * mean.sin()
        for _ in range(5):  # Newton's method on Kepler's equation
            anomaly = anomaly - (anomaly - eccentricity * anomaly.sin() - mean) / (1 - eccentricity * anomaly.cos())
        half = torch.atan2(
            (1 + eccentricity).sqrt() * (anomaly / 2).sin(), (1 - eccentricity).sqrt() * (anomaly / 2).cos()
        )
        velocity = amplitude * ((2 * half + angle).cos() + eccentricity * angle.cos())
        return velocity + 2 * extra * self.other
