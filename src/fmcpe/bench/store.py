"""The store of a run directory: one SQLite file with a row per unit, and files named by unit.

    DIR/bench.sqlite     units, plans, owners, events
    DIR/files/           base posteriors and draws, named by the unit that made them

Only the process that submits work writes here; workers return their results. A run is an *owner* with a heartbeat, and a unit
in flight belongs to one owner. Claiming is one transaction, so two runs on a directory never claim the same unit. A unit is
free again if its owner is gone: its process is dead or, on another machine or in another container, its heartbeat is old. Files
of a result are written atomically before its row, so a kill at any point leaves the unit either done or not done.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from fmcpe._disk import write_whole
from fmcpe._errors import FileError
from fmcpe.bench.rows import STATUSES, Result, Row, is_rotten_owner
from fmcpe.bench.schema import SCHEMA
from fmcpe.bench.sqlite_errors import damaged, explained
from fmcpe.bench.system import born, namespace
from fmcpe.bench.units import Unit

__all__ = ["LEASE", "Result", "Row", "Store"]

LEASE = 60.0
"""Seconds without a heartbeat after which a run on another machine, or in another container, counts as dead."""


class Store:
    """The store of one run directory. Threads may share it.

    Args:
        directory: The run directory; created if missing.
        command: The command line, for the record.
        read_only: Whether to read only: no owner is registered and nothing is created.
    """

    def __init__(self, directory: str | Path, command: str = "", read_only: bool = False) -> None:
        self.directory, self.owner = Path(directory), uuid.uuid4().hex
        self._path = path = self.directory / "bench.sqlite"
        if read_only and not path.is_file():
            raise FileNotFoundError(
                f"Expected a run directory, got {self.directory} without a run. Start one with "
                "fmcpe bench run EXPERIMENT --out DIR."
            )
        if not read_only:
            (self.directory / "files").mkdir(parents=True, exist_ok=True)
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._registered = not read_only
        tables = {row["name"] for row in self._read("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found = self._read("PRAGMA quick_check(1)")[0][0]
        if found != "ok":
            self._db.close()
            raise damaged(path, found)
        if read_only and "plans" not in tables:
            raise FileNotFoundError(
                f"Expected a run directory, got {self.directory} without any units. Start a run with "
                "fmcpe bench run EXPERIMENT --out DIR."
            )
        if read_only:
            return
        with explained(path):
            self._to_wal()
        with self._transaction():
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            now = time.time()
            self._db.execute(
                "INSERT INTO owners (id, host, pid, born, heartbeat, command, started) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.owner, namespace(), os.getpid(), born(os.getpid()), now, command, now),
            )
        threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release units in flight and sign off."""
        self._stop.set()
        with self._lock:
            if self._registered:
                # a store that cannot be written stays as after a kill: the next run takes its units back
                with suppress(OSError, ValueError), self._transaction():
                    self._db.execute(
                        "UPDATE units SET status = 'waiting', owner = NULL WHERE owner = ? AND status = 'running'",
                        (self.owner,),
                    )
                    self._db.execute("UPDATE owners SET ended = ? WHERE id = ?", (time.time(), self.owner))
            self._registered = False
            self._db.close()

    # ------------------------------------------------------------------ writing

    def add(self, experiment: str, preset: str, units: Sequence[Unit], grow: bool = False) -> None:
        """Store a plan, replacing or (`grow`) extending the existing one. Known units keep their results."""
        with self._transaction():
            for unit in units:
                self._db.execute(
                    "INSERT OR IGNORE INTO units (id, unit, label, seed) VALUES (?, ?, ?, ?)",
                    (unit.id, unit.to_json(), unit.label, unit.seed),
                )
            where = "WHERE experiment = ? AND preset = ?"
            known = self._db.execute(
                f"SELECT unit FROM plans {where} ORDER BY position", (experiment, preset)
            ).fetchall()
            planned = [row["unit"] for row in known] if grow else []
            planned = list(dict.fromkeys([*planned, *(unit.id for unit in units)]))
            self._db.execute(f"DELETE FROM plans {where}", (experiment, preset))
            self._db.executemany(
                "INSERT INTO plans VALUES (?, ?, ?, ?)",
                [(experiment, preset, i, identifier) for i, identifier in enumerate(planned)],
            )

    def claim(self, identifiers: Iterable[str]) -> str | None:
        """Claim the first free unit of these atomically; None if there is none."""
        with self._transaction():
            alive = [self.owner, *(row["id"] for row in self._owners() if not self._is_gone(row))]
            marks = ", ".join("?" * len(alive))
            # also those whose owner is lost: nobody else would free them
            self._db.execute(
                "UPDATE units SET status = 'waiting', owner = NULL WHERE status = 'running' "
                f"AND (owner IS NULL OR owner NOT IN ({marks}))",
                alive,
            )
            waiting = {row["id"] for row in self._db.execute("SELECT id FROM units WHERE status = 'waiting'")}
            for identifier in identifiers:
                if identifier in waiting:
                    self._db.execute(
                        "UPDATE units SET status = 'running', owner = ?, started = ? WHERE id = ?",
                        (self.owner, time.time(), identifier),
                    )
                    self._event(identifier, "claimed")
                    return identifier
        return None

    def release(self, identifier: str, died: bool = False) -> None:
        """Release an unfinished unit; `died` counts the death of its worker."""
        with self._transaction():
            self._db.execute(
                "UPDATE units SET status = 'waiting', owner = NULL, attempts = attempts + ? "
                "WHERE id = ? AND owner = ? AND status = 'running'",
                (int(died), identifier, self.owner),
            )

    def redo(self, identifier: str) -> bool:
        """Make a finished unit claimable again, because its file is lost; False if it is not done."""
        with self._transaction():
            ours = self._db.execute(
                "UPDATE units SET status = 'waiting', owner = NULL WHERE id = ? AND status = 'done'", (identifier,)
            ).rowcount
            if ours:
                self._event(identifier, "lost")
            return bool(ours)

    def finish(self, identifier: str, result: Result) -> bool:
        """Store a result, files first, then the row. False, without changes, if this run no longer owns the unit."""
        for name, content in result.files.items():
            write_whole(self.file(identifier, name), content)
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?)",
                [(identifier, name, sha256(content).hexdigest()) for name, content in result.files.items()],
            )
        text = json.dumps(result.metrics), json.dumps(result.versions)
        return self._end(identifier, "done", seconds=result.seconds, metrics=text[0], versions=text[1], traceback=None)

    def restore(self, unit: Unit, result: Result) -> bool:
        """Store the result of a unit of another directory, without files; False if it is done or running here."""
        text = json.dumps(result.metrics), json.dumps(result.versions)
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO units (id, unit, label, seed) VALUES (?, ?, ?, ?)",
                (unit.id, unit.to_json(), unit.label, unit.seed),
            )
            ours = self._db.execute(
                "UPDATE units SET status = 'done', finished = ?, seconds = ?, metrics = ?, versions = ?, traceback = NULL "
                "WHERE id = ? AND status IN ('waiting', 'failed')",
                (time.time(), result.seconds, *text, unit.id),
            ).rowcount
            if ours:
                self._event(unit.id, "restored")
            return bool(ours)

    def fail(self, identifier: str, traceback: str) -> bool:
        """Record a failure."""
        return self._end(identifier, "failed", traceback=traceback)

    def retry_failed(self, identifiers: Iterable[str]) -> int:
        """Make failed units claimable again and return their number."""
        with self._transaction():
            return sum(
                self._db.execute(
                    "UPDATE units SET status = 'waiting', owner = NULL, attempts = 0 WHERE id = ? AND status = 'failed'",
                    (identifier,),
                ).rowcount
                for identifier in identifiers
            )

    def _end(self, identifier: str, status: str, **values: Any) -> bool:
        assignments = ", ".join(f"{name} = ?" for name in values)
        with self._transaction():
            ours = self._db.execute(
                f"UPDATE units SET status = ?, finished = ?, {assignments} WHERE id = ? AND owner = ? AND status = 'running'",
                (status, time.time(), *values.values(), identifier, self.owner),
            ).rowcount
            if ours:
                self._event(identifier, status)
            return bool(ours)

    def _event(self, identifier: str, what: str) -> None:
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (time.time(), self.owner, identifier, what))

    # ------------------------------------------------------------------ reading

    def statuses(self, identifiers: Iterable[str]) -> dict[str, str]:
        """Status of each of these units."""
        known = {row["id"]: row["status"] for row in self._read("SELECT id, status FROM units")}
        found = {identifier: known.get(identifier, "") for identifier in identifiers}
        wrong = [identifier for identifier, status in found.items() if status not in STATUSES]
        if wrong:
            raise damaged(self._path, f"the row of unit {wrong[0]!r} was changed, or is gone")
        return found

    def rows(self, identifiers: Iterable[str] | None = None) -> dict[str, Row]:
        """Units with state and results, by id; all of them by default."""
        wanted = None if identifiers is None else set(identifiers)
        return {
            row["id"]: Row.read(row, self._path)
            for row in self._read("SELECT * FROM units ORDER BY rowid")
            if wanted is None or row["id"] in wanted
        }

    def plans(self) -> dict[tuple[str, str], list[str]]:
        """The units of each (experiment, preset), in order."""
        found: dict[tuple[str, str], list[str]] = {}
        lost = self._read("SELECT unit FROM plans WHERE unit NOT IN (SELECT id FROM units) LIMIT 1")
        if lost:
            raise damaged(self._path, f"a plan names unit {lost[0][0]!r}, which is gone")
        for row in self._read("SELECT experiment, preset, unit FROM plans ORDER BY experiment, preset, position"):
            found.setdefault((row["experiment"], row["preset"]), []).append(row["unit"])
        return found

    def owners(self) -> list[dict[str, Any]]:
        """All runs on this directory, and whether each is still active."""
        return [dict(row) | {"alive": not self._is_gone(row)} for row in self._owners()]

    def events(self) -> list[tuple[str, str]]:
        """Events in order: (unit, "claimed" | "done" | "failed" | "lost" | "restored")."""
        return [(row["unit"], row["what"]) for row in self._read("SELECT unit, what FROM events ORDER BY rowid")]

    def file(self, identifier: str, name: str) -> Path:
        """Path of a file of a unit."""
        return self.directory / "files" / f"{identifier}-{name}"

    def content(self, identifier: str, name: str) -> bytes:
        """A file of a unit, as it was stored.

        Raises:
            FileNotFoundError: If it is gone.
            FileError: If it is not what was stored.
        """
        path = self.file(identifier, name)
        found = path.read_bytes()
        with self._lock, explained(self._path):
            row = self._db.execute(
                "SELECT sha256 FROM files WHERE unit = ? AND name = ?", (identifier, name)
            ).fetchone()
        if row is not None and row[0] != sha256(found).hexdigest():
            raise FileError(f"Expected {path} as it was stored, got other bytes: it is damaged. Delete it.")
        return found

    # ------------------------------------------------------------------ internals

    def _read(self, query: str) -> list[sqlite3.Row]:
        with self._lock, explained(self._path):
            return self._db.execute(query).fetchall()

    def _owners(self) -> list[sqlite3.Row]:
        rows = self._read("SELECT * FROM owners ORDER BY started")
        if any(is_rotten_owner(row) for row in rows):
            raise damaged(self._path, "the row of a run was changed")
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, explained(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def _to_wal(self) -> None:
        """Enable write-ahead logging, with retries: SQLite ignores the timeout while another run switches to it."""
        for attempt in range(600):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == 599:
                    raise
            time.sleep(0.1)

    def _beat(self) -> None:
        while not self._stop.wait(LEASE / 10):
            with self._lock:
                if self._stop.is_set():
                    return
                # a locked file delays the heartbeat, it does not end it
                with suppress(sqlite3.OperationalError):
                    self._db.execute("UPDATE owners SET heartbeat = ? WHERE id = ?", (time.time(), self.owner))

    def _is_gone(self, owner: Mapping[str, Any] | sqlite3.Row) -> bool:
        if owner["id"] == self.owner:
            return False
        if owner["ended"] is not None:
            return True
        if owner["host"] == namespace():
            return born(owner["pid"]) != owner["born"]
        return bool(time.time() - owner["heartbeat"] > LEASE)
