"""Named columns of a file; text is converted to numbers on demand, with decimal points or commas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """Named columns or arrays of one file, all with one row per pair, simulation or observation.

    Args:
        path: The file.
        columns: Columns by name; those of a text file are text.
        lines: Line of each row in a text file; empty for others.
        delimiter: Between the columns of a text file.
    """

    path: Path
    columns: Mapping[str, Array | list[str]]
    lines: tuple[int, ...] = ()
    delimiter: str = ","

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def notation(self) -> str:
        """A note on separators of a text file that are not commas, and on decimal commas; empty otherwise."""
        between = {",": "", ";": "columns separated by semicolons", "\t": "columns separated by tabs"}[self.delimiter]
        try:
            comma = "decimal commas read as points" if decimal_mark(self) == "," else ""
        except ValueError:  # reported when that column is read
            comma = ""
        return ", ".join(filter(None, (between, comma)))

    def place(self, row: int) -> str:
        """The line or row number, for errors."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"

    def numbers(self, name: str, finite: bool = True) -> Array:
        """A column as numbers, (N, ...)."""
        column = self.columns[name]
        if isinstance(column, list):
            if any("," in cell for cell in column) and decimal_mark(self) == ",":
                column = [cell.replace(",", ".") for cell in column]
            try:
                out = np.array(column, dtype=np.float64)
            except ValueError:
                row = next(i for i, cell in enumerate(column) if not is_number(cell))
                cell = f"{column[row]!r}" if column[row].strip() else "an empty cell"
                raise ValueError(
                    f"Expected numbers in column {name!r} of {self.path}, got {cell} in {self.place(row)}. Write e.g. 12.5, "
                    "with a point; leave rows without a value out, and columns that are not data to [data] in the prior file."
                ) from None
        elif column.dtype.kind not in "biuf":
            raise ValueError(f"Expected numbers in {name!r} of {self.path}, got {column.dtype}. Store it as float64.")
        else:
            out = np.asarray(column, dtype=np.float64)
        bad = ~np.isfinite(out)
        if finite and bad.any():
            row = int(np.argwhere(bad)[0][0]) if out.ndim else 0
            raise ValueError(
                f"Expected finite numbers in {name!r} of {self.path}, got {int(bad.sum())} that are not, the first in "
                f"{self.place(row)}. Leave those rows out."
            )
        return out

    def text(self, name: str) -> list[str]:
        """A column as text."""
        return [f"{cell:.15g}" if isinstance(cell, float) else str(cell) for cell in self.columns[name]]


def stacked(table: Table, names: Sequence[str], finite: bool = True) -> Array:
    """Columns of numbers side by side, (N, k)."""
    parts = [table.numbers(name, finite) for name in names]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or parts[0].ndim != 1:
        said = ", ".join(f"{name} {part.shape}" for name, part in zip(names, parts, strict=True))
        raise ValueError(
            f"Expected one number per row in each of these columns of {table.path}, got {said}. Store data of another shape as "
            "one array y, (N, ...)."
        )
    return np.stack(parts, axis=1)


def is_number(cell: str) -> bool:
    """Whether Python reads it as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def decimal_mark(table: Table) -> str:
    """A point, or a comma if the numbers of a file are written with commas and leave no doubt; otherwise an error."""
    if not table.lines or not any("," in cell for cells in table.columns.values() for cell in cells):
        return "."
    texts = [
        (name, row, str(cell))
        for name, cells in table.columns.items()
        if name != "observation" and all(map(_looks_like_a_number, cells))
        for row, cell in enumerate(cells)
    ]
    commas, points, mixed = ([each[:2] for each in texts if has.match(each[2])] for has in (_COMMA, _POINT, _BOTH))

    def refuse(where: tuple[str, int], why: str, advice: str) -> ValueError:
        name, row = where
        return ValueError(
            f"Expected a point before the decimals in column {name!r} of {table.path}, or a comma in the whole file, got "
            f"{table.columns[name][row].strip()!r} in {table.place(row)}{why}. {advice}"
        )

    if mixed:
        cell = str(table.columns[mixed[0][0]][mixed[0][1]]).strip()
        first = min(",.", key=cell.index)
        write = cell.replace(first, "").replace(",", ".")
        raise refuse(mixed[0], ", which has both", f"Leave out what separates thousands: write {write}.")
    if not commas:
        return "."
    name, row = commas[0]
    if points:
        other = table.columns[points[0][0]][points[0][1]].strip()
        write = table.columns[name][row].strip().replace(",", ".")
        raise refuse((name, row), f" and {other!r} in {table.place(points[0][1])}", f"Use one of them: write {write}.")
    if all(_THOUSANDS.match(table.columns[n][k]) for n, k in commas):
        cell = table.columns[name][row].strip()
        advice = f"Write {cell.replace(',', '.')} or {cell.replace(',', '')}."
        raise refuse((name, row), ", whose comma may separate thousands, as everywhere in this file", advice)
    return ","


def _looks_like_a_number(cell: Any) -> bool:
    return not (text := str(cell).strip()) or is_number(text.replace(",", "").replace(".", ""))


_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
_POINT = re.compile(r"\s*[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?\s*$")
_BOTH = re.compile(r"\s*[+-]?\d+(\.\d+)*\.\d+,\d+\s*$|\s*[+-]?\d+(,\d+)*,\d+\.\d+\s*$")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*$")
