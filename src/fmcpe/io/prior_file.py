"""Priors in TOML: one table per parameter, in the order of its columns.

    [bath_temperature]
    distribution = "uniform"
    low = 20.0
    high = 90.0
    unit = "°C"

`FAMILIES` lists the distributions. ``unit`` is shown with the name in summaries, reports and files. A table ``[data]`` selects
the data columns of a file, by ``columns``, a list of names, or by ``prefix``; without it, all columns that are not parameters
are data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sbi.utils import BoxUniform, MultipleIndependent
from torch import Tensor, distributions
from torch.distributions import Distribution

from fmcpe._names import as_names
from fmcpe.distributions import LogUniform

EXAMPLE = '[mass]\ndistribution = "uniform"\nlow = 0.5\nhigh = 2.0'


class Family(NamedTuple):
    """A distribution of one number."""

    build: Callable[[Tensor, Tensor], Distribution] | Callable[[Tensor], Distribution]
    keys: tuple[str, ...]
    positive: tuple[str, ...]
    example: tuple[float, ...]


FAMILIES = {
    "uniform": Family(distributions.Uniform, ("low", "high"), (), (0.0, 1.0)),
    "loguniform": Family(LogUniform, ("low", "high"), ("low", "high"), (0.01, 10.0)),
    "normal": Family(distributions.Normal, ("mean", "std"), ("std",), (0.0, 1.0)),
    "lognormal": Family(distributions.LogNormal, ("log_mean", "log_std"), ("log_std",), (0.0, 1.0)),
    "halfnormal": Family(distributions.HalfNormal, ("scale",), ("scale",), (1.0,)),
    "exponential": Family(distributions.Exponential, ("rate",), ("rate",), (1.0,)),
    "gamma": Family(distributions.Gamma, ("shape", "rate"), ("shape", "rate"), (2.0, 1.0)),
    "beta": Family(distributions.Beta, ("alpha", "beta"), ("alpha", "beta"), (2.0, 2.0)),
}
"""Distributions by name: their keys, all numbers, which of them are positive, and an example."""


@dataclass(frozen=True)
class PriorFile:
    """The content of a prior file.

    Args:
        prior: The prior, with ``prior.names``.
        names: Parameter names, in order.
        descriptions: One line of text per parameter.
        units: Units of the parameters, empty if the file has none.
        columns: Names of the data columns, if listed.
        prefix: Prefix of their names, if given.
    """

    prior: Distribution
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    units: tuple[str, ...]
    columns: tuple[str, ...] = ()
    prefix: str = ""


def read_prior(path: str | Path) -> Distribution:
    r"""The prior of a TOML file, with ``prior.names`` and ``prior.units`` of its parameters, which `FMCPE` takes up.

    `FMCPE` finds them on the prior of a posterior that sbi trained, too. Where sbi was given a wrapper of the prior, which has
    neither, pass ``names=prior.names, units=prior.units`` to `FMCPE`.

    Args:
        path: The file; `fmcpe.io.prior_file` describes it.

    Example:
        >>> path = folder / "prior.toml"
        >>> _ = path.write_text("[mass]\ndistribution = 'uniform'\nlow = 0.0\nhigh = 2.0\nunit = 'kg'\n")
        >>> prior = fmcpe.read_prior(path)
        >>> prior.names, prior.units, prior.sample((3,)).shape
        (('mass',), ('kg',), torch.Size([3, 1]))
    """
    return read_prior_file(path).prior


def read_prior_file(path: str | Path) -> PriorFile:
    """The whole content of a prior file."""
    tables = _tables(Path(path))
    data = tables.pop("data", {})
    if not tables:
        raise ValueError(
            f"Expected {path} to have a table for each parameter, got none. Write, for example:\n{EXAMPLE}"
        )
    parts, kinds, lines = [], [], []
    for name, table in tables.items():
        kind, numbers = _parameter(path, name, table)
        values = (torch.tensor([value], dtype=torch.float32) for value in numbers.values())
        parts.append(FAMILIES[kind].build(*values))
        kinds.append(kind)
        unit = f" {table['unit']}" if "unit" in table else ""
        said = ", ".join(f"{key} {value:g}" for key, value in numbers.items())
        lines.append(f"{name}: {kind}, {said}{unit}")
    try:
        as_names([*tables], len(tables))
    except ValueError as error:
        raise ValueError(f"{error} This is a table of {path}.") from None
    prior = _product(parts, kinds)
    units = tuple(str(table.get("unit", "")).strip() for table in tables.values())
    prior.names, prior.units = tuple(tables), units  # type: ignore[attr-defined]
    return PriorFile(prior, tuple(tables), tuple(lines), units, *_data(path, data))


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a TOML file with the prior, got {path}, which does not exist. Write, for example:\n{EXAMPLE}"
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected TOML in {path}, got an error: {error}. Write, for example:\n{EXAMPLE}") from error
    for key, value in content.items():
        if not isinstance(value, dict):
            raise ValueError(
                f"Expected {path} to have nothing but tables, got {key} = {value!r} outside of any. Put it under the parameter "
                f"that it belongs to:\n{EXAMPLE}"
            )
    return content


def _parameter(path: str | Path, name: str, table: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The family and its numbers."""
    kind = table.get("distribution")
    if kind not in FAMILIES:
        got = "no distribution" if kind is None else f"distribution = {kind!r}"
        raise ValueError(
            f"Expected [{name}] in {path} to have a distribution ({', '.join(FAMILIES)}), got {got}. Write, for example:\n"
            f"{EXAMPLE.replace('mass', name)}"
        )
    family = FAMILIES[kind]
    values = "\n".join(f"{key} = {value}" for key, value in zip(family.keys, family.example, strict=True))
    example = f'[{name}]\ndistribution = "{kind}"\n{values}'

    def refuse(expected: str, got: str) -> ValueError:
        return ValueError(f"Expected {expected} in [{name}] of {path}, got {got}. Write, for example:\n{example}")

    others = set(table) - {"distribution", "unit", "description", *family.keys}
    if others:
        raise refuse(f"the keys {', '.join(family.keys)}", f"the key {sorted(others)[0]}")
    if not isinstance(table.get("unit", ""), str):
        raise refuse("a text for unit", f"unit = {table['unit']!r}")
    numbers = {}
    for key in family.keys:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise refuse(f"a number for {key}", "no such key" if value is None else f"{key} = {value!r}")
        if key in family.positive and value <= 0:
            raise refuse(f"a positive {key}", f"{key} = {value}")
        numbers[key] = float(value)
    if "low" in numbers and numbers["low"] >= numbers["high"]:
        raise refuse("low below high", f"low = {table['low']} and high = {table['high']}")
    return kind, numbers


def _product(parts: list[Distribution], kinds: list[str]) -> Distribution:
    """Independent parameters; a box or a normal distribution where all are alike, which draws and transforms faster."""
    if set(kinds) == {"uniform"}:
        return BoxUniform(torch.cat([p.low for p in parts]), torch.cat([p.high for p in parts]))  # type: ignore[attr-defined]
    if set(kinds) == {"normal"}:
        mean, std = torch.cat([p.mean for p in parts]), torch.cat([p.stddev for p in parts])
        return distributions.Independent(distributions.Normal(mean, std), 1)
    return distributions.Independent(parts[0], 1) if len(parts) == 1 else MultipleIndependent(parts)


def _data(path: str | Path, table: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    columns, prefix = table.get("columns", []), table.get("prefix", "")
    listed = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    if set(table) - {"columns", "prefix"} or not listed or not isinstance(prefix, str) or (columns and prefix):
        raise ValueError(
            f"Expected [data] of {path} to have columns, a list of names, or prefix, a text, got {table}. Write, for example:\n"
            '[data]\nprefix = "reading_"'
        )
    return tuple(columns), prefix
