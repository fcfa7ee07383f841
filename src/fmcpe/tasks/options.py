"""Options of tasks: validation, and parsing from the command line.

A task's options are the arguments of its constructor, so its signature gives their names, types and defaults.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmcpe.tasks.base import Task


def finite(**values: float) -> None:
    """Raise an error for an option that is NaN or infinite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number, got {name}={value}. Pass {name}=1, for example.")


def not_negative(**values: float) -> None:
    """Raise an error for an option that is not a non-negative, finite number."""
    finite(**values)
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"Expected a number of at least 0, got {name}={value}. Pass {name}=0, for example.")


def positive(**values: float) -> None:
    """Raise an error for an option that is not a positive, finite number."""
    finite(**values)
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"Expected a positive number, got {name}={value}. Pass {name}=1, for example.")


def interval(name: str, bounds: tuple[float, float], *, may_be_a_point: bool = False) -> None:
    """Raise an error for a range that is not 0 <= low < high, or 0 <= low <= high if it may be a point."""
    low, high = bounds
    if not (0 <= low <= high < math.inf) or (low == high and not may_be_a_point):
        order = "0 <= low <= high" if may_be_a_point else "0 <= low < high"
        raise ValueError(
            f"Expected a finite range {order}, got {name}=({low}, {high}). Pass {name}=(0, 1), for example."
        )


def from_text(task: type[Task], settings: Iterable[str]) -> dict[str, Any]:
    """Options of a task from ``name=value`` texts.

    Args:
        task: The task's class.
        settings: Such as ``"tau=0.5"`` or ``"omega_range=0,2"``.
    """
    readers = _readers(task)
    options = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"Expected name=value, got option {setting!r} without a value. Type {setting}=VALUE.")
        if name not in readers:
            known = ", ".join(f"{option} ({shown})" for option, (shown, _) in readers.items())
            raise ValueError(
                f"Expected an option of task {task.name!r}, got {name!r}. "
                + (f"Its options, with their defaults, are {known}." if known else "It has no options: leave it out.")
            )
        shown, read = readers[name]
        try:
            options[name] = read(text)
        except ValueError:
            raise ValueError(
                f"Expected a value like {shown} for option {name}, got {text!r}. Type {name}={shown}."
            ) from None
    return options


def _readers(task: type[Task]) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """For each option that the command line can set: its default as text, and its parser."""
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {}
    for name, parameter in inspect.signature(task, eval_str=True).parameters.items():
        hint, default = parameter.annotation, parameter.default
        if hint in (int, float):
            readers[name] = str(default), hint
        elif typing.get_origin(hint) is tuple:
            readers[name] = ",".join(map(str, default)), _pair
        elif str in typing.get_args(hint):
            readers[name] = "PATH", str
    return readers


def _pair(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(","))
    return low, high
