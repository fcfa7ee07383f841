"""Torch's settings of the process: what the library needs while it works, and the caller's own around it."""

from __future__ import annotations

import warnings

import torch

from fmcpe import _turns
from fmcpe._errors import FMCPEWarning
from fmcpe._interrupts import Restoring

LARGE = 4096
"""Resource limit: numbers in one observation from which on several threads pay, as for images; below, they cost more time."""


class _Caller:
    """The caller's default dtype and number of threads, while the library's own are in force."""

    settings: tuple[torch.dtype, int] | None = None


def _settings() -> tuple[torch.dtype, int]:
    return torch.get_default_dtype(), torch.get_num_threads()


def _set(dtype: torch.dtype, threads: int) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _restore(settings: tuple[torch.dtype, int], callers: tuple[torch.dtype, int] | None) -> None:
    _set(*settings)
    _Caller.settings = callers


class settled(Restoring):  # noqa: N801
    """Single precision without autocast, gradients possible, one thread where observations are small; then the caller's.

    `numbers` is the size of one observation; None leaves the number of threads alone.
    """

    def __init__(self, numbers: int | None = None) -> None:
        super().__init__()
        self.numbers = numbers

    def _begin(self) -> None:
        _turns.take()
        self._undo.callback(_turns.give)
        before = _settings()
        self._undo.callback(_restore, before, _Caller.settings)
        _Caller.settings = _Caller.settings or before
        if torch.is_inference_mode_enabled():
            self._undo.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._undo.enter_context(torch.autocast(device, enabled=False))
        small = self.numbers is not None and self.numbers < LARGE
        _set(torch.float32, 1 if small else before[1])


class user_code(_turns.lent):  # noqa: N801
    """A user's function runs: with the caller's dtype and threads; without gradients, unless they are asked for."""

    def __init__(self, gradients: bool = False) -> None:
        super().__init__()
        self.gradients = gradients

    def _begin(self) -> None:
        self._undo.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        torch.set_grad_enabled(self.gradients)
        self._undo.callback(_restore, _settings(), _Caller.settings)
        if _Caller.settings is not None:
            _set(*_Caller.settings)
            _Caller.settings = None
        super()._begin()  # last, so that the turn is back before the settings are


class quiet(Restoring):  # noqa: N801
    """Without warnings of the library. Filters belong to the process: blocks of several threads run one after another."""

    def _begin(self) -> None:
        _turns.take()
        self._undo.callback(_turns.give)
        self._undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", FMCPEWarning)
