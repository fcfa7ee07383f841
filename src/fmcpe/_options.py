"""Checks of options: the fields of frozen dataclasses, checked on construction.

Every message has three parts: "Expected X, got Y. Do Z.".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from reprlib import Repr
from typing import Any

Limits = tuple[float, float]
"""The smallest and the largest value of a number, both allowed."""

POSITIVE = math.nextafter(0.0, 1.0)
"""The smallest positive number."""

SHARE: Limits = (POSITIVE, math.nextafter(1.0, 0.0))
"""Limits of a number between zero and one, both excluded."""

LARGEST = 1_000_000
"""Limit of numbers without limits of their own: more steps, rows or widths than this are a typing error."""

_shortener = Repr()
_shortener.maxstring = _shortener.maxother = 200
shortened = _shortener.repr
"""`repr` of a value of any size, for an error."""


def is_whole(value: Any, least: float = 1, most: float = math.inf) -> bool:
    """Whether `value` is an integer, Python's or numpy's, from `least` to `most`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def is_number(value: Any, least: float, most: float) -> bool:
    """Whether `value` is a finite number, Python's or numpy's, from `least` to `most`."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    number: Any = value  # compared as it is: the largest integers are no floats
    return bool(least <= number <= most and number != math.inf)


def is_positive(value: Any) -> bool:
    """Whether `value` is a positive, finite number, Python's or numpy's."""
    return is_number(value, POSITIVE, math.inf)


def check_whole(name: str, value: Any, least: int, suggested: int | None) -> None:
    """Refuse an argument that is no integer of at least `least`; the message suggests a value."""
    if not is_whole(value, least):
        raise ValueError(
            f"Expected {name} to be a whole number of at least {least}, got {shortened(value)}. Try {name}={suggested}."
        )


def check_level(level: Any, advice: str) -> None:
    """Refuse a level that is no probability between zero and one; the message ends with the advice."""
    if not is_number(level, *SHARE):
        raise ValueError(f"Expected a level between 0 and 1, got {shortened(level)}. {advice}")


def check_option(options: Any, name: str, ok: bool, expected: str) -> None:
    """Refuse a field of a dataclass unless `ok`; the message suggests its default."""
    if not ok:
        default, given = options.__dataclass_fields__[name].default, shortened(getattr(options, name))
        raise ValueError(f"Expected {name} to be {expected}, got {given}. Try {name}={default!r}.")


def check_options(options: Any, limits: Mapping[str, Limits] | None = None, largest: float = math.inf) -> None:
    """Refuse fields of a dataclass whose type differs from that of their default; numbers are converted to Python's types.

    Args:
        options: The dataclass. Only booleans and numbers are checked.
        limits: Limits of some fields. By default, integers are at least 1 and other numbers positive.
        largest: Upper limit of the other numbers.
    """
    for field in fields(options):
        name, value, default = field.name, getattr(options, field.name), field.default
        if isinstance(default, bool):
            check_option(options, name, isinstance(value, bool), "True or False")
        elif isinstance(default, int):
            low, high = (limits or {}).get(name, (1, largest))
            to = "" if high == math.inf else f" and at most {int(high)}"
            check_option(options, name, is_whole(value, low, high), f"a whole number of at least {int(low)}{to}")
            object.__setattr__(options, name, int(value))
        elif isinstance(default, float):
            low, high = (limits or {}).get(name, (POSITIVE, largest))
            least = "above 0" if low == POSITIVE else f"of at least {low:g}"
            to = "" if high == math.inf else " and below 1" if high == SHARE[1] else f" and at most {high:.7g}"
            check_option(options, name, is_number(value, low, high), f"a number {least}{to}")
            if not isinstance(value, int | float):
                object.__setattr__(options, name, float(value))


def check_whole_numbers(options: Any, name: str, most: int, example: str, least: int = 0) -> None:
    """Refuse a field that is no list of `least` or more integers from 1 to `most`; it is converted to a tuple."""
    value = getattr(options, name)
    ok = isinstance(value, tuple | list) and len(value) >= least and all(is_whole(each, 1, most) for each in value)
    check_option(options, name, ok, f"a tuple of whole numbers from 1 to {most}, such as {example}")
    object.__setattr__(options, name, tuple(map(int, value)))


def settings_of(options: Any) -> dict[str, Any]:
    """Numbers, texts and tuples of them among the fields of a dataclass, and its ``kind``; ``{}`` for other objects."""
    if not is_dataclass(options) or isinstance(options, type):
        return {}
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    kept = {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items() if _is_plain(value)
    }
    return {"kind": type(options).__name__} | kept


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
