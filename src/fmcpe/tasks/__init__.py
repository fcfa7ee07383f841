"""Benchmark tasks: a misspecified simulator, the real process, and the reference posterior if it is known.

task = tasks.get("pendulum")
theta, y = task.calibration_set(50, seed=0)
task.reference_posterior(y[0]).sample((1000,), seed=0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmcpe.tasks.base import Reference, Task
    from fmcpe.tasks.downloads import download
    from fmcpe.tasks.gaussian import Gaussian
    from fmcpe.tasks.gaussian_ci import GaussianCI
    from fmcpe.tasks.gaussian_prior import GaussianPrior
    from fmcpe.tasks.light_tunnel import LightTunnel
    from fmcpe.tasks.offset import Offset
    from fmcpe.tasks.pendulum import Pendulum
    from fmcpe.tasks.wind_tunnel import WindTunnel
    from fmcpe.tasks.wind_tunnel_prior import WindTunnelPrior

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
    "find",
    "get",
    "names",
]

# Tasks are imported on use: torch and sbi take seconds, and the command line needs only the names.
_TASKS = {
    "gaussian": "Gaussian",
    "pendulum": "Pendulum",
    "wind-tunnel": "WindTunnel",
    "light-tunnel": "LightTunnel",
    "offset": "Offset",
    "gaussian-prior": "GaussianPrior",
    "wind-tunnel-prior": "WindTunnelPrior",
    "gaussian-ci": "GaussianCI",
}
_HOMES = {cls: task.replace("-", "_") for task, cls in _TASKS.items()} | {
    "Reference": "base",
    "Task": "base",
    "download": "downloads",
}


def names() -> tuple[str, ...]:
    """Names of the tasks."""
    return tuple(_TASKS)


def find(name: str) -> type[Task]:
    """The class of the task of that name."""
    if name.startswith("zoo/"):
        from fmcpe.tasks.zoo.problem import Problem

        importlib.import_module("fmcpe.tasks.zoo").split(name)  # raises an error for an unknown name
        return Problem
    if name not in _TASKS:
        known = ", ".join(map(repr, _TASKS))
        raise ValueError(
            f"Expected one of {known}, or a problem of fmcpe.tasks.zoo.names(), got {name!r}. "
            "Try fmcpe.tasks.get('pendulum')."
        )
    return __getattr__(_TASKS[name])


def get(name: str, **options: Any) -> Task:
    """Build the task of that name.

    Args:
        name: One of `names()`, or of `fmcpe.tasks.zoo.names()`.
        **options: Keyword arguments of the task's class, such as ``data="chambers"`` for ``"wind-tunnel"``.

    Example:
        >>> from fmcpe import tasks
        >>> task = tasks.get("pendulum")
        >>> theta, y = task.calibration_set(30, seed=0)
        >>> theta.shape, y.shape
        (torch.Size([30, 2]), torch.Size([30, 200]))
    """
    if name.startswith("zoo/"):
        from fmcpe.tasks import zoo

        return zoo.get(name, **options)
    return find(name)(**options)


def __getattr__(name: str) -> Any:
    if name == "zoo":
        return importlib.import_module("fmcpe.tasks.zoo")
    if name in _HOMES:
        return getattr(importlib.import_module(f"fmcpe.tasks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fmcpe.tasks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
