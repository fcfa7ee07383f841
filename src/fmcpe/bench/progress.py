"""A progress line with an estimate of the remaining time; silent unless the stream is a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from fmcpe.bench.store import Row


class Progress:
    """The progress line.

    Args:
        title: Title of the run.
        stream: Output stream; standard error by default.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self.title, self.stream = title, stream or sys.stderr
        self.live = self.stream.isatty()
        self._last, self._width = 0.0, 0

    def show(self, rows: Callable[[], Sequence[Row]], running: int, slots: int) -> None:
        """Redraw the line at most twice a second; `rows` is called only then."""
        if not self.live or time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        # a wrapped line could not be overwritten
        text = line(self.title, rows(), running, slots)[: shutil.get_terminal_size().columns - 1]
        self.stream.write("\r" + text.ljust(self._width))
        self.stream.flush()
        self._width = len(text)

    def say(self, text: str) -> None:
        """Print a permanent line, also if the stream is not a terminal."""
        self.stream.write(("\r" + " " * self._width + "\r" if self.live else "") + text + "\n")
        self.stream.flush()
        self._width = 0

    def close(self) -> None:
        """End the line."""
        if self.live and self._width:
            self.stream.write("\n")
            self.stream.flush()


def line(title: str, rows: Sequence[Row], running: int, slots: int, now: float | None = None) -> str:
    """The text of the line."""
    done, failed = (sum(row.status == status for row in rows) for status in ("done", "failed"))
    left = len(rows) - done - failed
    parts = [f"{done} of {len(rows)} done", f"{running} running", f"{left - running} waiting"]
    if failed:
        parts.append(f"{failed} failed")
    seconds = remaining(rows, slots)
    if left and seconds is not None:
        end = time.strftime("%H:%M", time.localtime((now or time.time()) + seconds))
        parts.append(f"{duration(seconds)} left, ends about {end}")
    return f"{title}: " + ", ".join(parts)


def remaining(rows: Sequence[Row], slots: int, seen: Iterable[Row] | None = None) -> float | None:
    """Estimated seconds until all units are done, from the times of similar ones; None if there are none.

    Args:
        rows: The units.
        slots: Number of units that run at the same time.
        seen: Units to estimate from; `rows` if None.
    """
    known: dict[tuple, list[float]] = {}
    for row in rows if seen is None else seen:
        if row.status == "done" and row.seconds is not None:
            for key in _keys(row):
                known.setdefault(key, []).append(row.seconds)
    total = 0.0
    for row in rows:
        if row.status in ("waiting", "running"):
            alike = next((known[key] for key in _keys(row) if key in known), None)
            if alike is None:
                return None
            total += sum(alike) / len(alike)
    return total / max(1, slots)


def _keys(row: Row) -> list[tuple]:
    """Groups of similar units, from the most specific to all of the kind; timing is a separate kind."""
    unit = row.unit
    kind = (unit.kind, unit.evaluation.timed)
    return [(*kind, unit.task, unit.method, unit.pairs), (*kind, unit.task, unit.method), (*kind, unit.method), kind]


def duration(seconds: float) -> str:
    """Duration as text, such as "5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
