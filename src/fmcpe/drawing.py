"""Sampling in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm.auto import tqdm


def in_chunks(
    draw: Callable[[Tensor, int], Tensor], y: Tensor, n: int, limit: int, show_progress_bars: bool, whole: bool = False
) -> Tensor:
    """Draws for each row of y, (B, n, p), at most `limit` at a time.

    Args:
        draw: Observations (B, ...) and n, to draws (B, n, p).
        y: Observations, (B, ...).
        n: Draws per observation, at least one.
        limit: Draws made at once.
        show_progress_bars: Show progress after two seconds.
        whole: Never split the batch of observations, because the draws depend on all of them.
    """
    per_chunk = len(y) if whole else max(1, limit // n)
    spans = [min(limit, n - start) for start in range(0, n, limit)]
    bar = tqdm(total=len(y) * n, desc="drawing", delay=2, disable=not show_progress_bars, leave=False)
    chunks = []
    with bar:
        for rows in y.split(per_chunk):
            parts = []
            for span in spans:
                parts.append(draw(rows, span))
                bar.update(len(rows) * span)
            chunks.append(torch.cat(parts, dim=1))
    return torch.cat(chunks)
