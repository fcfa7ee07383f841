"""Benchmark tasks: a cheap simulator, the real process it gets wrong, and the truth where it is known.

task = tasks.get("pendulum")
theta, y = task.calibration_set(50, seed=0)
task.reference_posterior(y[0]).sample((1000,), seed=0)
"""

from __future__ import annotations

from typing import Any

from fmcpe.tasks.base import Reference, Task
from fmcpe.tasks.download import download
from fmcpe.tasks.gaussian import Gaussian
from fmcpe.tasks.gaussian_ci import GaussianCI
from fmcpe.tasks.gaussian_prior import GaussianPrior
from fmcpe.tasks.light_tunnel import LightTunnel
from fmcpe.tasks.offset import Offset
from fmcpe.tasks.pendulum import Pendulum
from fmcpe.tasks.wind_tunnel import WindTunnel, WindTunnelPrior

__all__ = [
    "Gaussian",
    "GaussianCI",
    "GaussianPrior",
    "LightTunnel",
    "Offset",
    "Pendulum",
    "Reference",
    "Task",
    "WindTunnel",
    "WindTunnelPrior",
    "download",
    "get",
    "names",
]

_TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (Gaussian, Pendulum, WindTunnel, LightTunnel, Offset, GaussianPrior, WindTunnelPrior, GaussianCI)
}


def names() -> tuple[str, ...]:
    """The names that `get` knows."""
    return tuple(_TASKS)


def get(name: str, **options: Any) -> Task:
    """Build the task of that name.

    Args:
        name: One of `names()`.
        **options: Keyword arguments of the task's class, such as ``data="chambers"`` for ``"wind-tunnel"``.
    """
    if name not in _TASKS:
        known = ", ".join(map(repr, _TASKS))
        raise ValueError(f"There is no task named {name!r}; the tasks are {known}: pass one of these.")
    return _TASKS[name](**options)
