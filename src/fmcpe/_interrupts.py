"""Context managers that an interrupt (SIGINT) cannot leave half done.

Python raises `KeyboardInterrupt` between any two instructions, also between those that restore a state. While one of these
context managers is open in the main thread, an interrupt that arrives inside of an entry or an exit waits for its end.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any

from typing_extensions import Self


class _State:
    """How many context managers are open, whether an interrupt waits, and the caller's handler."""

    depth, waiting = 0, False
    handler: Any = None


def _handle(signum: int, frame: FrameType | None) -> None:
    """The caller's handler, unless an entry or an exit is under way."""
    place = frame
    while place is not None:
        if place.f_code in _CRITICAL:
            _State.waiting = True
            return
        place = place.f_back
    _State.handler(signum, frame)


class Restoring:
    """A context manager: each step of `_begin` registers what undoes it, also where a later one fails."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def _begin(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        _install()
        try:
            self._begin()
            deliver()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._undo.close()
        finally:
            _uninstall()


_CRITICAL = frozenset({Restoring.__enter__.__code__, Restoring.__exit__.__code__})


def _install() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if _State.depth == 0:
        found = signal.getsignal(signal.SIGINT)
        if callable(found):  # not where interrupts are ignored, or end the process
            _State.handler = found
            signal.signal(signal.SIGINT, _handle)
    _State.depth += 1


def _uninstall() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    _State.depth -= 1
    if _State.depth == 0 and signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, _State.handler)
    deliver()


def deliver() -> None:
    """Hand an interrupt that waited to the caller's handler."""
    if _State.waiting and threading.current_thread() is threading.main_thread():
        _State.waiting = False
        _State.handler(signal.SIGINT, None)
