"""Fixed-step solvers for dz/dt = f(t, z), and the exact inverse of the discrete map.

`solve` composes the steps z_{k+1} = φ_k(z_k), and `invert_with_logdet` inverts them one by one. Unlike integration of the
equation backwards, this gives back z for any number of steps, so the density of a draw is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fmcpe._errors import FMCPEWarning

Velocity = Callable[[Tensor, Tensor], Tensor]
"""A velocity field for fixed conditions: t (), z (B, D) -> (B, D)."""


def euler(f: Velocity, t: Tensor, z: Tensor, h: float) -> Tensor:
    """First order, one evaluation."""
    return z + h * f(t, z)


def midpoint(f: Velocity, t: Tensor, z: Tensor, h: float) -> Tensor:
    """Second order, two evaluations."""
    return z + h * f(t + h / 2, z + h / 2 * f(t, z))


def rk4(f: Velocity, t: Tensor, z: Tensor, h: float) -> Tensor:
    """Fourth order, four evaluations."""
    k1 = f(t, z)
    k2 = f(t + h / 2, z + h / 2 * k1)
    k3 = f(t + h / 2, z + h / 2 * k2)
    k4 = f(t + h, z + h * k3)
    return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


METHODS = {"euler": euler, "midpoint": midpoint, "rk4": rk4}


@dataclass(frozen=True)
class Solver:
    """`steps` equal steps of a method, ``"euler"``, ``"midpoint"`` or ``"rk4"``, from time `start` to `end`."""

    method: str = "euler"
    steps: int = 50
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"Expected a solver of {sorted(METHODS)}, got {self.method!r}. Try euler.")
        if self.steps < 1:
            raise ValueError(f"Expected at least 1 solver step, got {self.steps}. Try steps=50.")

    def _steps(self, f: Velocity, like: Tensor) -> list[Callable[[Tensor], Tensor]]:
        """The maps that `solve` composes."""
        h, step = (self.end - self.start) / self.steps, METHODS[self.method]
        return [partial(step, f, like.new_tensor(self.start + k * h), h=h) for k in range(self.steps)]

    def solve(self, f: Velocity, z: Tensor) -> Tensor:
        """The solution at `end` that starts from `z`, (..., D)."""
        for step in self._steps(f, z):
            z = step(z)
        return z

    def invert_with_logdet(self, f: Velocity, z: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `solve` at `z`, and the log-determinant of the Jacobian of `solve` there, (...,)."""
        logdet = z.new_zeros(z.shape[:-1])
        for step in reversed(self._steps(f, z)):
            z = _invert_step(step, z)
            logdet = logdet + torch.linalg.slogdet(_jacobian(step, z)).logabsdet
        return z, logdet


def _invert_step(step: Callable[[Tensor], Tensor], target: Tensor, max_iter: int = 100) -> Tensor:
    """Fixed point of ``z <- z + target - step(z)``, a contraction if the step is short for the field."""
    z, worst = target, float("inf")
    for _ in range(max_iter):
        residual = target - step(z)
        z = z + residual
        before, worst = worst, float((residual / (1 + z.abs())).detach().abs().max())
        # stop at rounding error, where the residual no longer falls
        if worst <= 2e-7 or (worst <= 1e-5 and worst > 0.5 * before):
            return z
    worst = float((target - step(z)).detach().abs().max())
    if worst > 1e-4:
        warnings.warn(
            f"Expected a solver step that can be inverted, got a residual of {worst:.1e}: the velocity field is too "
            "steep for the step size, and the density is unreliable here. Use more steps, e.g. Paper(steps=200).",
            FMCPEWarning,
            stacklevel=3,
        )
    return z


def _jacobian(step: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Jacobian (..., D, D) of a row-wise map of z (..., D): one forward-mode product per dimension, vectorised."""
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    tangents = eye.reshape(-1, *([1] * (z.ndim - 1)), z.shape[-1]).expand(-1, *z.shape)
    return torch.func.vmap(lambda tangent: torch.func.jvp(step, (z,), (tangent,))[1], out_dims=z.ndim)(tangents)
