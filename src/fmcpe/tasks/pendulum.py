"""A damped pendulum whose simulator has no friction.

    θ = (ω₀, A),  ω₀ ~ U[0, 3],  A ~ U[0.5, 10],  φ ~ U[0, 2π],  α ~ U[0, 1],  η ~ N(0, 0.1²)
    x(t) = A cos(ω₀t + φ) + η(t)
    y(t) = e^{−αt} A cos(ω₀t + φ) + η(t)        200 times, evenly spaced on [0, 10]

φ and α are nuisance parameters, drawn anew for each run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fmcpe.tasks.base import Side, Task
from fmcpe.tasks.options import interval, positive
from fmcpe.tasks.pendulum_reference import PendulumReference

Range = tuple[float, float]


class Pendulum(Task):
    """The damped pendulum, with an undamped simulator.

    Args:
        omega_range: Prior range of the angular frequency ω₀.
        amplitude_range: Prior range of the amplitude A.
        damping_range: Range of the real process's damping α; with ``(0, 0)`` the simulator is correct.
        noise_std: Standard deviation of η.
    """

    name = "pendulum"
    theta_names = ("ω₀", "A")
    num_times = 200
    duration = 10.0

    def __init__(
        self,
        omega_range: Range = (0.0, 3.0),
        amplitude_range: Range = (0.5, 10.0),
        damping_range: Range = (0.0, 1.0),
        noise_std: float = 0.1,
    ):
        from sbi.utils import BoxUniform

        interval("omega_range", omega_range)
        interval("amplitude_range", amplitude_range)
        interval("damping_range", damping_range, may_be_a_point=True)
        positive(noise_std=noise_std)
        self.omega_range, self.amplitude_range = omega_range, amplitude_range
        self.damping_range, self.noise_std = damping_range, noise_std
        self.x_shape = (self.num_times,)
        self.times = torch.linspace(0, self.duration, self.num_times)
        lows, highs = zip(omega_range, amplitude_range, strict=True)
        self.prior = BoxUniform(torch.tensor(lows), torch.tensor(highs))

    def embedding_net(self) -> nn.Module:
        """A strided convolution over the series: (B, 200) to (B, 16).

        The fastest oscillation has 42 samples per period, so the first stride of 8 does not alias. An epoch on a CPU is
        three times as fast as with strides of 4, 2, 2.
        """
        return nn.Sequential(
            nn.Unflatten(1, (1, self.num_times)),
            nn.Conv1d(1, 16, 16, stride=8, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 13, 64),
            nn.ReLU(),
            nn.Linear(64, 16),
        )

    def _simulate(self, theta: Tensor) -> Tensor:
        return self._swing(theta, torch.zeros(len(theta), 1))

    def _observe(self, theta: Tensor) -> Tensor:
        low, high = self.damping_range
        return self._swing(theta, low + (high - low) * torch.rand(len(theta), 1))

    def _swing(self, theta: Tensor, damping: Tensor) -> Tensor:
        omega, amplitude = theta[:, :1], theta[:, 1:]
        phase = 2 * math.pi * torch.rand(len(theta), 1)
        clean = torch.exp(-damping * self.times) * amplitude * torch.cos(omega * self.times + phase)
        return clean + self.noise_std * torch.randn(clean.shape)

    def _reference(self, y: Tensor, side: Side) -> PendulumReference:
        return PendulumReference(
            y,
            step=self.duration / (self.num_times - 1),
            noise_std=self.noise_std,
            omega_range=self.omega_range,
            amplitude_range=self.amplitude_range,
            damping_range=self.damping_range if side == "real" else (0.0, 0.0),
        )
