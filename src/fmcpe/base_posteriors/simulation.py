"""Batched simulation, in this process or on a Dask cluster, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from fmcpe._checks import CheckedSimulator, as_tensor
from fmcpe._random import derive, seeded


def simulate(
    simulator: Callable[[Tensor], Any],
    theta: Any,
    *,
    dask: Any = None,
    batch_size: int = 1000,
    seed: int | None = None,
    show_progress_bars: bool = True,
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

    Returns:
        x, (N, ...).

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
    if batch_size < 1:
        raise ValueError(f"Expected batch_size of at least 1, got {batch_size}. Try batch_size=100.")
    batches = theta.split(batch_size)
    # batches need different seeds even if the user gives none: all workers start from the same state
    start = int(torch.randint(2**31, ())) if seed is None else seed
    seeds = [derive(start, "simulate", k) for k in range(len(batches))]
    bar = tqdm(
        total=len(theta), desc="simulating", unit=" simulations", delay=2, disable=not show_progress_bars, leave=False
    )
    parts: list[Tensor] = [torch.empty(0)] * len(batches)
    with bar:
        if dask is None:
            for k, batch in enumerate(batches):
                parts[k] = _batch(simulator, batch, seeds[k])
                bar.update(len(batch))
            return torch.cat(parts)
        from distributed import as_completed

        from fmcpe._cluster import connect

        client = connect(dask)
        try:
            futures = {
                client.submit(_batch, simulator, batch, seeds[k], pure=False): k for k, batch in enumerate(batches)
            }
            for future in as_completed(futures):
                k = futures[future]
                parts[k] = future.result()
                bar.update(len(batches[k]))
                future.release()
        finally:
            if client is not dask:
                client.close()
    return torch.cat(parts)


def _batch(simulator: Callable[[Tensor], Any], theta: Tensor, seed: int | None) -> Tensor:
    with seeded(seed):
        return CheckedSimulator(simulator, None)(theta)
