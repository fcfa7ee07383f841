"""The runner: nothing is lost, nothing is done twice, whatever happens to the processes."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import bench_helpers as helpers
import pytest

from fmcpe._disk import write_whole
from fmcpe.bench.progress import Progress, line, remaining
from fmcpe.bench.run import run
from fmcpe.bench.status import status
from fmcpe.bench.store import Result, Row, Store
from fmcpe.bench.units import Unit
from fmcpe.bench.work import DRAWS_FILE

UNITS = helpers.units()


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    """What the units write when they are performed."""
    path = tmp_path / "log"
    monkeypatch.setenv(helpers.LOG, str(path))
    return path


def start(directory, number, **environment):
    """A run in a process of its own."""
    code = [sys.executable, helpers.__file__, str(directory), str(number)]
    return subprocess.Popen(code, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def done_once(directory, units):
    """Every unit has one result, recorded once, with its files whole."""
    with Store(directory, read_only=True) as store:
        rows, events = store.rows(), Counter(store.events())
        for unit in units:
            assert rows[unit.id].status == "done"
            assert events[unit.id, "done"] == 1
            if unit.kind == "fit":
                assert store.file(unit.id, DRAWS_FILE).read_bytes() == unit.id.encode() * 10_000
    return events


def test_a_run_does_every_unit_once_and_a_second_one_nothing(tmp_path, log):
    plans = {("main", "smoke"): UNITS}
    first = run(tmp_path / "run", plans, jobs=2, perform=helpers.perform)
    assert (first.done, first.failed, first.done_now, first.exit_code) == (len(UNITS), 0, len(UNITS), 0)
    done_once(tmp_path / "run", UNITS)
    begun = Counter(words[1] for words in helpers.lines(log) if words[0] == "begin")
    assert begun == {unit.id: 1 for unit in UNITS}

    again = run(tmp_path / "run", plans, jobs=2, perform=helpers.perform)
    assert (again.done, again.done_now) == (len(UNITS), 0)
    assert len(helpers.lines(log)) == 2 * len(UNITS)
    assert not list((tmp_path / "run" / "files").glob(".writing*"))


def test_experiments_share_units(tmp_path):
    run(tmp_path / "run", {("main", "smoke"): UNITS[:6]}, jobs=2, perform=helpers.perform)
    outcome = run(tmp_path / "run", {("ablation", "smoke"): UNITS}, jobs=2, perform=helpers.perform)
    assert outcome.done_now == len(UNITS) - 6


def test_a_killed_run_goes_on_where_it_was(tmp_path, log):
    """Killed with -9 at several points: what was recorded stays and is not done again, what was in flight is."""
    directory, number = tmp_path / "run", 24
    units, finished_before = helpers.units(number), set()
    for share in (0.2, 0.5):
        process = start(directory, number, FMCPE_TEST_SECONDS="0.1")
        goal = share * len(units)
        wait_until(lambda goal=goal: len([w for w in helpers.lines(log) if w[0] == "end"]) >= goal)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with Store(directory, read_only=True) as store:
            finished = {i for i, row in store.rows().items() if row.status == "done"}
        assert finished_before <= finished < {unit.id for unit in units}
        assert finished
        finished_before = finished

    claimed_before = {i for i, what in _events(directory) if what == "claimed"}
    outcome = run(directory, {("main", "smoke"): units}, jobs=2, perform=helpers.perform)
    assert outcome.done == len(units)
    assert outcome.done_now == len(units) - len(finished_before)
    events = done_once(directory, units)
    for unit in units:
        # at most the units in flight, two at a time in each of the two killed runs, were claimed more than once
        assert (
            events[unit.id, "claimed"] == 1 or unit.id in claimed_before - finished_before or unit.id in finished_before
        )
    assert sum(events[unit.id, "claimed"] - 1 for unit in units) <= 4


def test_workers_end_with_the_run_that_started_them(tmp_path, log):
    process = start(tmp_path / "run", 12, FMCPE_TEST_SECONDS="600")
    wait_until(lambda: len(helpers.lines(log)) == 2)
    workers = [int(words[2]) for words in helpers.lines(log)]
    process.kill()
    process.wait()
    wait_until(lambda: not any(_alive(pid) for pid in workers), 20)


def test_a_kill_in_the_middle_of_a_write_leaves_the_state_before_it(tmp_path):
    """A process is killed while its transaction is open and a file half written."""
    directory, unit = tmp_path / "run", UNITS[0]
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(helpers.__file__).parent)!r})
import bench_helpers as helpers
from fmcpe.bench.store import Store
store = Store({str(directory)!r})
store.add("main", "smoke", helpers.units())
assert store.claim([{unit.id!r}])
(store.directory / "files" / ".writing-x").write_bytes(b"half")
store._db.execute("BEGIN IMMEDIATE")
store._db.execute("UPDATE units SET status = 'done', metrics = '{{'")
print("written", flush=True)
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL and killed.stdout == "written\n", killed.stderr
    with Store(directory) as store:
        row = store.rows([unit.id])[unit.id]
        assert (row.status, row.metrics) == ("running", {})
        # its owner is dead, so it is free at once, and the half-written file is nobody's
        assert store.claim([unit.id]) == unit.id
        assert store.finish(unit.id, Result({"energy": 1.0}, 0.1, {}))
    assert sqlite3.connect(directory / "bench.sqlite").execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_runs_at_once_share_the_work(tmp_path, log):
    directory, number = tmp_path / "run", 24
    both = [start(directory, number, FMCPE_TEST_SECONDS="0.1") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    done_once(directory, helpers.units(number))
    begun = Counter(words[1] for words in helpers.lines(log) if words[0] == "begin")
    assert set(begun.values()) == {1} and len(begun) == len(helpers.units(number))
    assert len({words[2] for words in helpers.lines(log)}) > 2, "only one of the two runs did anything"


def test_a_claimed_unit_is_nobody_elses(tmp_path):
    with Store(tmp_path) as one, Store(tmp_path) as two:
        one.add("main", "smoke", UNITS)
        assert one.claim([UNITS[0].id]) == UNITS[0].id
        assert two.claim([UNITS[0].id]) is None
        assert not two.finish(UNITS[0].id, Result({}, 0.0, {})), "a result of a unit that is not ours was taken"
        one.close()
        assert two.claim([UNITS[0].id]) == UNITS[0].id, "a closed run gives back what it had"


def test_a_run_on_another_machine_is_dead_when_its_heart_stops(tmp_path):
    with Store(tmp_path) as store:
        store.add("main", "smoke", UNITS)
        row = ("elsewhere", "another-machine", 1, "1", time.time(), "", time.time(), None)
        store._db.execute("INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        store._db.execute("UPDATE units SET status = 'running', owner = 'elsewhere' WHERE id = ?", (UNITS[0].id,))
        assert store.claim([UNITS[0].id]) is None
        store._db.execute("UPDATE owners SET heartbeat = heartbeat - 3600 WHERE id = 'elsewhere'")
        assert store.claim([UNITS[0].id]) == UNITS[0].id


def test_a_failing_unit_is_recorded_and_the_run_goes_on(tmp_path):
    plans = {("main", "smoke"): UNITS}
    outcome = run(tmp_path, plans, jobs=2, perform=helpers.failing)
    assert (outcome.done, outcome.failed, outcome.exit_code) == (len(UNITS) - 1, 1, 1)
    with Store(tmp_path, read_only=True) as store:
        (row,) = [row for row in store.rows().values() if row.status == "failed"]
    assert (row.unit.task, row.unit.set) == ("pendulum", 1)
    assert "Traceback" in row.traceback and "ArithmeticError: one of the units" in row.traceback

    text = status(tmp_path)
    assert "ArithmeticError: one of the units cannot be done" in text and "Traceback" not in text
    assert "Traceback" in status(tmp_path, failures=True)

    untouched = run(tmp_path, plans, jobs=1, perform=helpers.perform)
    assert (untouched.failed, untouched.done_now) == (1, 0), "a failed unit is tried again only when asked"
    mended = run(tmp_path, plans, jobs=1, perform=helpers.perform, retry_failed=True)
    assert (mended.failed, mended.done_now, mended.exit_code) == (0, 1, 0)


def test_what_needs_a_failed_base_posterior_fails_with_it_and_is_retried_with_it(tmp_path):
    plans = {("main", "smoke"): UNITS}
    outcome = run(tmp_path, plans, jobs=2, perform=helpers.failing_base)
    assert (outcome.failed, outcome.done) == (7, 7)
    mended = run(tmp_path, plans, jobs=2, perform=helpers.perform, retry_failed=True)
    assert (mended.failed, mended.done_now) == (0, 7)


def test_a_unit_that_kills_its_worker_is_given_up_and_the_others_are_done(tmp_path):
    outcome = run(tmp_path, {("main", "smoke"): UNITS}, jobs=2, perform=helpers.deadly)
    assert (outcome.failed, outcome.done) == (1, len(UNITS) - 1)
    assert "worker process died" in status(tmp_path)


def test_files_are_whole_or_absent(tmp_path):
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    with pytest.raises(TypeError):
        write_whole(tmp_path / "a", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"new"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(tmp_path):
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        run(
            tmp_path / str(id(stream)), {("main", "smoke"): UNITS}, jobs=2, perform=helpers.perform,
            progress=Progress("main (smoke)", stream),
        )  # fmt: skip
    assert file.getvalue() == ""
    assert terminal.getvalue().count("\n") == 1 and "main (smoke): " in terminal.getvalue()


def test_the_time_that_is_left_is_judged_by_units_alike():
    def row(method, status, seconds=None):
        return Row(Unit("fit", "gaussian", method, pairs=10), status, seconds, {}, {}, None, 1)

    rows = [row("npe", "done", 1.0), row("fmcpe", "done", 9.0), row("fmcpe", "waiting"), row("npe", "running")]
    assert remaining(rows, 2) == pytest.approx((9.0 + 1.0) / 2)
    assert remaining(rows[2:], 2) is None
    text = line("main", rows, 1, 2)
    assert text.startswith("main: 2 of 4 done, 1 running, 1 waiting, 5 s left, ends about ")


def test_a_directory_without_a_run_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^Expected a run directory, got .+ Start one with fmcpe bench run"):
        status(tmp_path)
    assert list(tmp_path.glob("*.sqlite")) == []


def test_a_unit_of_another_version_is_refused():
    text = json.dumps(json.loads(UNITS[0].to_json()) | {"temperature": 1})
    with pytest.raises(ValueError, match=r"^Expected .+, got one that differs in temperature\. Start"):
        Unit.from_json(text)
    assert Unit.from_json(UNITS[-1].to_json()) == UNITS[-1]


def _events(directory):
    with Store(directory, read_only=True) as store:
        return store.events()


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("content", [b"", b"not a database, but a letter to a friend" * 50])
def test_a_folder_that_holds_no_run_is_refused_in_words(tmp_path, content):
    (tmp_path / "bench.sqlite").write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=r"^Expected a run .+, got .+\. (Start a run|Pass a new)"):
        Store(tmp_path, read_only=True)
