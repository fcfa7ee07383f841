"""One progress bar per long step, with the time left; none for short steps, and none in logs.

A bar appears on a terminal or in a notebook after two seconds, and only if two more are to come. Steps inside of a step
move its bar and show none of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

_FORMAT = "{desc}: {percentage:3.0f} %|{bar}| {elapsed} elapsed, {remaining} left"
_outer: ContextVar[tuple[Progress, float, float] | None] = ContextVar("outer progress", default=None)
"""The bar of the running step, and its current part: start and amount."""


class _Bar(tqdm):
    """A tqdm bar that stays hidden where the step is nearly over."""

    seconds = 2.0
    """Time that must have passed, and time that must be left."""
    _seen = False

    def display(self, *args: Any, **options: Any) -> Any:
        if not self._seen:
            passed = self._time() - self.start_t
            left = passed * (self.total - self.n) / self.n if self.n else passed
            if passed < self.seconds or left < self.seconds:
                return None
            self._seen = True
        return super().display(*args, **options)


class Progress:
    """The progress of one step, a context manager: `total` is the amount of work, `text` its name, e.g. ``"simulating"``."""

    def __init__(self, total: float, text: str, show: bool = True) -> None:
        self.total, self.done, self._outer = total, 0.0, _outer.get()
        self._bar: tqdm | None = None
        if show and self._outer is None and total > 0:
            # disable=None: tqdm shows nothing where stderr is not a terminal
            self._bar = _Bar(
                total=total, desc=text, disable=None, delay=_Bar.seconds, leave=False, smoothing=0, bar_format=_FORMAT,
                mininterval=0.5, miniters=0,
            )  # fmt: skip

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, amount: float = 1.0) -> None:
        """Advance by `amount`."""
        self.done += amount
        self._move(self.done)

    @contextmanager
    def part(self, amount: float) -> Iterator[None]:
        """The block inside is `amount` of this step; its own progress moves this bar."""
        token = _outer.set((self, self.done, amount))
        try:
            yield
        finally:
            _outer.reset(token)
        self.update(amount)

    def _move(self, place: float) -> None:
        if self._bar is not None:
            self._bar.update(max(0.0, min(place, self.total) - self._bar.n))
        elif self._outer is not None and self.total > 0:
            outer, start, amount = self._outer
            outer._move(start + amount * min(1.0, place / self.total))


def advance(amount: float = 1.0) -> None:
    """Advance the running part by `amount`, in the units of its bar."""
    now = _outer.get()
    if now is not None:
        outer, start, size = now
        _outer.set((outer, start + amount, max(0.0, size - amount)))
        outer._move(start + amount)
