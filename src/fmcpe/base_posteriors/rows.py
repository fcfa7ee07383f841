"""Simulations as rows of θ and x to train on: kept in memory, simulated on demand, or given; without those that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sbi.utils.sbiutils import within_support
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._checks import as_tensor, finite_rows, parameter_dim
from fmcpe._options import check_whole
from fmcpe._progress import Progress
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.simulation import simulate as run_simulator


class SimulationsOnDemand:
    """Simulations at θ (N, p) that do not fit into memory: indexed like a tensor (N, *shape), simulated at each access.

    Rows at which the simulator fails are NaN.
    """

    max_bytes = 2**30
    """Simulations that need at most this much memory are kept in a tensor instead."""

    def __init__(self, simulator: CheckedSimulator, theta: Tensor, shape: torch.Size) -> None:
        self.simulator, self.theta = simulator, theta
        self.shape, self.ndim = torch.Size((theta.shape[0], *shape)), 1 + len(shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self.simulator.attempt(self.theta[rows], len(self.theta))[0]

    def to(self, device: str) -> SimulationsOnDemand:
        return SimulationsOnDemand(self.simulator, self.theta.to(device), self.shape[1:])


Rows = Tensor | SimulationsOnDemand
"""Data, one row per simulation."""


def that_worked(rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows whose simulation succeeded; few fail, so at least one is left with near certainty."""
    ok = finite_rows(x)
    return (rows, x) if bool(ok.all()) else (rows[ok], x[ok])


def simulate(
    simulator: Callable[[Tensor], Any] | None,
    prior: Distribution,
    number: int,
    given: tuple[Any, Any] | None,
    dask: Any = None,
    show_progress_bars: bool = False,
    max_failed: float = 0.1,
    batch_size: int | None = None,
    timeout: float | None = None,
) -> tuple[Tensor, Rows]:
    """Simulations at draws of the prior, or the given ones: θ (N, p) and x (N, ...), without those that failed."""
    if given is not None:
        return given_simulations(given, prior, max_failed)
    if simulator is None:
        raise ValueError("Expected a simulator or simulations, got neither. Pass simulator= or simulations=(theta, x).")
    check_whole("num_simulations", number, 100, 10_000)
    theta = prior.sample(torch.Size((int(number),))).to(torch.float32)
    if dask is not None:
        size = batch_size or max(1, number // 200)
        x = run_simulator(
            simulator, theta, dask=dask, batch_size=size, show_progress_bars=show_progress_bars, max_failed=max_failed,
            simulation_timeout=timeout,
        )  # fmt: skip
        return that_worked(theta, x)
    checked = CheckedSimulator(simulator, None, max_failed, batch_size, timeout)
    with seeded(0):  # a call for the shape only must not consume random numbers
        shape = checked.shape_of_one(theta)
    if 4 * number * shape.numel() > SimulationsOnDemand.max_bytes:
        return theta, SimulationsOnDemand(checked, theta, shape)
    with Progress(number, "simulating", show_progress_bars) as progress, progress.part(number):
        x, ok = checked.attempt(theta)
    checked.warn(stacklevel=4)
    return (theta, x) if bool(ok.all()) else (theta[ok], x[ok])


def refuse_no_pair(given: Any) -> None:
    """Refuse simulations that are not two arrays: a third would be left out, and rows of a single one taken for θ and x."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        what = f"{len(given)} of them" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
        raise TypeError(f"Expected simulations to be two arrays, (theta, x), got {what}. Pass simulations=(theta, x).")


def given_simulations(given: tuple[Any, Any], prior: Distribution, max_failed: float) -> tuple[Tensor, Tensor]:
    """Existing simulations, checked."""
    refuse_no_pair(given)
    theta, x = as_tensor(given[0], "theta", rows=20), as_tensor(given[1], "x", finite=False, rows=20)
    dim = parameter_dim(prior)
    theta = theta[:, None] if theta.ndim == 1 and dim == 1 else theta
    x = x[:, None] if x.ndim == 1 else x
    if theta.ndim != 2 or theta.shape[1] != dim or x.ndim < 2 or theta.shape[0] != x.shape[0]:
        raise ValueError(
            f"Expected simulations=(theta, x) of shapes (N, {dim}) and (N, ...) with the same N, got "
            f"{tuple(theta.shape)} and {tuple(x.shape)}. Pass one row per simulation, one column per parameter."
        )
    if len(x) == 0:
        raise ValueError("Expected 20 or more simulations, got none. Pass more, better thousands, or a simulator.")
    outside = int((~within_support(prior, theta)).sum())
    if outside:
        raise ValueError(
            f"Expected simulations at theta inside the prior's support, got {outside} of {len(theta)} rows "
            "outside. Pass the prior that the simulations came from."
        )
    # what the simulator returned is at hand: the same count, share and warning as if it ran now
    checked = CheckedSimulator(lambda _: x, None, max_failed)
    x, ok = checked.attempt(theta)
    checked.warn(stacklevel=5)
    if int(ok.sum()) < 20:
        raise ValueError(
            f"Expected 20 or more simulations, got {int(ok.sum())}{'' if bool(ok.all()) else ' that succeeded'}. Pass more, "
            "better thousands, or a simulator."
        )
    return (theta, x) if bool(ok.all()) else (theta[ok], x[ok])
