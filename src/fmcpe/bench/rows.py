"""What a store keeps of a unit."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fmcpe.bench.sqlite_errors import damaged
from fmcpe.bench.units import Unit

STATUSES = ("waiting", "running", "done", "failed")
FAR = 1e11
"""A time after all others, in seconds."""


@dataclass(frozen=True)
class Result:
    """The result of a unit."""

    metrics: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One unit with its state and results."""

    unit: Unit
    status: str
    seconds: float | None
    metrics: dict[str, Any]
    versions: dict[str, str]
    traceback: str | None
    attempts: int

    @classmethod
    def read(cls, found: sqlite3.Row, path: Path) -> Row:
        """The row of a store at `path`, unless the disk has changed it."""
        if is_rotten(found):
            raise damaged(path, f"the row of unit {found[0]!r} was changed")
        metrics, versions = (json.loads(found[name] or "{}") for name in ("metrics", "versions"))
        unit = Unit.from_json(found["unit"])
        return cls(unit, found["status"], found["seconds"], metrics, versions, found["traceback"], found["attempts"])


def is_rotten(found: sqlite3.Row) -> bool:
    """Whether a unit is not the one that its id is the hash of, or its state or results are not as they are written."""
    try:
        metrics, versions = (json.loads(found[name] or "{}") for name in ("metrics", "versions"))
        times = [found[name] for name in ("started", "finished", "seconds")]
        whole = (
            isinstance(metrics, dict)
            and not any(isinstance(value, list | dict) for value in versions.values())
            and all(isinstance(value, int | float | None) for value in times)
            and isinstance(found["attempts"], int)
            and isinstance(found["traceback"], str | None)
            and found["status"] in STATUSES
        )
        return not whole or hashlib.sha256(found["unit"].encode()).hexdigest()[:16] != found["id"]
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return True


def is_rotten_owner(found: sqlite3.Row) -> bool:
    """Whether a run on the directory is not as it is written."""
    try:
        times = [found["heartbeat"], found["started"], 0 if found["ended"] is None else found["ended"]]
        texts = [found[name] for name in ("id", "host", "born", "command")]
        whole = all(isinstance(text, str) for text in texts) and isinstance(found["pid"], int)
        return not whole or not all(0 <= value < FAR for value in times)
    except (LookupError, TypeError):
        return True
