"""Options of tasks: which numbers they take, and how a command line gives them.

A task's options are the arguments of its constructor, so the signature says what there is, of what type, and the default.
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
    """Refuse an option that is NaN or infinite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} came, but a finite number was expected; pass {name}=1, say.")


def not_negative(**values: float) -> None:
    """Refuse an option that is not zero or a positive, finite number."""
    finite(**values)
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name}={value} is negative, but it must not be; pass {name}=0, say.")


def positive(**values: float) -> None:
    """Refuse an option that is not a positive, finite number."""
    finite(**values)
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value} is not positive, but it must be; pass {name}=1, say.")


def interval(name: str, bounds: tuple[float, float], *, may_be_a_point: bool = False) -> None:
    """Refuse a range that is not 0 <= low < high, or 0 <= low <= high where it may be a point."""
    low, high = bounds
    if not (0 <= low <= high < math.inf) or (low == high and not may_be_a_point):
        order = "0 <= low <= high" if may_be_a_point else "0 <= low < high"
        raise ValueError(f"{name}=({low}, {high}) is not a range; pass finite {order}.")


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
            raise ValueError(f"option {setting!r} has no value, but name=value was expected; type {setting}=VALUE.")
        if name not in readers:
            known = ", ".join(f"{option} ({shown})" for option, (shown, _) in readers.items())
            raise ValueError(
                f"task {task.name!r} has no option {name!r}; "
                + (f"its options, with their defaults, are {known}." if known else "it has no options: leave it out.")
            )
        shown, read = readers[name]
        try:
            options[name] = read(text)
        except ValueError:
            raise ValueError(
                f"option {name} came as {text!r}, but something like {shown} was expected; type {name}={shown}."
            ) from None
    return options


def _readers(task: type[Task]) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """For each option that a text can give: its default as one would type it, and what makes a value of a text."""
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
