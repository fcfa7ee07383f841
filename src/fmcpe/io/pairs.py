"""Pairs, simulations and observations from tables: which columns are parameters, and which are data.

Columns with the names of the parameters are θ, all others data in the order of the file. Series and images come as arrays:
``theta``, (N, p), and ``y``, (N, ...) (``x`` for simulations), of an npz or netCDF file. A column ``observation`` holds labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fmcpe._names import default_names
from fmcpe.io.columns import Array, Table, stacked
from fmcpe.io.tables import LABELS, read_table


@dataclass(frozen=True)
class Pairs:
    """Parameters and data of one file.

    Args:
        theta: Physical parameters, (N, p).
        y: Data taken at them, (N, ...).
        data_names: Of the columns of y; empty if y is one array.
        table: Where they came from.
    """

    theta: Array
    y: Array
    data_names: tuple[str, ...]
    table: Table


def read_pairs(
    path: str | Path,
    names: Sequence[str],
    *,
    columns: Sequence[str] = (),
    prefix: str = "",
    array: str = "y",
    finite: bool = True,
) -> Pairs:
    r"""Read parameters and data.

    Args:
        path: A csv, npz, parquet or netCDF file.
        names: Of the parameters.
        columns: Names of the columns of data; all that are not parameters if empty.
        prefix: How the names of the columns of data begin.
        array: Name of the array of data in npz and netCDF files: ``"y"`` of pairs, ``"x"`` of simulations.
        finite: Whether data must be finite.

    Example:
        >>> path = folder / "pairs.csv"
        >>> _ = path.write_text("mass,first,second\n0.5,1.2,1.9\n1.5,3.1,5.8\n")
        >>> pairs = fmcpe.read_pairs(path, ["mass"])
        >>> pairs.theta.shape, pairs.y.shape, pairs.data_names
        ((2, 1), (2, 2), ('first', 'second'))
    """
    table, names = read_table(path), tuple(names)
    theta = _theta(table, names, array)
    y, chosen = _data(table, names, tuple(columns), prefix, array, finite)
    if len(theta) != len(y):
        raise ValueError(
            f"Expected as many rows of θ as of {array} in {path}, got {len(theta)} and {len(y)}. Write one row per pair."
        )
    return Pairs(theta, y, chosen, table)


def read_observations(path: str | Path, data_names: Sequence[str], shape: Sequence[int]) -> tuple[list[str], Array]:
    """Labels and data (B, *shape) of observations; labels are 1, 2, ... unless the file has a column ``observation``.

    Args:
        path: A csv, npz, parquet or netCDF file.
        data_names: Of the columns of the data that the posterior was fitted on; empty if they had none.
        shape: Of one observation.
    """
    table, data_names, shape = read_table(path), tuple(data_names), tuple(shape)
    arrays = [name for name in ("y", "x") if name in table and _is_array(table, name, shape)]
    if arrays:
        y = table.numbers(arrays[0])
        y = y[None] if y.shape == shape else y
    elif data_names:
        missing = [name for name in data_names if name not in table]
        if missing:
            raise ValueError(
                f"Expected the columns {_some(data_names)} in {path}, as the posterior was fitted on, got no {missing[0]!r} "
                f"among {_some([*table.columns])}. Write e.g.\n{_example(data_names)}"
            )
        y = stacked(table, data_names)
    else:
        y = stacked(table, [name for name in table.columns if name != LABELS])
    y = y[:, None] if y.ndim == 1 and shape == (1,) else y
    if y.shape[1:] != shape:
        raise ValueError(
            f"Expected observations of shape {shape} in {path}, as the posterior was fitted on, got {y.shape[1:]}. Write one "
            f"row per observation{f' with the columns {_some(data_names)}' if data_names else ''}, or an array y of shape "
            f"(B, {', '.join(map(str, shape))})."
        )
    labels = table.text(LABELS) if LABELS in table else [str(i + 1) for i in range(len(y))]
    return labels, y


def _theta(table: Table, names: tuple[str, ...], array: str) -> Array:
    missing = [name for name in names if name not in table]
    if len(missing) == len(names) and "theta" in table:
        theta = table.numbers("theta")
        theta = theta[:, None] if theta.ndim == 1 and len(names) == 1 else theta
        if theta.ndim != 2 or theta.shape[1] != len(names):
            raise ValueError(
                f"Expected theta of shape (N, {len(names)}) in {table.path}, one column for each of {', '.join(names)}, got "
                f"{theta.shape}. Write it with numpy.savez(path, theta=theta, {array}={array})."
            )
        return theta
    if missing:
        raise ValueError(
            f"Expected a column for each parameter ({', '.join(names)}) in {table.path}, got no {missing[0]!r} among "
            f"{_some([*table.columns])}. {_advice(table, names, missing, array)}"
        )
    return stacked(table, names)


def _advice(table: Table, names: tuple[str, ...], missing: list[str], array: str) -> str:
    """What to do about a file without columns of these parameters."""
    if names == default_names(len(names)):
        others = ",".join([*table.columns][: len(names)])
        return f"These parameters have no names yet: give those of the columns with --names, or names=, e.g. --names {others}."
    folded = {name.strip().casefold(): name for name in table.columns}
    if missing[0].strip().casefold() in folded:
        return f"Rename {folded[missing[0].strip().casefold()]!r}: names are compared letter by letter."
    if not table.lines and len(missing) == len(names):
        return f"Write arrays: numpy.savez(path, theta=theta, {array}={array}), or one array for each parameter."
    return f"Write e.g.\n{_example([*names, 'reading_1', 'reading_2'])}"


def _data(
    table: Table, names: tuple[str, ...], columns: tuple[str, ...], prefix: str, array: str, finite: bool
) -> tuple[Array, tuple[str, ...]]:
    others = [name for name in table.columns if name not in (*names, LABELS, "theta")]
    if columns:
        missing = [name for name in columns if name not in table]
        if missing:
            raise ValueError(
                f"Expected the column {missing[0]!r} in {table.path}, as [data] says, got {_some(others)}. Change columns in "
                "the prior file."
            )
        others = list(columns)
    elif prefix:
        others = [name for name in others if name.startswith(prefix)]
    if not table.lines and array in table and not columns and not prefix:
        y = table.numbers(array, finite)
        return (y[:, None] if y.ndim == 1 else y), ()
    if not others:
        begin = prefix or "reading_"
        wanted = f"columns that begin with {prefix!r}" if prefix else "columns of data beside the parameters"
        raise ValueError(
            f"Expected {wanted} in {table.path}, got {_some([*table.columns])}. Write e.g.\n"
            f"{_example([*names, begin + '1', begin + '2'])}"
        )
    if len(others) == 1 and not isinstance(table.columns[others[0]], list):
        y = table.numbers(others[0], finite)
        return (y[:, None], (others[0],)) if y.ndim == 1 else (y, ())
    return stacked(table, others, finite), tuple(others)


def _is_array(table: Table, name: str, shape: tuple[int, ...]) -> bool:
    """Whether it is a whole array of observations, not one column of them."""
    column = table.columns[name]
    return not isinstance(column, list) and (np.ndim(column) > 1 or np.shape(column) == shape or shape == (1,))


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _example(names: Sequence[str], most: int = 12) -> str:
    shown, end = list(names[:most]), ",..." if len(names) > most else ""
    return f"{','.join(shown)}{end}\n{','.join(f'{1.5 + k / 4:g}' for k in range(len(shown)))}{end}"
