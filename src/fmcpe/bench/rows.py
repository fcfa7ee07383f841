"""What a store keeps of a unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
