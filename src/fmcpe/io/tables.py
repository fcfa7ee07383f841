"""Tables of numbers from files: csv, npz and classic netCDF as they are, parquet and netCDF 4 with ``fmcpe[files]``."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fmcpe.io.columns import Array, Table
from fmcpe.io.text import read_text_file

LABELS = "observation"
"""The column or coordinate that holds labels of observations."""
ENDINGS = ".csv, .tsv, .npz, .parquet or .nc"


def read_table(path: str | Path) -> Table:
    """Read a file by its ending."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": read_text_file, ".tsv": read_text_file, ".txt": read_text_file, ".npz": _read_npz, ".parquet": _read_parquet,
        ".pq": _read_parquet, ".nc": _read_netcdf, ".nc4": _read_netcdf,
    }  # fmt: skip
    if path.is_dir():
        raise ValueError(f"Expected a file ending in {ENDINGS}, got {path}, which is a folder. Name a file in it.")
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected an existing file, got {path}, which does not exist. Check the path; it may end in {ENDINGS}."
        )
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"Expected a file ending in {ENDINGS}, got {path}. Convert it, e.g. to csv with a line of names first."
        )
    return readers[path.suffix.lower()](path)


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
    """An optional package, or an error with the command that installs it."""
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
        if re.fullmatch(r"__index_level_\d+__", name):  # row numbers or labels of pandas
            continue
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
            if variable.dimensions[:1] == (name,) and name != LABELS:  # coordinates are not data
                continue
            values = np.asarray(variable.data)
            if values.dtype.kind == "S":  # text, a character in each element of the last axis
                found[name] = _decoded(np.ascontiguousarray(values).view(f"S{values.shape[-1]}")[..., 0])
                continue
            values = np.ma.filled(np.ma.asarray(variable[...], dtype=np.float64), np.nan)
            found[name] = values.astype(values.dtype.newbyteorder("="))
        return found


def _netcdf4(path: Path) -> dict[str, Array]:
    h5netcdf = optional("h5netcdf", f"{path}, a netCDF 4 file")
    found = {}
    with h5netcdf.File(path, "r") as file:
        for name, variable in file.variables.items():
            if variable.dimensions == (name,) and name != LABELS:  # coordinates are not data
                continue
            values = np.asarray(variable[...])
            if values.dtype.kind in "SO":
                values = _decoded(values)
            if values.dtype.kind in "biuf":
                fill = variable.attrs.get("_FillValue")
                missing = np.zeros(values.shape, bool) if fill is None else values == fill
                scale, offset = variable.attrs.get("scale_factor", 1.0), variable.attrs.get("add_offset", 0.0)
                values = np.where(missing, np.nan, values * scale + offset)
            found[name] = values
    return found


def _decoded(values: Array) -> Array:
    """Text of a netCDF file, which may come as bytes in UTF-8."""
    flat = [cell.decode() if isinstance(cell, bytes) else str(cell) for cell in values.ravel().tolist()]
    return np.array(flat, dtype=object).reshape(values.shape)
