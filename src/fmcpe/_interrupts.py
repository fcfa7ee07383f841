"""Context managers that an interrupt (SIGINT) cannot leave half done.

Python raises `KeyboardInterrupt` between any two instructions, also between those that restore a state. While one of these
context managers is open in the main thread, an interrupt that arrives inside of an entry or an exit waits for its end.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

_depth, _waiting = 0, False
_callers: Any = None


def _handle(signum: int, frame: FrameType | None) -> None:
    """The caller's handler, unless an entry or an exit is under way."""
    global _waiting
    place = frame
    while place is not None:
        if place.f_code in _CRITICAL:
            _waiting = True
            return
        place = place.f_back
    _callers(signum, frame)


def interrupted() -> bool:
    """Whether an interrupt waits for the end of the entry that runs now."""
    return _waiting and threading.current_thread() is threading.main_thread()


class Restoring:
    """A context manager made of `_begin` and `_end`; `_end` also undoes a `_begin` that failed on its way."""

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        _install()
        try:
            self._begin()
            _deliver()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        finally:
            _uninstall()


_CRITICAL = frozenset({Restoring.__enter__.__code__, Restoring.__exit__.__code__})


def _install() -> None:
    global _depth, _callers
    if threading.current_thread() is not threading.main_thread():
        return
    if _depth == 0:
        found = signal.getsignal(signal.SIGINT)
        if callable(found):  # not where interrupts are ignored, or end the process
            _callers = found
            signal.signal(signal.SIGINT, _handle)
    _depth += 1


def _uninstall() -> None:
    global _depth
    if threading.current_thread() is not threading.main_thread():
        return
    _depth -= 1
    if _depth == 0 and signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, _callers)
    _deliver()


def _deliver() -> None:
    """Hand an interrupt that waited to the caller's handler."""
    global _waiting
    if interrupted():
        _waiting = False
        _callers(signal.SIGINT, None)
