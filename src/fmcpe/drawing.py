"""Drawing many rows in pieces of bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

CHUNK_NUMBERS = 2_000_000
"""Numbers of x̃ held at once: bounds memory, whatever is asked for."""


def rows_at_once(numbers: int) -> int:
    """How many x̃ of so many numbers each are drawn at a time."""
    return min(4_000, max(1, CHUNK_NUMBERS // numbers))


def in_chunks(
    draw: Callable[[Tensor, int], Tensor], y: Tensor, copies: int, limit: int, show_progress_bars: bool
) -> Tensor:
    """`copies` consecutive rows for each row of y, never more than `limit` at a time.

    Args:
        draw: Rows of y, and how many copies of each, to as many draws.
        y: Prepared observations, (B, ...).
        copies: Draws of each; at least one.
        limit: Draws made at once.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
    """
    per_chunk, chunks = max(1, limit // copies), []
    spans = [min(limit, copies - start) for start in range(0, copies, limit)]
    bar = tqdm(total=y.shape[0] * copies, desc="drawing", delay=2, disable=not show_progress_bars, leave=False)
    with bar:
        for rows in y.split(per_chunk):
            parts = []
            for span in spans:
                parts.append(draw(rows, span).unflatten(0, (rows.shape[0], span)))
                bar.update(rows.shape[0] * span)
            chunks.append(torch.cat(parts, dim=1).flatten(0, 1))
    return torch.cat(chunks)


class Picker:
    """Picks members of a pool, by the weights of each observation.

    Args:
        weights: Of each member for each observation, (U, M).
    """

    def __init__(self, weights: Tensor) -> None:
        self.ladder = weights.cumsum(1)

    def __call__(self, times: int) -> Tensor:
        """Members for each observation, (U, times)."""
        number, members = self.ladder.shape
        height = torch.rand(number, times, device=self.ladder.device) * self.ladder[:, -1:]
        return torch.searchsorted(self.ladder, height, right=True).clamp_max(members - 1)


def kth_largest(values: Tensor, k: int) -> Tensor:
    """Of each row of values (U, M), the smallest of its k largest: (U, 1)."""
    place = values.shape[1] - k
    if values.device.type != "cpu":
        return values.topk(k, dim=1).values[:, -1:]
    # a fifth of the time that torch takes
    return torch.from_numpy(np.partition(values.detach().numpy(), place, axis=1)[:, place : place + 1])
