"""A store on a bad disk: pages that rot, disks that are full, files of base posteriors that changed."""

import errno
import gzip
import io
import json
import os
import sqlite3
from types import SimpleNamespace

import bench_helpers as helpers
import pytest

from fmcpe import FileError
from fmcpe.bench.progress import Progress
from fmcpe.bench.restore import restore
from fmcpe.bench.results import Results
from fmcpe.bench.run import run
from fmcpe.bench.salvage import salvage
from fmcpe.bench.status import status
from fmcpe.bench.store import Result, Store
from fmcpe.bench.work import BASE_FILE, DRAWS_FILE
from fmcpe.cli import main

UNITS = helpers.units(4)
PLANS = {("main", "smoke"): UNITS}
MANY = helpers.units(400)


def finished(directory):
    run(directory, PLANS, jobs=1, perform=helpers.perform)
    return directory / "bench.sqlite"


def rot(path, page, size=4096):
    data = bytearray(path.read_bytes())
    data[page * size : (page + 1) * size] = b"\xa5" * size
    path.write_bytes(data)


def test_a_corrupted_page_is_named_with_a_way_on_and_what_is_readable_is_kept(tmp_path, capsys):
    with Store(tmp_path) as store:
        store.add("main", "smoke", MANY)
        for unit in MANY:
            assert store.claim([unit.id])
            store.finish(unit.id, Result({"energy": 1.0}, 0.1, {}))
    path = tmp_path / "bench.sqlite"
    with sqlite3.connect(path) as db:
        pages = [row[0] for row in db.execute("SELECT pageno FROM dbstat WHERE name = 'units' AND pagetype = 'leaf'")]
    rot(path, pages[len(pages) // 2] - 1)
    for read_only in (False, True):
        with pytest.raises(FileError, match=rf"fmcpe bench salvage --out {tmp_path}"):
            Store(tmp_path, read_only=read_only)
    assert main(["bench", "status", "--out", str(tmp_path)]) == 2
    assert "salvage" in capsys.readouterr().err
    assert main(["bench", "salvage", "--out", str(tmp_path)]) == 0
    with Store(tmp_path) as store:
        rows = store.rows()
        assert 0.8 * len(MANY) < len(rows) < len(MANY), "all but those of one page"
        assert all(row.status == "done" and row.metrics == {"energy": 1.0} for row in rows.values())
        store.add("main", "smoke", MANY)  # what the same command does
        assert list(store.statuses(unit.id for unit in MANY).values()).count("waiting") == len(MANY) - len(rows)
    assert len([p for p in tmp_path.glob("bench.sqlite.damaged-*") if not p.name.endswith(("-wal", "-shm"))]) == 1


@pytest.mark.parametrize(
    ("text", "to"), [(b'"epochs"', b'"epocis"'), (b'"epochs"', b"\xff" * 8), (b'"energy"', b'"energ\\"')]
)
def test_a_cell_that_rots_in_a_page_that_is_whole_is_named_and_salvaged(text, to, tmp_path):
    with Store(tmp_path) as store:
        store.add("main", "smoke", UNITS)
        for unit in UNITS:
            store.finish(store.claim([unit.id]), Result({"energy": 1.0}, 0.1, {}))
    path = tmp_path / "bench.sqlite"
    data = bytearray(path.read_bytes())
    place = data.rindex(text)
    data[place : place + len(text)] = to
    path.write_bytes(data)
    with pytest.raises(FileError, match="fmcpe bench salvage"), Store(tmp_path) as store:
        store.rows()
    assert main(["bench", "salvage", "--out", str(tmp_path)]) == 0
    with Store(tmp_path) as store:
        assert 1 <= len(UNITS) - len(store.rows()) <= 2
        store.add("main", "smoke", UNITS)
        assert list(store.statuses(unit.id for unit in UNITS).values()).count("waiting") >= 1


CHANGES = {
    "a plan without its unit": "DELETE FROM units WHERE rowid = 1",
    "metrics that are a list": "UPDATE units SET metrics = '[1]'",
    "versions that are a list": "UPDATE units SET versions = '[1]'",
    "times that are text": "UPDATE units SET seconds = 'x', finished = 'y'",
    "a status of no kind": "PRAGMA ignore_check_constraints = 1; UPDATE units SET status = 'dona'",
    "a column with another name": "ALTER TABLE units RENAME COLUMN traceback TO tracebaci",
    "a column of plans with another name": "ALTER TABLE plans RENAME COLUMN unit TO unot",
    "a table with another name": "ALTER TABLE owners RENAME TO owmers",
    "an owner's times that are text": "UPDATE owners SET started = 'x', heartbeat = 'y'",
    "an owner's host that is none": "UPDATE owners SET host = x'00ff'",
}


@pytest.mark.parametrize("what", CHANGES)
def test_rows_that_changed_are_named_and_salvaged(what, tmp_path):
    with Store(tmp_path) as store:
        store.add("main", "smoke", UNITS)
        store.finish(store.claim([UNITS[0].id]), Result({"energy": 1.0}, 0.1, {}))
    with sqlite3.connect(tmp_path / "bench.sqlite") as db:
        db.executescript(CHANGES[what])
    with pytest.raises(FileError, match="fmcpe bench salvage"):
        status(tmp_path)
    salvage(tmp_path)
    assert "no active run" in status(tmp_path)
    with Store(tmp_path) as store:
        store.add("main", "smoke", UNITS)
        assert set(store.statuses(unit.id for unit in UNITS).values()) <= {"waiting", "done"}
        assert store.claim([UNITS[-1].id])


def test_names_that_are_no_text_are_damage(tmp_path):
    path = finished(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"traceback TEXT", b"tracebac\xff TEXT"))
    with pytest.raises(FileError, match="fmcpe bench salvage"):
        status(tmp_path)


def test_a_header_that_is_gone_is_named(tmp_path, capsys):
    rot(finished(tmp_path), 0)
    assert main(["bench", "status", "--out", str(tmp_path)]) == 2
    assert "Expected a run of fmcpe bench" in capsys.readouterr().err


def test_a_full_disk_loses_nothing_that_was_done(tmp_path):
    with Store(tmp_path) as store:
        store.add("main", "smoke", UNITS)
        done = store.claim([UNITS[0].id])
        assert store.finish(done, Result({}, 0.1, {}, {BASE_FILE: b"base"}))
        in_flight = store.claim([UNITS[1].id])
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match=r"Units that are done are kept\. Free space") as refused:
            store.finish(in_flight, Result({"big": "x" * 100_000}, 0.1, {}))
        assert refused.value.errno == errno.ENOSPC
    with Store(tmp_path) as store:
        assert store.statuses([done, in_flight]) == {done: "done", in_flight: "waiting"}


def test_a_disk_that_is_full_while_files_are_written(tmp_path, monkeypatch):
    """The run ends with the message of the disk; the same command goes on later."""

    def full(handle, rest):
        raise OSError(errno.ENOSPC, "No space left")

    # of the module alone: processes are started with os.write, too
    monkeypatch.setattr("fmcpe._disk.os", SimpleNamespace(**vars(os) | {"write": full}))
    with pytest.raises(OSError, match=r"No space left.*Free space"):
        run(tmp_path, PLANS, jobs=1, perform=helpers.perform)
    monkeypatch.undo()
    assert not list((tmp_path / "files").iterdir())
    assert run(tmp_path, PLANS, jobs=1, perform=helpers.perform).done == len(UNITS)


def test_a_rotted_base_posterior_is_trained_again_and_said(tmp_path):
    finished(tmp_path)
    path = tmp_path / "files" / f"{UNITS[0].id}-{BASE_FILE}"
    path.write_bytes(b"G" + path.read_bytes()[1:])
    said = io.StringIO()
    more = {("main", "quick"): helpers.units(6)}
    outcome = run(tmp_path, more, jobs=1, perform=helpers.perform, progress=Progress("main", said))
    assert (outcome.done, outcome.failed) == (len(helpers.units(6)), 0)
    assert path.read_bytes() == UNITS[0].task.encode()
    assert f"{path} is damaged; training {UNITS[0].label} again." in said.getvalue()


def cannot_load(unit, base=None):
    if unit.kind == "fit" and base != unit.task.encode():
        raise FileError("Expected a whole file, got another.")
    return helpers.perform(unit, base)


def test_retry_failed_trains_a_damaged_base_again_in_stores_without_checksums(tmp_path):
    """As runs of earlier versions left them: the damage shows only when a unit cannot load the file."""
    bases = [unit for unit in UNITS if unit.kind == "base"]
    run(tmp_path, {("main", "smoke"): bases}, jobs=1, perform=helpers.perform)
    path = tmp_path / "files" / f"{bases[0].id}-{BASE_FILE}"
    path.write_bytes(b"rotten")
    with sqlite3.connect(tmp_path / "bench.sqlite") as db:
        db.execute("DELETE FROM files")
    assert run(tmp_path, PLANS, jobs=1, perform=cannot_load).failed == 2
    assert run(tmp_path, PLANS, jobs=1, perform=cannot_load).failed == 2
    outcome = run(tmp_path, PLANS, jobs=1, perform=cannot_load, retry_failed=True)
    assert (outcome.done, outcome.failed) == (len(UNITS), 0) and path.read_bytes() == bases[0].task.encode()


def test_rotted_draws_are_left_out_of_the_report_with_a_warning(tmp_path):
    finished(tmp_path)
    fit = next(unit for unit in UNITS if unit.kind == "fit")
    (tmp_path / "files" / f"{fit.id}-{DRAWS_FILE}").write_bytes(b"PK\x03\x04rotten")
    with pytest.warns(UserWarning, match="got a damaged file"):
        assert Results.read(tmp_path).arrays(fit) is None


@pytest.mark.filterwarnings("ignore:Expected the draws")
def test_a_kept_run_goes_on_in_a_new_directory(tmp_path, capsys):
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    some = {("main", "smoke"): UNITS[:-1]}
    run(first, some, jobs=1, perform=helpers.perform)
    assert main(["bench", "report", "--out", str(first), "--keep", str(kept)]) == 0
    assert main(["bench", "restore", str(kept), "--out", str(second)]) == 0
    outcome = run(second, PLANS, jobs=1, perform=helpers.perform)
    assert outcome.done_now == 2  # the last fit, and its base posterior, whose file is not kept
    with Store(first, read_only=True) as a, Store(second, read_only=True) as b:
        assert all(b.rows()[key].metrics == row.metrics for key, row in a.rows().items())
    assert main(["bench", "restore", str(kept), "--out", str(second)]) == 0
    assert f"{len(UNITS) - 1} finished units" in (said := capsys.readouterr().out) and "0 new" in said.splitlines()[-1]
    (kept / "units.json.gz").write_bytes(b"torn")
    assert main(["bench", "restore", str(kept), "--out", str(second)]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["unit", "seconds", "metrics", "versions"])
def test_kept_units_with_values_of_a_wrong_type_are_refused(tmp_path, name):
    row = {"unit": UNITS[0].to_json(), "seconds": 1.0, "metrics": {}, "versions": {}} | {name: None}
    (tmp_path / "units.json.gz").write_bytes(gzip.compress(json.dumps([row]).encode()))
    with pytest.raises(FileError, match=r"^Expected finished units in .+, got other content\. Fetch it again"):
        restore(tmp_path, tmp_path / "run")
