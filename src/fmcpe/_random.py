"""Seeds without global state: every draw of the library happens inside `seeded`."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Run a block with seeded generators, then restore the caller's state.

    Users' simulators draw from torch's, numpy's or Python's global generator, so all three are set and restored. With
    ``seed=None`` the block draws from the global generators as they stand.
    """
    if seed is None:
        yield
        return
    if not isinstance(seed, int | np.integer):
        raise TypeError(f"Expected seed to be a whole number or None, got {seed!r}. Try seed=0.")
    seed = int(seed)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def derive(seed: int | None, *streams: int | str) -> int | None:
    """The seed of a named stream of `seed`; streams are independent and reproducible."""
    if seed is None:
        return None
    words = [seed % 2**32] + [zlib.crc32(str(s).encode()) for s in streams]
    return int(np.random.SeedSequence(words).generate_state(1)[0])
