"""Maximisation of a density without derivatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fmcpe._progress import Progress


def cross_entropy_search(
    log_density: Callable[[Tensor], Tensor], z: Tensor, number: int, rounds: int, show_progress_bars: bool = False
) -> Tensor:
    """The best point found by the cross-entropy method, (D,).

    From starting points z (N, D), each round keeps the best fifth of the points, fits a Gaussian to them and draws the next
    `number` points from it. `log_density` maps (N, D) to (N,).
    """
    dim, elite, values = z.shape[1], max(2, number // 5), log_density(z)
    with Progress(rounds, "maximising", show_progress_bars) as progress:
        for _ in range(rounds):
            best = values.argsort(descending=True)[:elite]
            z, values = z[best], values[best]
            # Gaussian mixtures of the deviations have their covariance, singular or not, without a Cholesky factor
            off = torch.cat([(z - z.mean(0)) / max(1, len(z) - 1) ** 0.5, 1e-5 * torch.eye(dim, device=z.device)])
            fresh = z.mean(0) + torch.randn(number, len(off), device=z.device) @ off
            z, values = torch.cat([z, fresh]), torch.cat([values, log_density(fresh)])
            progress.update()
    return z[values.argmax()]
