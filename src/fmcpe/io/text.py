"""Text files of columns (csv): names, cells, and what is wrong with a line."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from fmcpe.io.columns import Table, is_number


def read_text_file(path: Path) -> Table:
    example = "mass,reading_1,reading_2\n1.25,0.31,0.29"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected a text file in UTF-8, got {path} ({error}). Save it as CSV UTF-8.") from error
    filled = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(number, line) for number, line in filled if line[0] != "#"]
    comments = [line for number, line in filled if line[0] == "#" and (not lines or number < lines[0][0])]
    if comments:
        example += (
            f"\nA line that begins with # is a comment: {comments[-1][:60]!r}. If it has the names, take the # away; "
            'numpy does with savetxt(..., header=names, comments="").'
        )
    if len(lines) < 2:
        raise ValueError(
            f"Expected {path} to have a line of names and one line per row, got {len(lines)}. Write e.g.\n{example}"
        )
    header = lines[0][1]
    delimiter = max(",;\t", key=header.count)
    rows = _cells(path, lines, delimiter)
    names = [name.strip() for name in rows[0]]
    if all(map(is_number, names)):
        raise ValueError(f"Expected a line of names first in {path}, got numbers: {header[:60]}. Write e.g.\n{example}")
    repeated = next((name for name in names if names.count(name) > 1), None)
    unnamed = next((name for name in names if not name or re.fullmatch(r"Unnamed: \d+", name)), None)
    if unnamed is not None:
        raise ValueError(
            f"Expected a name for each column of {path}, got {unnamed or 'none'} for column {names.index(unnamed) + 1} of "
            f"{len(names)}. Name it, or leave it out: pandas writes no row numbers with to_csv(path, index=False)."
        )
    if repeated is not None:
        raise ValueError(
            f"Expected different names of columns in {path}, got {repeated!r} {names.count(repeated)} times. Rename them."
        )
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != len(names):
            raise ValueError(
                f"Expected {len(names)} cells in each line of {path}, one per column ({', '.join(names)}), got {len(row)} in "
                f"line {number}.{_comma_hint(row, len(names))} Write e.g.\n{header}"
            )
    columns = {name: [row[k] for row in rows[1:]] for k, name in enumerate(names)}
    table = Table(path, columns, tuple(n for n, _ in lines[1:]), delimiter)
    logging.getLogger("fmcpe").info("%s: %d rows%s", path, len(rows) - 1, table.notation and f", {table.notation}")
    return table


def _comma_hint(row: Sequence[str], columns: int) -> str:
    """What to do about decimal commas between commas."""
    whole = len(row) > columns and all(cell.strip().lstrip("+-").isdigit() for cell in row)
    return " If its commas begin decimals, separate the columns with semicolons." if whole else ""


def _cells(path: Path, lines: Sequence[tuple[int, str]], delimiter: str) -> list[list[str]]:
    """Cells of each line; a quoted cell must end in its line."""
    reader = csv.reader((line for _, line in lines), delimiter=delimiter)
    rows: list[list[str]] = []
    broken = None
    try:
        for row in reader:
            if broken is None and reader.line_num > len(rows) + 1:
                broken = lines[len(rows)][0]
            rows.append(row)
    except csv.Error:  # an open quote takes the rest of the file, which is more than a cell may have
        broken = lines[len(rows)][0] if broken is None else broken
    if broken is not None:
        raise ValueError(
            f"Expected each row of {path} in one line, got a quoted cell that goes on after line {broken}. Leave the "
            "line break out of the cell, or close the quote."
        )
    return rows
