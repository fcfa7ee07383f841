"""What can still be read of a damaged store, in a new one."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from fmcpe.bench.rows import is_rotten, is_rotten_owner
from fmcpe.bench.schema import SCHEMA

TABLES = ("units", "plans", "owners", "events", "files")


def salvage(directory: str | Path) -> tuple[dict[str, int], Path]:
    """Copy the readable rows of a store into a new one, and keep the damaged file beside it.

    Units whose rows are lost are run again by the next `fmcpe bench run`; no run may be active meanwhile.

    Args:
        directory: The run directory.

    Returns:
        Rows saved of each table, and where the damaged file is now.
    """
    path = Path(directory) / "bench.sqlite"
    if not path.is_file():
        raise FileNotFoundError(f"Expected a run directory, got {directory} without bench.sqlite. Check --out.")
    fresh = path.with_name("bench.sqlite.salvaged")
    fresh.unlink(missing_ok=True)
    old, new = sqlite3.connect(path), sqlite3.connect(fresh)
    try:
        new.executescript(SCHEMA)
        saved = {table: _copied(old, new, table) for table in TABLES}
        new.row_factory = sqlite3.Row
        for row in new.execute("SELECT * FROM units").fetchall():
            if is_rotten(row):
                saved["units"] -= new.execute("DELETE FROM units WHERE id = ?", (row["id"],)).rowcount
        for row in new.execute("SELECT * FROM owners").fetchall():
            if is_rotten_owner(row):
                saved["owners"] -= new.execute("DELETE FROM owners WHERE id IS ?", (row["id"],)).rowcount
        known = {row[0] for row in new.execute("SELECT id FROM units")}
        for (unit,) in new.execute("SELECT DISTINCT unit FROM plans").fetchall():
            if unit not in known:  # its description is lost: a new run plans it again
                new.execute("DELETE FROM plans WHERE unit = ?", (unit,))
        new.execute("UPDATE units SET status = 'waiting', owner = NULL WHERE status = 'running'")
        new.commit()
    finally:
        old.close()
        new.close()
    kept = path.with_name(f"bench.sqlite.damaged-{int(time.time())}")
    os.replace(path, kept)
    for ending in ("-wal", "-shm"):  # they belong to the damaged file
        beside = path.with_name(path.name + ending)
        if beside.exists():
            os.replace(beside, kept.with_name(kept.name + ending))
    os.replace(fresh, path)
    return saved, kept


def _copied(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> int:
    """Copy rows until an error from the front, then from the back: those between are lost."""
    names = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
    marks, columns, saved = ", ".join("?" * len(names)), ", ".join(names), 0
    for order in ("ASC", "DESC"):
        try:
            for row in old.execute(f"SELECT {columns} FROM {table} ORDER BY rowid {order}"):
                saved += new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row).rowcount
            return saved
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            continue
    return saved
