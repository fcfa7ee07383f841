r"""Kinds of misspecification: transforms of adjustable strength from simulated to real data.

An observation has three steps, and a kind changes one of them:

    response = family.response(θ, extra)      physics: `extra`
    seen     = signal(response)               sensor: gain, lag, clock, channels
    y        = data(seen + noise(seen))       noise, outliers, saturation

At strength 0 every kind is the identity. `log_noise` is the log density of the noise, if known, for the reference posterior;
kinds that change data after the noise have none.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from sbi.utils import BoxUniform
from torch import Tensor
from torch.distributions import Distribution, Independent, LogNormal, MultivariateNormal, StudentT

from fmcpe.tasks.zoo.family import Constants, Family


class Kind:
    """No misspecification; the base class of all kinds.

    Args:
        draw: Random constants of the problem: signs, positions, channels.
        family: The simulator.
        scale: Standard deviation of the family's responses over the prior.
    """

    name: ClassVar[str] = "none"
    largest: ClassVar[float] = 0.0
    """Largest meaningful strength."""
    has_density: ClassVar[bool] = True
    """Whether `log_noise` is known."""

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        self.family, self.scale = family, scale

    def extra(self, rows: int, strength: float) -> Tensor:
        """Strength of the missing physics for each row, (B, 1)."""
        return torch.zeros(rows, 1)

    def signal(self, x: Tensor, strength: float) -> Tensor:
        """The sensor's output for a response."""
        return x

    def noise(self, x: Tensor, strength: float) -> Tensor:
        """Noise for data x, drawn from torch's global generator."""
        return self.family.noise * torch.randn_like(x)

    def data(self, x: Tensor, strength: float) -> Tensor:
        """The recorded data, from noisy data."""
        return x

    def log_noise(self, residual: Tensor, x: Tensor, strength: float) -> Tensor:
        """Log density of noise, up to a constant, for rows of ``residual`` and of the signal x: (B,)."""
        return -(residual / self.family.noise).square().flatten(1).sum(1) / 2

    def simulation_prior(self, prior: Distribution, strength: float) -> Distribution:
        """The prior of the simulations."""
        return prior

    def calibration_prior(self, prior: Distribution, strength: float) -> Distribution:
        """The prior of the calibration pairs."""
        return prior


class MissingPhysics(Kind):
    """An effect that the simulator omits, of constant strength."""

    name, largest = "missing-physics", 3.0

    def extra(self, rows: int, strength: float) -> Tensor:
        return torch.full((rows, 1), strength)


class Nuisance(Kind):
    """The same effect, with a random strength in each observation, uniform from 0."""

    name, largest = "nuisance", 6.0

    def extra(self, rows: int, strength: float) -> Tensor:
        return strength * torch.rand(rows, 1)


class GainOffset(Kind):
    """A sensor with wrong gain and offset."""

    name, largest = "gain-offset", 2.5

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        super().__init__(draw, family, scale)
        self.gain, self.offset = draw.sign() * draw.uniform(0.3, 0.6), draw.sign() * draw.uniform(0.3, 1.0) * scale

    def signal(self, x: Tensor, strength: float) -> Tensor:
        return x * math.exp(strength * self.gain) + strength * self.offset  # a gain of zero would hide θ


class Lag(Kind):
    """A first-order sensor lag, with the time constant in samples."""

    name, largest = "lag", 30.0

    def signal(self, x: Tensor, strength: float) -> Tensor:
        if strength == 0:
            return x
        kept = math.exp(-1 / strength)
        rows = [x[..., 0]]
        for k in range(1, x.shape[-1]):
            rows.append(kept * rows[-1] + (1 - kept) * x[..., k])
        return torch.stack(rows, dim=-1)


class ClockDrift(Kind):
    """A slow clock: the signal is read at stretched times, by linear interpolation."""

    name, largest = "clock-drift", 0.3

    def signal(self, x: Tensor, strength: float) -> Tensor:
        length = x.shape[-1]
        places = torch.arange(length) * (1 - strength)
        left = places.floor().long().clamp(0, length - 2)
        share = places - left
        return (1 - share) * x[..., left] + share * x[..., left + 1]


class NoiseScale(Kind):
    """More noise than the simulator has."""

    name, largest = "noise-scale", 5.0

    def noise(self, x: Tensor, strength: float) -> Tensor:
        return (1 + strength) * super().noise(x, strength)

    def log_noise(self, residual: Tensor, x: Tensor, strength: float) -> Tensor:
        return super().log_noise(residual / (1 + strength), x, strength)


class HeavyTails(Kind):
    """Student-t noise with two degrees of freedom in place of Gaussian noise; its scale grows with the strength."""

    name, largest = "heavy-tails", 5.0
    DEGREES: ClassVar[float] = 2.0

    def noise(self, x: Tensor, strength: float) -> Tensor:
        if strength == 0:
            return super().noise(x, 0.0)
        return self._scale(strength) * StudentT(self.DEGREES).sample(x.shape)

    def log_noise(self, residual: Tensor, x: Tensor, strength: float) -> Tensor:
        if strength == 0:
            return super().log_noise(residual, x, 0.0)
        return StudentT(self.DEGREES).log_prob(residual / self._scale(strength)).flatten(1).sum(1)

    def _scale(self, strength: float) -> float:
        return self.family.noise * (0.5 + strength)


class Heteroscedastic(Kind):
    """Noise that grows with the signal."""

    name, largest = "heteroscedastic", 5.0

    def noise(self, x: Tensor, strength: float) -> Tensor:
        return self._factor(x, strength) * super().noise(x, strength)

    def log_noise(self, residual: Tensor, x: Tensor, strength: float) -> Tensor:
        factor = self._factor(x, strength)
        return super().log_noise(residual / factor, x, strength) - factor.log().flatten(1).sum(1)

    def _factor(self, x: Tensor, strength: float) -> Tensor:
        return 1 + strength * x.abs() / self.scale


class CorrelatedNoise(Kind):
    """Added autoregressive noise along the last axis; the strength is its scale."""

    name, largest = "correlated-noise", 5.0
    KEPT: ClassVar[float] = 0.9

    def noise(self, x: Tensor, strength: float) -> Tensor:
        shocks = self.family.noise * torch.randn_like(x)
        rows = [shocks[..., 0]]
        for k in range(1, x.shape[-1]):
            rows.append(self.KEPT * rows[-1] + math.sqrt(1 - self.KEPT**2) * shocks[..., k])
        return super().noise(x, strength) + strength * torch.stack(rows, dim=-1)

    def log_noise(self, residual: Tensor, x: Tensor, strength: float) -> Tensor:
        places = torch.arange(residual.shape[-1])
        correlation = self.KEPT ** (places[:, None] - places).abs()
        covariance = self.family.noise**2 * (torch.eye(len(places)) + strength**2 * correlation)
        density = MultivariateNormal(torch.zeros(len(places)), covariance)
        return density.log_prob(residual).reshape(len(residual), -1).sum(1)


class Outliers(Kind):
    """A fraction of the values is off by several standard deviations of the data."""

    name, largest, has_density = "outliers", 1.0, False

    def data(self, x: Tensor, strength: float) -> Tensor:
        hit = torch.rand_like(x) < 0.5 * strength
        return torch.where(hit, x + 3 * self.scale * torch.randn_like(x), x)


class Saturation(Kind):
    """Clipping of high values, and quantisation to at least sixteen levels."""

    name, largest, has_density = "saturation", 0.9, False
    LEVELS: ClassVar[int] = 16

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        super().__init__(draw, family, scale)
        response = family.response(family.prior.sample(torch.Size((500,))), torch.zeros(500, 1))
        self.low, self.high = float(response.quantile(0.01)), float(response.quantile(0.995))

    def data(self, x: Tensor, strength: float) -> Tensor:
        if strength == 0:
            return x
        top = self.high - strength * (self.high - self.low)
        quantum = strength * (top - self.low) / self.LEVELS
        return ((x.clamp_max(top) - self.low) / quantum).round() * quantum + self.low


class Channels(Kind):
    """Some channels are swapped with their neighbours or attenuated; at full strength they are dead."""

    name, largest = "channels", 1.0

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        super().__init__(draw, family, scale)
        length = family.shape[-1]
        number = max(1, length // draw.integer(3, 5))
        self.dead = torch.arange(length)[draw.integer(0, length - number) :][:number]
        self.dies = bool(draw.integer(0, 1))

    def signal(self, x: Tensor, strength: float) -> Tensor:
        seen = x.clone()
        other = torch.zeros_like(x[..., self.dead]) if self.dies else x[..., self.dead].flip(-1)
        seen[..., self.dead] = (1 - strength) * x[..., self.dead] + strength * other
        return seen


class PriorShift(Kind):
    """Simulations have another prior than pairs and tests: a part of the range, or another location."""

    name, largest = "prior-shift", 10.0

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        super().__init__(draw, family, scale)
        self.place, self.sign = draw.uniform(0.1, 0.9), draw.sign()

    def simulation_prior(self, prior: Distribution, strength: float) -> Distribution:
        return prior if strength == 0 else shifted(prior, strength, self.place, self.sign)


class CalibrationShift(Kind):
    """Pairs cover only a part of the range, and the sensor's gain is wrong."""

    name, largest = "calibration-shift", 2.5

    def __init__(self, draw: Constants, family: Family, scale: float) -> None:
        super().__init__(draw, family, scale)
        self.sensor = GainOffset(draw, family, scale)
        self.place, self.sign = draw.uniform(0.3, 0.7), draw.sign()

    def signal(self, x: Tensor, strength: float) -> Tensor:
        return self.sensor.signal(x, strength)

    def calibration_prior(self, prior: Distribution, strength: float) -> Distribution:
        return prior if strength == 0 else shifted(prior, 0.5, self.place, self.sign)


def shifted(prior: Distribution, strength: float, place: float, sign: float) -> Distribution:
    """A narrower or shifted prior.

    Args:
        prior: Uniform on a box, normal, or log-normal.
        strength: Shift s of a normal's mean in standard deviations; a box loses the fraction s / (1 + s) of each side.
        place: Position of the remaining part of the box, from 0 (lowest) to 1.
        sign: Direction of a normal's shift.
    """
    if isinstance(prior, BoxUniform):
        low, high = prior.base_dist.low, prior.base_dist.high
        cut = strength / (1 + strength) * (high - low)
        return BoxUniform(low + place * cut, high - (1 - place) * cut)
    if isinstance(prior, MultivariateNormal):
        return MultivariateNormal(prior.mean + sign * strength * prior.stddev, prior.covariance_matrix)
    inner = prior.base_dist if isinstance(prior, Independent) else None
    if isinstance(inner, LogNormal):
        return Independent(LogNormal(inner.loc + sign * strength * inner.scale, inner.scale), 1)
    raise TypeError(f"Expected a uniform, normal or log-normal prior, got {type(prior).__name__}. Use another kind.")


KINDS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        Kind, MissingPhysics, Nuisance, GainOffset, Lag, ClockDrift, NoiseScale, HeavyTails, Heteroscedastic, CorrelatedNoise,
        Outliers, Saturation, Channels, PriorShift, CalibrationShift,
    )
}  # fmt: skip
