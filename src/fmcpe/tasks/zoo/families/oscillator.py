"""A damped oscillator, released at rest: x(t) = A e^{-ζωt} cos(ωt)."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family


class Oscillator(Family):
    """Frequency, damping ratio and amplitude from a series. Missing physics: a stiffening spring."""

    name = "oscillator"
    physics = "a spring that stiffens with amplitude"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        length = draw.integer(60, 120)
        self.theta_names, self.shape = ("ω", "ζ", "A"), (length,)
        self.prior = BoxUniform(torch.tensor([1.0, 0.01, 0.5]), torch.tensor([3.0, 0.15, 3.0]))
        self.times = torch.linspace(0, draw.uniform(6.0, 12.0), length)
        self.noise = draw.uniform(0.1, 0.3)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        omega, zeta, amplitude = theta.split(1, dim=1)
        decay = (-zeta * omega * self.times).exp()
        # the frequency of a Duffing oscillator increases by 3/8 e A² ω, with A the current amplitude
        phase = omega * self.times + extra * 3 / 8 * amplitude**2 * (1 - decay**2) / (2 * zeta)
        return amplitude * decay * phase.cos()
