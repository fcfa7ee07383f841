"""Simulator families of the zoo: constants from a seed, a prior, a noise-free response, additive noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, LogNormal

from fmcpe._random import derive


class Constants:
    """Random constants of a problem, determined by seed and streams.

    Args:
        seed: Seed of the problem.
        *streams: Names of the use of the constants.
    """

    def __init__(self, seed: int, *streams: str) -> None:
        number = derive(seed, "zoo", *streams)
        assert number is not None
        self._generator = torch.Generator().manual_seed(number)

    def uniform(self, low: float, high: float) -> float:
        """One number, uniform on [low, high)."""
        return low + (high - low) * float(torch.rand((), generator=self._generator))

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator))

    def sign(self) -> float:
        """1 or -1."""
        return 1.0 if self.integer(0, 1) else -1.0

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, generator=self._generator)

    def sorted_uniform(self, low: float, high: float, number: int) -> Tensor:
        """Ascending numbers, uniform on [low, high)."""
        return (low + (high - low) * torch.rand(number, generator=self._generator)).sort().values


class Family(ABC):
    """A simulator with random constants.

    Attributes:
        name: Short name.
        theta_names: One label per parameter.
        prior: Prior over physical θ.
        shape: Shape of one observation: ``(d,)``, ``(channels, length)`` or ``(channels, height, width)``.
        noise: Standard deviation of the simulator's additive Gaussian noise; 0 if the response itself is random.
        is_series: Whether the last axis is time (or a row of an image), along which a sensor can lag or drift.
        is_random: Whether the response itself is random, so that the likelihood is intractable.
        physics: Description of the missing physics.
    """

    name: ClassVar[str]
    physics: ClassVar[str]
    is_series: ClassVar[bool] = False
    is_random: ClassVar[bool] = False
    theta_names: tuple[str, ...]
    prior: Distribution
    shape: tuple[int, ...]
    noise: float

    @abstractmethod
    def __init__(self, draw: Constants) -> None: ...

    @abstractmethod
    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        """Noise-free data, (B, *shape).

        Args:
            theta: Physical parameters, (B, p).
            extra: Strength of the missing physics, (B, 1); 0 for the simulator.
        """


def log_normal(medians: Sequence[float], spread: float | Sequence[float]) -> Distribution:
    """Independent log-normal parameters: medians, and standard deviations of their logs."""
    loc = torch.tensor(medians).log()
    return Independent(LogNormal(loc, torch.as_tensor(spread).expand(len(medians)).clone()), 1)


def integrate(
    velocity: Callable[[Tensor, float], Tensor], state: Tensor, step: float, number: int, substeps: int = 1
) -> Tensor:
    """Fourth-order Runge-Kutta: states (K, B, number) after each of `number` steps, from ``state`` (K, B).

    Args:
        velocity: ``(state (K, B), t) -> (K, B)``.
        state: State at time 0.
        step: Time between two output rows.
        number: Number of output rows.
        substeps: Runge-Kutta steps per output row.
    """
    h, t, rows = step / substeps, 0.0, []
    for _ in range(number):
        for _ in range(substeps):
            k1 = velocity(state, t)
            k2 = velocity(state + h / 2 * k1, t + h / 2)
            k3 = velocity(state + h / 2 * k2, t + h / 2)
            k4 = velocity(state + h * k3, t + h)
            state, t = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + h
        rows.append(state)
    return torch.stack(rows, dim=-1)
