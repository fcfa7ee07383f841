r"""Fixed-step solvers for \( \dot z = f(t, z) \) on [0, 1], and the exact inverse of what they compute.

A solver is a composition of steps \( z_{k+1} = \phi_k(z_k) \). Each step here is one small function; `solve`
composes them, `invert` undoes the composition step by step. Undoing the *discrete* map, rather than integrating
the equation backwards, means that ``invert(solve(z)) == z`` whatever the number of steps, so that the density
of a draw is the density of the very map that made it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fmcpe._errors import FMCPEWarning

Velocity = Callable[[Tensor, Tensor], Tensor]
"""A velocity field with its conditioning fixed: ``(t of shape (), z of shape (B, D)) -> (B, D)``."""


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
    """A method and a number of equal steps.

    Args:
        method: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: How many steps cover the interval.
        start: Time at which `solve` begins.
        end: Time at which `solve` stops; before `start` for fields that run from noise at t=1.
    """

    method: str = "euler"
    steps: int = 50
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r} is not a solver; choose one of {sorted(METHODS)}.")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} cannot cover an interval; give a whole number of at least 1.")

    def _steps(self, f: Velocity, like: Tensor) -> list[Callable[[Tensor], Tensor]]:
        """The maps that `solve` composes."""
        h = (self.end - self.start) / self.steps
        step = METHODS[self.method]

        def at(t: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda z: step(f, t, z, h)

        return [at(like.new_tensor(self.start + k * h)) for k in range(self.steps)]

    def solve(self, f: Velocity, z: Tensor) -> Tensor:
        """Carry `z` from `start` to `end`."""
        for step in self._steps(f, z):
            z = step(z)
        return z

    def invert(self, f: Velocity, z: Tensor) -> Tensor:
        """The point that `solve` carries to `z`."""
        for step in reversed(self._steps(f, z)):
            z = _invert_step(step, z)
        return z

    def invert_with_logdet(self, f: Velocity, z: Tensor) -> tuple[Tensor, Tensor]:
        """`invert`, and the log-determinant of the Jacobian of `solve` at the point found, of shape (...,)."""
        logdet = z.new_zeros(z.shape[:-1])
        for step in reversed(self._steps(f, z)):
            z = _invert_step(step, z)
            logdet = logdet + torch.linalg.slogdet(_jacobian(step, z)).logabsdet
        return z, logdet


def _invert_step(step: Callable[[Tensor], Tensor], target: Tensor, max_iter: int = 100) -> Tensor:
    """Fixed point of ``z <- z + target - step(z)``, a contraction while the step is short against the field."""
    z, worst = target, float("inf")
    for _ in range(max_iter):
        residual = target - step(z)
        z = z + residual
        before, worst = worst, float((residual / (1 + z.abs())).detach().abs().max())
        # nothing is gained below rounding, which shows in a residual that no longer falls
        if worst <= 2e-7 or (worst <= 1e-5 and worst > 0.5 * before):
            return z
    worst = float((target - step(z)).detach().abs().max())
    if worst > 1e-4:
        warnings.warn(
            f"a solver step could not be inverted (residual {worst:.1e}): the velocity field is too steep for the "
            "step size, and the density is unreliable here. Use more steps, e.g. Recipe(steps=200).",
            FMCPEWarning,
            stacklevel=3,
        )
    return z


def _jacobian(step: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Per-row Jacobian (..., D, D) of a row-wise map of (..., D): one forward-mode product per dimension, all at once."""
    dim = z.shape[-1]
    tangents = (
        torch.eye(dim, dtype=z.dtype, device=z.device).reshape(dim, *([1] * (z.ndim - 1)), dim).expand(-1, *z.shape)
    )
    return torch.func.vmap(lambda tangent: torch.func.jvp(step, (z,), (tangent,))[1], out_dims=z.ndim)(tangents)
