"""Model A2C3 of the wind tunnel (Gamella et al., 2025), batched and in closed form.

Fan speeds follow, by 100 Euler steps per sample and with load L,

    dω/dt = (τ(L) − Kω²) / I,   τ(L) = T (C_max − C_min) max(L, L_min)³  (0 where L = 0),   K = τ(1) / ω_max².

With w = ω/ω_max, a fan's static pressure S solves S = Z Q² and S = w² S_max − w (S_max/Q_max) Q, where
Z = (S_max/Q_max²)(1 − r)/r² and r = min(1, r₀ + βH/45). The root is Q = w r Q_max, so Q_max drops out:

    S(ω) = (1 − r) w² S_max,      P(t) = (1 − r(H)) g(t),   g = S_max (w_in² − w_out²).

Speeds do not depend on H, so g is computed once and H enters as an amplitude. This form also covers r = 1, where the quadratic
formula divides by Z = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_TIMES, DURATION = 50, 7.58541261
H_MAX = 45.0

_LOAD_IN = (0.01,) * 5 + (1.0,) * 20 + (0.01,) * 25
_LOAD_OUT = (0.5,) * NUM_TIMES
_EULER_STEPS = 100


@dataclass(frozen=True)
class Tunnel:
    """The constants, in SI units. Those after `sensor_noise` are 0 in model A2C3.

    Args:
        inertia: I of one fan.
        drag: K relative to τ(1)/ω_max².
        r_0: Airflow ratio with the hatch shut.
        beta: Increase of the ratio with the hatch fully open.
        hatch_power: γ in r = r₀ + β (H/45)^γ.
        sensor_noise: Standard deviation of one reading.
        sensor_lag: Time constant of the barometer.
        drift_slope: Standard deviation, over runs, of the ambient pressure's drift in Pa/s.
        drift_bow: Standard deviation, over runs, of the drift's curvature: its deviation from a line in mid-run, in Pa.
        quantum: Step of the readings.
        torque: T, torque per unit of current.
        current_min: C_min, current of an idle fan.
        current_max: C_max, current at full load.
        load_min: L_min, below which the load has no effect.
        omega_max: Speed at full load.
        pressure_max: S_max, static pressure at full speed without flow.
    """

    inertia: float = 0.5 * 0.059**2 * 0.02
    drag: float = 1.0
    r_0: float = 0.75
    beta: float = 0.15
    hatch_power: float = 1.0
    sensor_noise: float = 0.2
    sensor_lag: float = 0.0
    drift_slope: float = 0.0
    drift_bow: float = 0.0
    quantum: float = 0.0
    torque: float = 0.05
    current_min: float = 0.166
    current_max: float = 0.27
    load_min: float = 0.1
    omega_max: float = 100 * math.pi
    pressure_max: float = 74.82473949999999


class Impulse:
    """Pressure series of a tunnel, minus their first value.

    Attributes:
        shape: g of the module's docstring, lagged, minus its first value: ``(50,)``, float64.
    """

    def __init__(self, tunnel: Tunnel):
        self.tunnel = tunnel
        times = torch.linspace(0, DURATION, NUM_TIMES, dtype=torch.float64)
        w_in, w_out = _relative_speeds(tunnel, _LOAD_IN), _relative_speeds(tunnel, _LOAD_OUT)
        self.shape = _lagged(tunnel.pressure_max * (w_in**2 - w_out**2), tunnel.sensor_lag)
        self.shape -= self.shape[0].clone()
        bow = 4 * times * (DURATION - times) / DURATION**2
        # both drifts are zero at the start, whose value is subtracted
        self._drifts = torch.stack([tunnel.drift_slope * times, tunnel.drift_bow * bow])

    def amplitude(self, hatch: Tensor) -> Tensor:
        """1 − r(H)."""
        opened = (hatch / H_MAX) ** self.tunnel.hatch_power
        return 1 - (self.tunnel.r_0 + self.tunnel.beta * opened).clamp_max(1)

    def mean(self, hatch: Tensor) -> Tensor:
        """Noiseless series at each H of ``(N, 1)``: ``(N, 50)``, float64."""
        return self.amplitude(hatch.double()) * self.shape

    def draw(self, hatch: Tensor) -> Tensor:
        """Readings at each H, with fresh noise from torch's global generator."""
        size, quantum = len(hatch), self.tunnel.quantum
        readings = self.mean(hatch) + self.tunnel.sensor_noise * torch.randn(size, NUM_TIMES, dtype=torch.float64)
        if self._drifts.any():
            readings += torch.randn(size, 2, dtype=torch.float64) @ self._drifts
        if quantum:
            # the ambient pressure is arbitrary relative to the sensor's quantisation steps
            phase = torch.rand(size, 1, dtype=torch.float64)
            readings = quantum * (readings / quantum + phase).round()
        return (readings - readings[:, :1]).float()

    def log_likelihood(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Log p(y|H) up to a constant, as a function of H. Drifts are integrated out in closed form.

        Quantisation enters as its variance, quantum²/12, which is accurate for steps below the noise.
        """
        g, data = self.shape[1:], y.double().reshape(-1)[1:]
        variance = self.tunnel.sensor_noise**2 + self.tunnel.quantum**2 / 12
        drifts = self._drifts[:, 1:]
        # subtracting the first reading adds its noise to all others: the 1 beside the identity
        covariance = variance * (torch.eye(len(g), dtype=torch.float64) + 1) + drifts.T @ drifts
        weighted = torch.linalg.solve(covariance, g)
        information, score = weighted @ g, weighted @ data

        def log_likelihood(hatch: Tensor) -> Tensor:
            amplitude = self.amplitude(hatch.double())
            return amplitude * score - amplitude**2 * information / 2

        return log_likelihood


def _relative_speeds(tunnel: Tunnel, loads: tuple[float, ...]) -> Tensor:
    """ω/ω_max at each sample, from the steady state of the first load."""

    def torque(load: float) -> float:
        current = tunnel.current_max - tunnel.current_min
        return tunnel.torque * current * max(load, tunnel.load_min) ** 3 if load else 0.0

    K = tunnel.drag * torque(1.0) / tunnel.omega_max**2
    dt = DURATION / (NUM_TIMES - 1) / _EULER_STEPS
    omega = max(loads[0], tunnel.load_min) * tunnel.omega_max
    speeds = [omega]
    for load in loads[1:]:
        for _ in range(_EULER_STEPS):
            omega += dt * (torque(load) - K * omega**2) / tunnel.inertia
        speeds.append(omega)
    return torch.tensor(speeds, dtype=torch.float64) / tunnel.omega_max


def _lagged(series: Tensor, lag: float) -> Tensor:
    """A first-order low-pass filter, exact for piecewise constant input."""
    follow = 1 - math.exp(-DURATION / (NUM_TIMES - 1) / lag) if lag else 1.0
    values = [series[0]]
    for value in series[1:]:
        values.append(values[-1] + follow * (value - values[-1]))
    return torch.stack(values)
