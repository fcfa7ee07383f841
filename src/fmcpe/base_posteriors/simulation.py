"""Batched simulation, in this process or on a Dask cluster, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fmcpe._checks import as_tensor, finite_rows
from fmcpe._options import check_whole
from fmcpe._progress import Progress
from fmcpe._random import derive, seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe._turns import lent


def simulate(
    simulator: Callable[[Tensor], Any],
    theta: Any,
    *,
    dask: Any = None,
    batch_size: int = 1000,
    seed: int | None = None,
    show_progress_bars: bool = True,
    max_failed: float = 0.1,
    simulation_timeout: float | None = None,
) -> Tensor:
    """Simulate at each row of `theta`, for ``train_npe(None, prior, simulations=(theta, x))``.

    Each batch has its own seed: the same `seed` and `batch_size` give the same simulations on any machine, in any
    order.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``; cloudpickle has to serialise it for a cluster.
        theta: Physical parameters, (N, p).
        dask: Address of a Dask scheduler, or a `distributed.Client`; None simulates in this process. If a worker dies,
            another one simulates its batch.
        batch_size: Rows per call of the simulator, and per task of the cluster; small for slow simulators.
        seed: Makes the noise reproducible; torch's generator is left as it was.
        show_progress_bars: Show progress after two seconds.
        max_failed: Share of the rows that may fail, by NaN, infinite values or an error; more are an error.
        simulation_timeout: Seconds that one call of the simulator may take; more are an error.

    Returns:
        x, (N, ...); rows that failed are NaN, with a warning, and `train_npe` drops them.

    Example:
        >>> theta = prior.sample((2000,))
        >>> x = fmcpe.simulate(simulator, theta, batch_size=500, seed=0)
        >>> x.shape
        torch.Size([2000, 1])
        >>> bool((x == fmcpe.simulate(simulator, theta, batch_size=500, seed=0)).all())
        True
    """
    theta = as_tensor(theta, "theta")
    if theta.ndim != 2 or len(theta) == 0:
        raise ValueError(
            f"Expected theta of shape (N, p), got {tuple(theta.shape)}. Pass one row per simulation, one column per "
            "parameter."
        )
    check_whole("batch_size", batch_size, 1, 100)
    batches = theta.split(int(batch_size))
    # batches need different seeds even if the user gives none: all workers start from the same state
    with seeded(None):
        start = int(torch.randint(2**31, ())) if seed is None else seed
    seeds = [derive(start, "simulate", k) for k in range(len(batches))]
    results = map if dask is None else partial(_on_cluster, dask)
    parts, counts = list[Tensor](), CheckedSimulator(simulator, None, max_failed, timeout=simulation_timeout)
    with Progress(len(theta), "simulating", show_progress_bars) as bar:
        for part, first in results(partial(_batch, simulator, timeout=simulation_timeout), batches, seeds):
            counts.add(len(part), int((~finite_rows(part)).sum()), first, len(theta))
            parts.append(part)
            bar.update(len(part))
    counts.warn()
    found = [part.shape[1:] for part in parts if bool(finite_rows(part).any())]
    shape, other = found[0], next((each for each in found if each != found[0]), None)
    if other is not None:
        raise ValueError(
            f"Expected simulations of one shape, got {tuple(shape)} from one batch and {tuple(other)} from another. Return "
            "rows of the same shape at every call."
        )
    # a batch that failed as a whole does not know its shape
    return torch.cat(
        [part if part.shape[1:] == shape else part.new_full((len(part), *shape), torch.nan) for part in parts]
    )


def _batch(
    simulator: Callable[[Tensor], Any], theta: Tensor, seed: int | None, timeout: float | None = None
) -> tuple[Tensor, str]:
    """Simulations, NaN where they failed, and a description of the first failure."""
    checked = CheckedSimulator(simulator, None, timeout=timeout)
    checked.patience = len(theta)  # θ may be sorted, and all of one batch fail
    with seeded(seed):
        return checked.try_each(theta)[0], checked.first


def _on_cluster(
    dask: Any, function: Callable[..., tuple[Tensor, str]], *arguments: Sequence[Any]
) -> Iterator[tuple[Tensor, str]]:
    """`map` on a Dask cluster."""
    from fmcpe._cluster import connect

    client = connect(dask)
    try:
        for future in client.map(function, *arguments, pure=False):
            with lent(at_once=True):  # workers may be threads of this process
                result = future.result()
            yield result
            future.release()
    finally:
        if client is not dask:
            client.close()
