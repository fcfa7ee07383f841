"""Drawing many rows in pieces of bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm.auto import tqdm

CHUNK_NUMBERS = 2_000_000
"""Numbers of x̃ held at once: bounds memory, whatever is asked for."""


def rows_at_once(numbers: int) -> int:
    """How many x̃ of so many numbers each are drawn at a time."""
    return min(100_000, max(1, CHUNK_NUMBERS // numbers))


def in_chunks(
    draw: Callable[[Tensor, int], Tensor], y: Tensor, n: int, limit: int, show_progress_bars: bool, whole: bool = False
) -> Tensor:
    """Draws for each row of y, (B, n, p), never more than `limit` at a time.

    Args:
        draw: Observations (B, ...), and a number n, to draws (B, n, p).
        y: Observations.
        n: Draws of each; at least one.
        limit: Draws made at once.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
        whole: Whether the answer depends on which observations are asked about together: then they are.
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
