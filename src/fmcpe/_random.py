"""Seeds without global state: every draw of the library happens inside `seeded`."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import torch

from fmcpe import _turns
from fmcpe._interrupts import Restoring


class seeded(Restoring):  # noqa: N801
    """Run a block with seeded generators, then restore the caller's state.

    Users' simulators draw from torch's, numpy's or Python's global generator, so all three are set and restored. With
    ``seed=None`` the block draws from the global generators as they stand. Blocks of several threads run one after another
    (`fmcpe._turns`), seeded or not: each has the generators for itself.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = as_seed(seed)

    def _begin(self) -> None:
        _turns.take()
        self._undo.callback(_turns.give)
        if self.seed is None:
            return
        self._undo.callback(torch.set_rng_state, torch.get_rng_state())
        if torch.cuda.is_available():
            self._undo.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        self._undo.callback(np.random.set_state, np.random.get_state())
        self._undo.callback(random.setstate, random.getstate())
        torch.manual_seed(self.seed)
        np.random.seed(self.seed % 2**32)
        random.seed(self.seed)


def as_seed(seed: Any) -> int | None:
    """A seed that torch takes, or None."""
    if seed is None:
        return None
    if not isinstance(seed, int | np.integer):
        raise TypeError(f"Expected seed to be a whole number or None, got {seed!r}. Try seed=0.")
    if not -(2**63) <= int(seed) < 2**64:
        raise ValueError(f"Expected seed to be at least -2**63 and below 2**64, got {seed}. Try seed=0.")
    return int(seed)


def derive(seed: int | None, *streams: int | str) -> int | None:
    """The seed of a named stream of `seed`; streams are independent and reproducible."""
    seed = as_seed(seed)
    if seed is None:
        return None
    words = [seed % 2**32] + [zlib.crc32(str(s).encode()) for s in streams]
    return int(np.random.SeedSequence(words).generate_state(1)[0])
