"""Finished units as one file beside the kept tables, from which a run goes on in a new directory.

A unit is the same in every directory: its id is a hash of what determines its numbers. Base posteriors and draws are not
kept: a base posterior is trained again when a fit asks for it, and the report has no corner plot of a restored unit.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmcpe._errors import FileError
from fmcpe.bench.results import Results
from fmcpe.bench.rows import Result
from fmcpe.bench.store import Store
from fmcpe.bench.units import Unit

UNITS_FILE = "units.json.gz"


@dataclass(frozen=True)
class Restored:
    """Numbers of units.

    Args:
        found: In the file.
        added: New in the directory.
        old: Of an earlier version of the library, whose settings have other fields: they are left out.
    """

    found: int
    added: int
    old: int


def finished_units(results: Results) -> bytes:
    """All units of the shown plans that are done, as compressed JSON; the same units give the same bytes."""
    shown = {unit for experiment, preset in results.presets.items() for unit in results.plans[experiment, preset]}
    rows = {unit: results.rows[unit] for unit in sorted(shown) if results.rows[unit].status == "done"}
    text = json.dumps([
        {"unit": row.unit.to_json(), "seconds": row.seconds, "metrics": row.metrics, "versions": row.versions}
        for row in rows.values()
    ])  # fmt: skip
    return gzip.compress(text.encode(), mtime=0)


def restore(folder: str | Path, directory: str | Path) -> Restored:
    """Add the units that a folder keeps to a run directory; units that are done there stay as they are.

    Args:
        folder: Where ``fmcpe bench report --keep`` wrote.
        directory: The run directory; created if missing.
    """
    path = Path(folder) / UNITS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {UNITS_FILE} in {folder}, got none. Pass a folder that fmcpe bench report --keep FOLDER wrote."
        )
    kept, added, old = _read(path), 0, 0
    with Store(directory, command="fmcpe bench restore") as store:
        for each in kept:
            try:
                unit = Unit.from_json(each["unit"])
            except ValueError:
                old += 1
                continue
            added += store.restore(unit, Result(each["metrics"], each["seconds"], each["versions"]))
    return Restored(len(kept), added, old)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        kept = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FileError(f"Expected finished units in {path}, got a damaged file ({error}). Fetch it again.") from error
    if not isinstance(kept, list) or not all(isinstance(each, dict) and _is_unit(each) for each in kept):
        raise FileError(f"Expected finished units in {path}, got other content. Fetch it again.")
    return kept


def _is_unit(each: dict[str, Any]) -> bool:
    """Whether the values have the types that a store keeps."""
    types = {"unit": str, "seconds": int | float, "metrics": dict, "versions": dict}
    return all(isinstance(each.get(name), kind) for name, kind in types.items())
