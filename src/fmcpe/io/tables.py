"""Tables of numbers from files: csv, npz and classic netCDF as they are, parquet and netCDF 4 with ``fmcpe[files]``."""

from __future__ import annotations

import csv
import logging
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENDINGS = ".csv, .tsv, .npz, .parquet or .nc"
Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """Named columns or arrays of one file, all with one row per pair, simulation or observation.

    Args:
        path: The file.
        columns: By name; text of a csv file is kept until somebody asks for numbers.
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
        """What was found in a text file, in words; empty for commas between columns and points before decimals."""
        between = {",": "", ";": "columns separated by semicolons", "\t": "columns separated by tabs"}[self.delimiter]
        try:
            comma = "decimal commas read as points" if _decimal(self) == "," else ""
        except ValueError:  # who asks for that column is told
            comma = ""
        return ", ".join(filter(None, (between, comma)))

    def place(self, row: int) -> str:
        """Where a row is, in words."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"

    def numbers(self, name: str, finite: bool = True) -> Array:
        """A column as numbers, (N, ...)."""
        column = self.columns[name]
        if isinstance(column, list):
            if any("," in cell for cell in column) and _decimal(self) == ",":
                column = [cell.replace(",", ".") for cell in column]
            try:
                out = np.array(column, dtype=np.float64)
            except ValueError:
                row = next(i for i, cell in enumerate(column) if not _is_number(cell))
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
        return [str(cell) for cell in self.columns[name]]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_table(path: str | Path) -> Table:
    """Read a file by its ending."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet,
        ".pq": _read_parquet, ".nc": _read_netcdf, ".nc4": _read_netcdf,
    }  # fmt: skip
    if path.is_dir():
        raise ValueError(f"Expected a file ending in {ENDINGS}, got {path}, which is a folder. Name a file in it.")
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a file ending in {ENDINGS}, got {path}, which does not exist. Check the path."
        )
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"Expected a file ending in {ENDINGS}, got {path}. Convert it, e.g. to csv with a line of names first."
        )
    return readers[path.suffix.lower()](path)


def _read_csv(path: Path) -> Table:
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
    if all(map(_is_number, names)):
        raise ValueError(f"Expected a line of names first in {path}, got numbers: {header[:60]}. Write e.g.\n{example}")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if "" in names:
        raise ValueError(
            f"Expected a name for each column of {path}, got none for column {names.index('') + 1} of {len(names)}. Name it, "
            "or leave it out: pandas writes no row numbers with to_csv(path, index=False)."
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


def _decimal(table: Table) -> str:
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
    return not (text := str(cell).strip()) or _is_number(text.replace(",", "").replace(".", ""))


_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
_POINT = re.compile(r"\s*[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?\s*$")
_BOTH = re.compile(r"\s*[+-]?\d+(\.\d+)*\.\d+,\d+\s*$|\s*[+-]?\d+(,\d+)*,\d+\.\d+\s*$")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*$")


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


def _read_npz(path: Path) -> Table:
    if not zipfile.is_zipfile(path):  # numpy would suggest to load it as a pickle
        raise ValueError(
            f"Expected an npz file, got {path}, which is none. Write it with numpy.savez(path, theta=theta, y=y)."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"Expected arrays of numbers in {path}, got an error: {error}. Write it with numpy.savez(path, theta=theta, y=y)."
        ) from error
    if not columns:
        raise ValueError(f"Expected arrays in {path}, got none. Write it with numpy.savez(path, theta=theta, y=y).")
    return Table(path, columns)


def optional(module: str, what: str) -> Any:
    """An optional package, or an error that says how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Expected the package {module.partition('.')[0]} for {what}, got none. Type: pip install 'fmcpe[files]'"
        ) from error


def _read_parquet(path: Path) -> Table:
    parquet = optional("pyarrow.parquet", f"{path}, a parquet file")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"Expected a parquet file, got {path} ({error}). Write it again, or use csv.") from error
    columns = {}
    for name in table.column_names:
        values = table.column(name)
        listed = str(values.type).startswith(("list", "fixed_size_list", "large_list"))
        columns[name] = np.array(values.to_pylist()) if listed else values.to_numpy()
    return Table(path, columns)


def _read_netcdf(path: Path) -> Table:
    with path.open("rb") as file:
        classic = file.read(3) == b"CDF"
    try:
        columns = _classic(path) if classic else _netcdf4(path)
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"Expected a netCDF file, got {path} ({error}). Write it again, or use npz.") from error
    if not columns:
        raise ValueError(
            f"Expected variables in {path}, got none outside of groups. Write theta and y to the root group."
        )
    return Table(path, columns)


def _classic(path: Path) -> dict[str, Array]:
    from scipy.io import netcdf_file

    with netcdf_file(path, "r", mmap=False, maskandscale=True) as file:
        found = {}
        for name, variable in file.variables.items():
            if variable.dimensions != (name,):  # coordinates are not data
                values = np.ma.filled(np.ma.asarray(variable[...], dtype=np.float64), np.nan)
                found[name] = values.astype(values.dtype.newbyteorder("="))
        return found


def _netcdf4(path: Path) -> dict[str, Array]:
    h5netcdf = optional("h5netcdf", f"{path}, a netCDF 4 file")
    found = {}
    with h5netcdf.File(path, "r") as file:
        for name, variable in file.variables.items():
            if variable.dimensions == (name,):  # coordinates are not data
                continue
            values = np.asarray(variable[...])
            if values.dtype.kind in "biuf":
                fill = variable.attrs.get("_FillValue")
                missing = np.zeros(values.shape, bool) if fill is None else values == fill
                scale, offset = variable.attrs.get("scale_factor", 1.0), variable.attrs.get("add_offset", 0.0)
                values = np.where(missing, np.nan, values * scale + offset)
            found[name] = values
    return found


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
