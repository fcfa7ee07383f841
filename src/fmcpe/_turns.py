"""One thread at a time: who may use the process's random generators and torch's global settings.

sbi, zuko and users' simulators draw from the global generators, so two seeded sections cannot run side by side. A thread takes
its turn with `take`, as often as it likes, and gives it back with `give`.

A simulator may itself start threads that call this library, and wait for them. They would wait for ever for the turn of the
thread that waits for them. So a thread whose simulator runs (`lent`), and which waits in one of Python's own waiting
functions for a second, lends its turn to the next in line.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from fmcpe._interrupts import Restoring, deliver

PATIENCE = 1.0
"""Seconds that a thread waits inside its simulator before its turn is lent."""
_WAITS = ("threading.py", "queue.py", "selectors.py", "multiprocessing", "concurrent", "asyncio", "joblib")


class _Turn:
    """A thread's turn: how often it was taken, and in how many calls of user code."""

    def __init__(self, thread: int) -> None:
        self.threads, self.level, self.lent, self.free = {thread}, 0, 0, 0


_turns: list[_Turn] = []
"""The last one is in use; those before have lent it."""
_changed = threading.Condition()


def take() -> None:
    """Wait for the turn; an interrupt ends the wait."""
    me, since = threading.get_ident(), time.monotonic()
    with _changed:
        while True:
            if not _turns or (not _known(me) and _is_lent(_turns[-1], time.monotonic() - since)):
                _turns.append(_Turn(me))
            if me in _turns[-1].threads:
                _turns[-1].level += 1
                return
            if not _blocked(_turns[-1]):
                since = time.monotonic()
            _changed.wait(0.05)
            deliver()


def give() -> None:
    """Give the turn back; without effect if this thread has none."""
    me = threading.get_ident()
    with _changed:
        mine = [turn for turn in _turns if me in turn.threads]
        if mine:
            mine[-1].level -= 1
            if mine[-1].level <= 0:
                _turns.remove(mine[-1])
                _changed.notify_all()


def _is_lent(turn: _Turn, waited: float) -> bool:
    return turn.free > 0 or (turn.lent > 0 and waited > PATIENCE)


def _known(thread: int) -> bool:
    return any(thread in turn.threads for turn in _turns)


def _blocked(turn: _Turn) -> bool:
    """Whether all threads of a turn wait, by the functions that they are in."""
    frames = sys._current_frames()
    tops = [frames[thread].f_code.co_filename for thread in turn.threads if thread in frames]
    return all(any(name in top for name in _WAITS) for top in tops)


class lent(Restoring):  # noqa: N801
    """User code runs: the turn may be lent while it waits; `at_once` where it is known to do nothing but wait."""

    def __init__(self, at_once: bool = False) -> None:
        super().__init__()
        self.at_once = at_once
        self.turn: _Turn | None = None

    def _begin(self) -> None:
        me = threading.get_ident()
        with _changed:
            self.turn = next((turn for turn in reversed(_turns) if me in turn.threads), None)
            if self.turn is not None:
                self.turn.lent += 1
                self.turn.free += self.at_once
                self._undo.callback(self._regain, self.turn)
                _changed.notify_all()

    def _regain(self, turn: _Turn) -> None:
        """Wait until the turn is in use again."""
        with _changed:
            turn.lent -= 1
            turn.free -= self.at_once
            while turn in _turns and _turns[-1] is not turn:
                _changed.wait(0.05)


def join(turn: _Turn | None) -> None:
    """This thread works for the one whose turn it is."""
    with _changed:
        if turn is not None:
            turn.threads.add(threading.get_ident())


def leave(turn: _Turn | None) -> None:
    """This thread no longer does."""
    with _changed:
        if turn is not None:
            turn.threads.discard(threading.get_ident())


def _after_fork() -> None:
    """Only the thread that forked lives on in the child."""
    global _changed  # noqa: PLW0603
    _changed = threading.Condition()
    _turns[:] = [turn for turn in _turns if threading.get_ident() in turn.threads]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
