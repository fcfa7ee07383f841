"""Names and units of parameters, and names of columns of data, given once: as arguments, by a DataFrame, or by a prior file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

Names = tuple[str, ...]
_UNORDERED = (str, Mapping, Set)
"""What can be iterated over, but is no list with one entry per parameter: a dict would give its keys."""
RESERVED = ("observation", "chain", "draw", "p_value", "out_of_range")
"""Columns and coordinates that tables and files of draws have beside the parameters."""


def columns_of(value: Any) -> Names | None:
    """The columns of a DataFrame, or the name of a Series, if they are text; None for anything else."""
    columns = getattr(value, "columns", None)
    if columns is None and hasattr(value, "index"):
        columns = [getattr(value, "name", None)]
    if columns is None or callable(columns):
        return None
    found = tuple(columns)
    return found if found and all(isinstance(name, str) for name in found) else None


def as_names(names: Any, dim: int) -> Names:
    """One name per parameter, all different."""
    advice = (
        f"Pass e.g. names=[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in ('mass', 'length', 'damping')[:dim])}]"
    )
    if isinstance(names, _UNORDERED) or not isinstance(names, Iterable):
        raise TypeError(f"Expected a list of {dim} name(s), got {names!r}. {advice}.")
    found = tuple(str(name).strip() for name in names)
    taken = next((name for name in found if name in RESERVED), None)
    if taken is not None:
        raise ValueError(
            f"Expected names other than {', '.join(RESERVED)}, which files of draws use themselves, got {taken!r}. Call the "
            f"parameter e.g. {taken}_0."
        )
    # netCDF files have no slash in a name, see `fmcpe.io.draws`
    if len(found) != dim or len({name.replace("/", "_") for name in found}) < dim or not all(found):
        raise ValueError(
            f"Expected {dim} different names, one per parameter, got {list(found)}. {advice}, or leave names out."
        )
    return found


def as_units(units: Any, dim: int) -> Names:
    """One unit per parameter, an empty string for none."""
    if isinstance(units, _UNORDERED) or not isinstance(units, Iterable):
        raise TypeError(
            f'Expected a list of {dim} unit(s), got {units!r}. Pass e.g. units=["kg", ""], or leave units out.'
        )
    found = tuple("" if unit is None else str(unit).strip() for unit in units)
    if len(found) != dim:
        raise ValueError(
            f"Expected {dim} unit(s), one per parameter, got {list(found)}. Pass an empty text for a parameter without one, or "
            "leave units out."
        )
    return found


def with_units(names: Sequence[str], units: Sequence[str]) -> Names:
    """``mass [kg]`` for each name that has a unit, the name itself for others."""
    units = units or [""] * len(names)
    return tuple(f"{name} [{unit}]" if unit else name for name, unit in zip(names, units, strict=True))


def default_names(dim: int) -> Names:
    """``theta[0]``, ``theta[1]``, ..."""
    return tuple(f"theta[{i}]" for i in range(dim))


def in_order(value: Any, names: Sequence[str] | None, what: str) -> Any:
    """A DataFrame with its columns in the order of `names`; anything else as it is.

    Columns with other names are refused: their order does not say what they are.
    """
    columns = columns_of(value)
    if not names or columns is None or not hasattr(value, "columns") or columns == tuple(names):
        return value
    if set(columns) != set(names) or len(columns) != len(names):
        raise ValueError(
            f"Expected {what} with the columns {', '.join(names)}, got {', '.join(columns)}. Rename them, or pass "
            f"{what}.to_numpy() if their order is that of the names."
        )
    return value[list(names)]


def refuse_other_order(reference: Any, what: str, **others: Any) -> None:
    """Refuse tables of pandas whose index has the labels of the one of `reference` in another order."""
    labels: Any = getattr(reference, "index", None)
    for name, value in others.items():
        own: Any = getattr(value, "index", None)
        if not hasattr(labels, "equals") or not hasattr(own, "equals") or labels.equals(own):
            continue
        if len(labels) == len(own) and Counter(labels) == Counter(own):
            raise ValueError(
                f"Expected {name} with its rows in the order of {what}, got the same labels in another order. Pass "
                f"{name}.loc[{what}.index], or {name}.to_numpy() if the order is meant."
            )
