"""A wind tunnel: infer the position of the hatch from the pressure after an impulse of the intake fan.

    H ~ U[0, 45],   x = (1 − r(H)) g + ε,   ε ~ N(0, 0.2²),   50 readings, minus the first

is model A2C3 of the causal chambers (`wind_tunnel_model`). Real data are either measured (``data=``) or come from a
**stand-in**: the same model with other drag, inertia and response to the hatch, a lag of the sensor, a slow drift of the
ambient pressure that differs in each run, and the sensor's quantisation.

Given H, simulated and real data are Gaussian, drift included, so p(H|y) is a one-dimensional quadrature.
"""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn

from fmcpe._random import derive, seeded
from fmcpe.tasks.base import RealSide, Side, Stream, Task
from fmcpe.tasks.chambers import Measurements, read_impulses
from fmcpe.tasks.quadrature import Quadrature
from fmcpe.tasks.wind_tunnel_model import DURATION, H_MAX, NUM_TIMES, Impulse, Tunnel

# readings are float32 near 10⁵ Pa, with a spacing of 2⁻⁷ Pa
_QUANTUM = 2.0**-7


class WindTunnel(Task):
    """The wind tunnel.

    Args:
        data: Folder with the measured data set ``wt_intake_impulse_v1`` (see `fmcpe.tasks.download`); without it the
            task uses a stand-in.
        seed: Seed of the stand-in's constants.
    """

    name = "wind-tunnel"
    theta_names = ("H",)
    data_label = "pressure − first reading (Pa)"
    real_side: RealSide = "stand-in"

    def __init__(self, data: str | PathLike[str] | None = None, *, seed: int = 0):
        from sbi.utils import BoxUniform

        self.x_shape = (NUM_TIMES,)
        self.times = torch.linspace(0, DURATION, NUM_TIMES)
        self.prior = BoxUniform(torch.zeros(1), torch.full((1,), H_MAX))
        self._impulses: dict[Side, Impulse] = {"simulator": Impulse(Tunnel()), "real": Impulse(stand_in(seed))}
        self._measured: Measurements | None = None
        if data is not None:
            self._measured, self.real_side = read_impulses(data), "measured"

    @property
    def test_limit(self) -> int | None:
        """Number of measured test pairs; None for the stand-in."""
        return None if self._measured is None else self._measured.test_limit

    def embedding_net(self) -> nn.Module:
        """Two strided convolutions over the series: (B, 50) to (B, 16)."""
        return nn.Sequential(
            nn.Unflatten(1, (1, NUM_TIMES)),
            nn.Conv1d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 13, 64),
            nn.ReLU(),
            nn.Linear(64, 16),
        )

    def _simulate(self, theta: Tensor) -> Tensor:
        return self._impulses["simulator"].draw(theta)

    def _observe(self, theta: Tensor) -> Tensor:
        if self._measured is not None:
            raise self._measured.no_observe(self.name)
        return self._impulses["real"].draw(theta)

    def _pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        if self._measured is None:
            return super()._pairs(n, stream, seed)
        return self._measured.pairs(n, stream, seed)

    def _reference(self, y: Tensor, side: Side) -> Quadrature:
        if side == "real" and self._measured is not None:
            return super()._reference(y, side)  # type: ignore[return-value]
        return Quadrature(self._impulses[side].log_likelihood(y), (0.0, H_MAX))


def stand_in(seed: int) -> Tunnel:
    """A tunnel that differs from model A2C3, with constants in the range of a worn fan and a dusty duct."""
    with seeded(derive(seed, "wind-tunnel", "stand-in")):
        u = torch.rand(7, dtype=torch.float64).tolist()

    def between(low: float, high: float, share: float) -> float:
        return low + (high - low) * share

    return Tunnel(
        drag=between(1.02, 1.06, u[0]),
        inertia=Tunnel.inertia * between(1.05, 1.15, u[1]),
        r_0=Tunnel.r_0 - between(0.0, 0.02, u[2]),
        beta=Tunnel.beta * between(0.85, 1.0, u[3]),
        hatch_power=between(1.3, 1.6, u[4]),
        sensor_lag=between(0.1, 0.25, u[5]),
        drift_slope=between(0.03, 0.06, u[6]),
        drift_bow=0.1,
        quantum=_QUANTUM,
    )
