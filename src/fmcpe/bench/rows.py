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
            raise damaged(path, f"the row of unit {found['id']!r} was changed")
        metrics, versions = (json.loads(found[name] or "{}") for name in ("metrics", "versions"))
        unit = Unit.from_json(found["unit"])
        return cls(unit, found["status"], found["seconds"], metrics, versions, found["traceback"], found["attempts"])


def is_rotten(found: sqlite3.Row) -> bool:
    """Whether a unit is not the one that its id is the hash of, or its results are no JSON."""
    try:
        for name in ("metrics", "versions"):
            json.loads(found[name] or "{}")
        return hashlib.sha256(found["unit"].encode()).hexdigest()[:16] != found["id"]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return True
