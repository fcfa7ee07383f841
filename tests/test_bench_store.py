"""What the store holds against a unit, whose process numbers it believes, and what it does about a file that is gone."""

import io
import os
import socket
import subprocess
import sys
import time
from functools import partial

import bench_helpers as helpers
import pytest

from fmcpe.bench.progress import Progress
from fmcpe.bench.run import MAX_DEATHS, run
from fmcpe.bench.status import status
from fmcpe.bench.store import LEASE, Store
from fmcpe.bench.system import namespace
from fmcpe.bench.work import BASE_FILE

UNITS = helpers.units(4)
PLANS = {("main", "smoke"): UNITS}


def fake_proc(path, boot, pids):
    """A /proc that says which boot and which PID namespace this is."""
    (path / "sys/kernel/random").mkdir(parents=True)
    (path / "sys/kernel/random/boot_id").write_text(boot + "\n")
    (path / "self/ns").mkdir(parents=True)
    (path / "self/ns/pid").symlink_to(f"pid:[{pids}]")
    return path


def test_a_place_has_its_boot_and_pid_namespace_where_the_system_tells(tmp_path):
    one, two = fake_proc(tmp_path / "1", "a", 7), fake_proc(tmp_path / "2", "a", 8)
    other_boot = fake_proc(tmp_path / "3", "b", 7)
    assert len({namespace(one), namespace(two), namespace(other_boot)}) == 3
    assert namespace(one) == namespace(one) == f"{socket.gethostname()} boot=a pid:[7]"
    assert namespace(tmp_path / "nothing") == socket.gethostname(), "where /proc is not there, the host name is all"
    assert namespace() == namespace()


def test_a_run_in_another_container_of_the_same_name_lives_by_its_heartbeat(tmp_path, monkeypatch):
    """Its process number means nothing here: ours of that number may be another, or none."""
    directory = tmp_path / "run"
    with monkeypatch.context() as context:
        container = fake_proc(tmp_path / "proc", "a", 7)
        context.setattr("fmcpe.bench.store.namespace", lambda: namespace(container))
        context.setattr("fmcpe.bench.store.os.getpid", lambda: 2**22 + 1)  # above Linux's largest
        context.setattr("fmcpe.bench.store.born", lambda pid: "12345")
        elsewhere = Store(directory, "in a container")
        elsewhere.add("main", "smoke", UNITS)
        assert elsewhere.claim([UNITS[0].id]) == UNITS[0].id
    with Store(directory) as store:
        assert store.claim([UNITS[0].id]) is None, "a unit that is at work in a container was taken"
        assert f"on {socket.gethostname()} since" in status(directory)
        store._db.execute("UPDATE owners SET heartbeat = ? WHERE command != ''", (time.time() - 2 * LEASE,))
        assert store.claim([UNITS[0].id]) == UNITS[0].id
    elsewhere.close()


def killed_runs(directory, number, unit):
    """Runs that claim a unit and are killed with -9 while they have it."""
    code = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(helpers.__file__)!r})
import bench_helpers as helpers
from fmcpe.bench.store import Store
store = Store({str(directory)!r})
store.add("main", "smoke", helpers.units(4))
assert store.claim([{unit.id!r}])
os.kill(os.getpid(), 9)
"""
    for _ in range(number):
        killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert killed.returncode == -9, killed.stderr


def test_killed_runs_are_not_held_against_a_unit(tmp_path):
    """As often as a unit may kill its worker, its run was killed; then one worker dies: the unit is still tried again."""
    directory, base = tmp_path / "run", UNITS[0]
    killed_runs(directory, MAX_DEATHS, base)
    died = tmp_path / "died"
    outcome = run(directory, PLANS, jobs=1, perform=partial(helpers.dies_once, died, base.task))
    assert died.exists() and (outcome.done, outcome.failed) == (len(UNITS), 0)
    with Store(directory, read_only=True) as store:
        attempts = {row.unit.id: row.attempts for row in store.rows().values()}
    assert attempts == {unit.id: int(unit == base) for unit in UNITS}, "one death, of one unit"


def test_units_beside_one_that_kills_its_worker_are_not_blamed(tmp_path):
    outcome = run(tmp_path, {("main", "smoke"): helpers.units()}, jobs=2, perform=helpers.deadly)
    assert outcome.failed == 1
    with Store(tmp_path, read_only=True) as store:
        blamed = [row for row in store.rows().values() if row.attempts]
    assert [(row.unit.task, row.unit.set, row.status) for row in blamed] == [("pendulum", 1, "failed")]


def test_a_lost_base_posterior_is_trained_again_and_said(tmp_path):
    """The files of a finished run are cleared away; a larger plan needs one of them."""
    run(tmp_path, PLANS, jobs=2, perform=helpers.perform)
    lost = tmp_path / "files" / f"{UNITS[0].id}-{BASE_FILE}"
    lost.unlink()
    said = io.StringIO()
    more = {("main", "quick"): helpers.units(6)}
    outcome = run(tmp_path, more, jobs=2, perform=helpers.perform, progress=Progress("main", said))
    assert (outcome.done, outcome.failed, outcome.done_now) == (len(helpers.units(6)), 0, 3)
    assert lost.read_bytes() == UNITS[0].task.encode()
    assert said.getvalue() == f"fmcpe bench: {lost} is missing; training {UNITS[0].label} again.\n"
    with Store(tmp_path, read_only=True) as store:
        assert [what for unit, what in store.events() if unit == UNITS[0].id][-3:] == ["lost", "claimed", "done"]


@pytest.mark.parametrize("change", ["DELETE FROM owners WHERE id = ?", "UPDATE units SET owner = NULL WHERE owner = ?"])
def test_a_unit_whose_owner_is_lost_is_free(change, tmp_path):
    """Otherwise a run would wait for it for ever."""
    unit = UNITS[0]
    with Store(tmp_path) as lost, Store(tmp_path) as other:
        lost.add("main", "smoke", [unit])
        assert lost.claim([unit.id]) and other.claim([unit.id]) is None
        lost._db.execute(change, (lost.owner,))
        assert other.claim([unit.id]) == unit.id
        other._db.execute("DELETE FROM owners WHERE id = ?", (other.owner,))
        assert other.claim([unit.id]) is None and other.statuses([unit.id]) == {unit.id: "running"}
