"""Draws with parameter names: text tables, csv, npz and netCDF files, pandas and ArviZ.

netCDF files have ArviZ's layout: a group ``posterior`` with one variable per parameter, (chain, draw, observation), and a group
``constant_data`` that says which observations are out of range. ``arviz.from_netcdf`` reads them.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from fmcpe._disk import as_path, write_whole
from fmcpe.io.columns import Array
from fmcpe.io.tables import optional

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws for each of some observations.

    Args:
        theta: Physical parameters, (B, S, p).
        names: Parameter names.
        observations: Labels of the observations.
        p_values: P-value of each observation against the calibration pairs, (B,); NaN if the posterior keeps no pairs.
        units: Units of the parameters, an empty string for none; empty if there are none.
    """

    theta: Array
    names: tuple[str, ...]
    observations: tuple[str, ...]
    p_values: Array
    units: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, posterior: CorrectedPosterior, y: Tensor, number: int, labels: Sequence[str] | None, seed: int | None
    ) -> Draws:
        """Draws of a posterior for observations (B, ...), `number` for each."""
        from fmcpe.extrapolation import WithinRange

        inner = posterior.inner
        p = inner.p_values(y) if isinstance(inner, WithinRange) else torch.full((len(y),), torch.nan)
        labels = [str(i + 1) for i in range(len(y))] if labels is None else [str(label) for label in labels]
        if len(labels) != len(y):
            raise ValueError(f"Expected {len(y)} labels, one per observation, got {len(labels)}. Leave labels out.")
        theta = posterior._draw(y, number, seed, True, None)
        return cls(theta.cpu().numpy(), posterior.names, tuple(labels), p.double().cpu().numpy(), posterior.units)

    @property
    def labels(self) -> Array:
        """Labels of the observations, as whole numbers where all of them are."""
        whole = all(label.lstrip("-").isdigit() for label in self.observations)
        return np.array([int(n) for n in self.observations]) if whole else np.array(self.observations, dtype=object)

    @property
    def out_of_range(self) -> Array:
        """Which observations have a p-value below 0.001, (B,), as `RangeCheck.out_of_range` says; none where it is NaN."""
        from fmcpe.in_range import RangeCheck

        return self.p_values < RangeCheck.level

    def summary(self, level: float = 0.9, most: int = 20) -> str:
        """Median and central interval of each parameter for the first `most` observations, as text."""
        low, middle, high = np.quantile(self.theta, [(1 - level) / 2, 0.5, (1 + level) / 2], axis=1)
        units = self.units or [""] * len(self.names)
        named = [f"{name} in {unit}" if unit else name for name, unit in zip(self.names, units, strict=True)]
        head = ["observation", *(f"{name} [{100 * level:g} % interval]" for name in named)]
        rows = [
            [
                label,
                *(f"{middle[b, k]:.4g} [{low[b, k]:.4g}, {high[b, k]:.4g}]" for k in range(len(self.names))),
                "OUT OF RANGE" if out else "",
            ]
            for b, (label, out) in enumerate(zip(self.observations, self.out_of_range, strict=True))
        ]
        shown = [[*head, ""], *rows[:most]]
        widths = [max(len(row[k]) for row in shown) for k in range(len(shown[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
        ]
        lines += [f"... and {len(rows) - most} more"] if len(rows) > most else []
        return "\n".join([*lines, "", self.range_text()])

    def range_text(self) -> str:
        """A sentence on the observations that are out of range."""
        out, number = self.out_of_range, len(self.observations)
        if np.isnan(self.p_values).all():
            return "This posterior keeps no pairs, so that nothing says whether observations are like them."
        if not out.any():
            return f"None of {number} observation(s) is called out of range (p < 0.001)."
        which = ", ".join(label for label, far in zip(self.observations, out, strict=True) if far)
        return (
            f"{int(out.sum())} of {number} observation(s) are out of range ({which}; p < 0.001; about {number / 1000:g} "
            "expected by chance). There the answer moves to the prior. Check units and order of their numbers, or measure "
            "pairs like them."
        )

    def save(self, path: str | Path) -> Path:
        """Write csv (one line per draw, with p-value and range of its observation), npz or netCDF, by the ending.

        Readers never see a partial file.
        """
        path = check_output(path)
        writers: dict[str, Callable[[BinaryIO], None]] = {".csv": self._csv, ".npz": self._npz, ".nc": self._netcdf}
        content = io.BytesIO()
        writers[path.suffix.lower()](content)
        write_whole(path, content.getvalue())
        return path

    def _csv(self, file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["observation", "draw", *self.names, "p_value", "out_of_range"])
        checks = [(f"{p:.4g}", int(out)) for p, out in zip(self.p_values, self.out_of_range, strict=True)]
        for label, draws, check in zip(self.observations, self.theta.tolist(), checks, strict=True):
            writer.writerows([label, s, *(f"{value:.8g}" for value in row), *check] for s, row in enumerate(draws))
        text.detach()  # flushes, and leaves the file open

    def _npz(self, file: BinaryIO) -> None:
        np.savez(
            file, theta=self.theta, names=np.array(self.names), observation=np.array(self.observations),
            p_value=self.p_values, out_of_range=self.out_of_range, units=np.array(self.units, dtype=str),
        )  # fmt: skip

    def _netcdf(self, content: BinaryIO) -> None:
        from fmcpe import __version__

        h5netcdf, h5py = (optional(name, "netCDF files") for name in ("h5netcdf", "h5py"))
        number, draws, _ = self.theta.shape
        labels = self.labels
        text = labels.dtype.kind not in "iu"
        with h5netcdf.File(content, "w") as file:
            for group in ("posterior", "constant_data"):
                made = file.create_group(group)
                made.attrs["inference_library"] = "fmcpe"
                made.attrs["inference_library_version"] = __version__
                made.dimensions = {"observation": number}
                dtype = h5py.string_dtype() if text else labels.dtype
                made.create_variable("observation", ("observation",), dtype=dtype, data=labels)
            made.create_variable("p_value", ("observation",), data=self.p_values)
            made.create_variable("out_of_range", ("observation",), data=self.out_of_range.astype(np.int8))
            posterior = file["posterior"]
            posterior.dimensions["chain"], posterior.dimensions["draw"] = 1, draws
            posterior.create_variable("chain", ("chain",), data=np.zeros(1, np.int64))
            posterior.create_variable("draw", ("draw",), data=np.arange(draws))
            for k, name in enumerate(self.names):
                values = np.ascontiguousarray(self.theta[None, :, :, k].swapaxes(1, 2))
                variable = posterior.create_variable(_variable(name), ("chain", "draw", "observation"), data=values)
                variable.attrs.update(attributes_of(self.units, k))

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with the columns observation, draw and one per parameter, and units in its ``attrs``."""
        pandas = optional("pandas", "DataFrames")
        number, draws, dim = self.theta.shape
        columns = {
            "observation": np.repeat(self.labels, draws),
            "draw": np.tile(np.arange(draws), number),
        }
        flat = self.theta.reshape(-1, dim)
        frame = pandas.DataFrame(columns | {name: flat[:, k] for k, name in enumerate(self.names)})
        if any(self.units):
            frame.attrs["units"] = dict(zip(self.names, self.units, strict=True))
        return frame

    def to_arviz(self) -> Any:
        """ArviZ's InferenceData (a DataTree since ArviZ 1): variables (chain, draw, observation) by name."""
        theta, dims, which = self.theta[None].swapaxes(1, 2), ("chain", "draw", "observation"), ("observation",)
        groups = {
            "posterior": variables(self.names, self.units, dims, theta),
            "constant_data": {"p_value": (which, self.p_values), "out_of_range": (which, self.out_of_range)},
        }
        return inference_data(groups, {"observation": self.labels})


def variables(
    names: Sequence[str], units: Sequence[str], dims: tuple[str, ...], theta: Array
) -> dict[str, tuple[Any, ...]]:
    """A variable for each parameter, as xarray takes it, of θ (..., p) with these dimensions."""
    return {name: (dims, theta[..., k], attributes_of(units, k)) for k, name in enumerate(names)}


def inference_data(
    groups: Mapping[str, Mapping[str, Any]], coords: Mapping[str, Any], attributes: Mapping[str, str] | None = None
) -> Any:
    """Groups of variables for ArviZ: InferenceData where ArviZ has it, otherwise a DataTree."""
    from fmcpe import __version__

    xarray = optional("xarray", "ArviZ")
    about = {"inference_library": "fmcpe", "inference_library_version": __version__, **(attributes or {})}
    sets = {}
    for name, group in groups.items():
        sizes = {dim: size for dims, value, *_ in group.values() for dim, size in zip(dims, value.shape, strict=True)}
        index = {dim: np.arange(sizes[dim]) for dim in ("chain", "draw") if dim in sizes}
        sets[name] = xarray.Dataset(group, index | {k: v for k, v in coords.items() if k in sizes}, about)
    # without ArviZ, or since ArviZ 1, the tree is xarray's
    arviz = importlib.import_module("arviz") if importlib.util.find_spec("arviz") else None
    if hasattr(arviz, "InferenceData"):
        return cast(Any, arviz).InferenceData(**sets)
    return xarray.DataTree.from_dict(sets)


def attributes_of(units: Sequence[str], k: int) -> dict[str, str]:
    """The attribute ``units`` of parameter k in netCDF files and ArviZ, if it has a unit."""
    return {"units": units[k]} if units and units[k] else {}


def check_output(path: str | Path) -> Path:
    """The path, if draws can be written to it by its ending and folder; `fmcpe sample` checks this before it draws."""
    path = as_path(path)
    if path.suffix.lower() not in (".csv", ".npz", ".nc"):
        raise ValueError(f"Expected a file ending in .csv, .npz or .nc, got {path}. Try draws.nc.")
    if not path.parent.is_dir() or path.is_dir():
        raise FileNotFoundError(f"Expected a file name in a folder that exists, got {path}. Create the folder first.")
    if path.suffix.lower() == ".nc":
        optional("h5netcdf", "netCDF files")
    return path


def _variable(name: str) -> str:
    """A name that a netCDF file accepts: a slash would begin a group."""
    return name.replace("/", "_")
