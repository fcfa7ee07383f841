"""Maximising a density that is cheap in batches and dear to differentiate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm.auto import tqdm


def cross_entropy_search(
    log_density: Callable[[Tensor], Tensor], z: Tensor, rounds: int, elite: int, show_progress_bars: bool = False
) -> Tensor:
    """The best point found by the cross-entropy method, (D,).

    Each round keeps the best points, fits a Gaussian to them, and draws the next round from it; as the best points close in
    on a maximum, so does the Gaussian.

    Args:
        log_density: (N, D) -> (N,).
        z: Starting points, (N, D); as many are drawn in each round.
        rounds: Rounds.
        elite: How many of the best points a Gaussian is fitted to.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
    """
    number, dim = z.shape
    values = log_density(z)
    for _ in tqdm(range(rounds), desc="maximising", delay=2, disable=not show_progress_bars, leave=False):
        best = values.argsort(descending=True)[:elite]
        z, values = z[best], values[best]
        covariance = torch.cov(z.T).reshape(dim, dim) + 1e-10 * torch.eye(dim, device=z.device)
        fresh = z.mean(0) + torch.randn(number, dim, device=z.device) @ torch.linalg.cholesky(covariance).T
        z, values = torch.cat([z, fresh]), torch.cat([values, log_density(fresh)])
    return z[values.argmax()]
