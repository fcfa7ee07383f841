"""Execution of a plan: claim a unit, submit it to a worker, store the result.

One loop serves both kinds of pool. It claims a unit only when a worker is free, so that a second run on the same directory can
share the work, and waits for base posteriors that the other run is training.
"""

from __future__ import annotations

import os
import queue
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmcpe._errors import FileError
from fmcpe.bench.plan import GROWING
from fmcpe.bench.pools import DaskPool, LocalPool, Pool
from fmcpe.bench.progress import Progress
from fmcpe.bench.store import Result, Store
from fmcpe.bench.units import Unit
from fmcpe.bench.work import BASE_FILE, perform

Perform = Callable[..., Result]
"""(unit, file of its base posterior, folder of its measured data if any) -> result."""

MAX_DEATHS = 3
"""Worker deaths after which a unit counts as failed."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        statuses: Status of each unit, by id.
        done_now: Number of units done by this run.
    """

    statuses: dict[str, str]
    done_now: int

    @property
    def done(self) -> int:
        """Number of units done."""
        return list(self.statuses.values()).count("done")

    @property
    def failed(self) -> int:
        """Number of units failed."""
        return list(self.statuses.values()).count("failed")

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return 1 if self.failed else 0


def run(
    directory: str | Path,
    plans: dict[tuple[str, str], list[Unit]],
    *,
    jobs: int | None = None,
    dask: str | None = None,
    data: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    command: str = "",
    perform: Perform = perform,
    progress: Progress | None = None,
) -> Outcome:
    """Perform the units that are not done yet.

    Args:
        directory: The run directory; created if missing, resumed if not.
        plans: Units by (experiment, preset).
        jobs: Worker processes; every core if None.
        dask: Address of a Dask scheduler, in place of worker processes.
        data: Folders of measured data by task.
        retry_failed: Whether to run failed units again.
        command: The command line, for the record.
        perform: Performs a unit.
        progress: The progress line.
    """
    units = list(dict.fromkeys(unit for plan in plans.values() for unit in plan))
    units.sort(key=lambda unit: unit.kind != "base")
    with Store(directory, command) as store:
        for (experiment, preset), plan in plans.items():
            store.add(experiment, preset, plan, grow=experiment in GROWING)
        if retry_failed:
            _redo_damaged(store, units)
            store.retry_failed(unit.id for unit in units)
        pool: Pool = DaskPool(dask) if dask else LocalPool((os.cpu_count() or 1) if jobs is None else jobs)
        progress = progress or Progress("bench")
        try:
            done_now = _Loop(store, units, pool, perform, progress, data or {}).go()
        finally:
            progress.close()
            pool.close()
        return Outcome(store.statuses(unit.id for unit in units), done_now)


def _redo_damaged(store: Store, units: Sequence[Unit]) -> None:
    """Train base posteriors again whose file a failed unit could not load; stores of earlier versions have no checksums."""
    rows = store.rows(unit.id for unit in units)
    for row in rows.values():
        if row.status == "failed" and row.unit.base is not None and "FileError" in (row.traceback or ""):
            store.redo(row.unit.base.id)


class _Loop:
    def __init__(
        self,
        store: Store,
        units: Sequence[Unit],
        pool: Pool,
        perform: Perform,
        progress: Progress,
        data: Mapping[str, str],
    ) -> None:
        self.store, self.pool, self.perform, self.progress, self.data = store, pool, perform, progress, data
        self.units = {unit.id: unit for unit in units}
        self.flying: dict[str, Any] = {}
        self.landed: queue.Queue[str] = queue.Queue()
        # when a worker dies, the pool aborts all units in flight: run each of them alone to find the one at fault
        self.suspects: set[str] = set()
        self.in_company: set[str] = set()
        self.done_now = 0

    def go(self) -> int:
        """Run until every unit is done or failed; return the number done by this run."""
        while True:
            statuses = self.store.statuses(self.units)
            open_units = [i for i, status in statuses.items() if status in ("waiting", "running")]
            if not open_units:
                return self.done_now
            slots = self.pool.slots()
            self._take_off(open_units, statuses, slots)
            self.progress.show(lambda: list(self.store.rows(self.units).values()), len(self.flying), slots)
            try:
                self._land(self.landed.get(timeout=0.5))
                while True:
                    self._land(self.landed.get_nowait())
            except queue.Empty:
                pass

    def _take_off(self, open_units: Sequence[str], statuses: dict[str, str], slots: int) -> None:
        ready = []
        for identifier in open_units:
            base = self.units[identifier].base
            status = "done" if base is None else statuses[base.id]
            if status == "done":
                ready.append(identifier)
            elif base is not None and status == "failed" and self.store.claim([identifier]):
                self.store.fail(identifier, f"The base posterior failed: see unit {base.id}.\n")
        while len(self.flying) < slots and not self.suspects & self.flying.keys():
            claimed = self.store.claim(i for i in ready if i not in self.suspects)
            if claimed is None and not self.flying:
                claimed = self.store.claim(i for i in ready if i in self.suspects)
            if claimed is None:
                return
            unit = self.units[claimed]
            try:
                content = None if unit.base is None else self.store.content(unit.base.id, BASE_FILE)
            except (FileNotFoundError, FileError) as error:
                self._train_again(claimed, "missing" if isinstance(error, FileNotFoundError) else "damaged")
                return
            folder = (self.data.get(unit.task),) if unit.data else ()
            future = self.pool.submit(_guarded, self.perform, unit, content, *folder)
            self.flying[claimed] = future
            if self.pool.shared_fate and len(self.flying) > 1:
                self.in_company.update(self.flying)
            future.add_done_callback(lambda _, identifier=claimed: self.landed.put(identifier))

    def _train_again(self, claimed: str, what: str) -> None:
        """Repeat the unit of a base posterior whose file is missing or damaged, then this one."""
        base = self.units[claimed].base
        self.store.release(claimed)
        if base is not None and self.store.redo(base.id):
            path = self.store.file(base.id, BASE_FILE)
            self.progress.say(f"fmcpe bench: {path} is {what}; training {base.label} again.")

    def _land(self, identifier: str) -> None:
        future = self.flying.pop(identifier)
        alone = identifier not in self.in_company
        self.in_company.discard(identifier)
        try:
            result = future.result()
        except BaseException as problem:  # not an error of the unit itself: these come back as text
            if isinstance(problem, KeyboardInterrupt):
                raise
            error = f"A worker process died: {problem!r}"
            self.suspects.add(identifier)
            if alone and self.store.rows([identifier])[identifier].attempts + 1 >= MAX_DEATHS:
                self.store.fail(identifier, f"{error} ({MAX_DEATHS} times). Check the available memory.\n")
            else:
                self.store.release(identifier, died=alone)
            return
        if isinstance(result, Result):
            self.done_now += self.store.finish(identifier, result)
        else:
            self.store.fail(identifier, result)


def _guarded(perform: Perform, unit: Unit, base: bytes | None, *folder: str | None) -> Result | str:
    """The result, or the traceback as text, since not every exception can be pickled."""
    try:
        return perform(unit, base, *folder)
    except Exception:
        return traceback.format_exc()
