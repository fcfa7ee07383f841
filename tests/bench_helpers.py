"""Units that take no time, for tests of everything around them. Imports nothing heavy: it runs in subprocesses too."""

import os
import sys
import time
from pathlib import Path

from fmcpe.bench.run import run
from fmcpe.bench.store import Result
from fmcpe.bench.units import Unit
from fmcpe.bench.work import BASE_FILE, DRAWS_FILE

LOG = "FMCPE_TEST_LOG"
"""A file to which every unit appends a line when it is performed, whoever performs it."""


def units(number=12, tasks=("gaussian", "pendulum")):
    """Units with base posteriors, as plans have them."""
    fits = [Unit("fit", task, "fmcpe", pairs=10, set=i) for i in range(number // len(tasks)) for task in tasks]
    return [*dict.fromkeys(unit.base for unit in fits), *fits]


def perform(unit, base=None):
    """Say that the unit was begun and ended, and check that the base posterior of the right task came."""
    log(f"begin {unit.id} {os.getpid()}")
    time.sleep(float(os.environ.get("FMCPE_TEST_SECONDS", "0.05")))
    log(f"end {unit.id} {os.getpid()}")
    if unit.kind == "base":
        return Result({}, 0.1, {}, {BASE_FILE: unit.task.encode()})
    assert base == unit.task.encode()
    return Result({"energy": float(unit.set)}, 0.1, {"fmcpe": "0"}, {DRAWS_FILE: unit.id.encode() * 10_000})


def failing(unit, base=None):
    """The same, but for one unit."""
    if unit.kind == "fit" and unit.task == "pendulum" and unit.set == 1:
        raise ArithmeticError("one of the units cannot be done")
    return perform(unit, base)


def failing_base(unit, base=None):
    """The same, but for one base posterior."""
    if unit.kind == "base" and unit.task == "pendulum":
        raise ArithmeticError("this base posterior cannot be trained")
    return perform(unit, base)


def deadly(unit, base=None):
    """The same, but one unit takes its worker process with it."""
    if unit.kind == "fit" and unit.task == "pendulum" and unit.set == 1:
        os.kill(os.getpid(), 9)
    return perform(unit, base)


def dies_once(died, task, unit, base=None):
    """The same, but the first base posterior of a task takes its worker process with it, and leaves a file."""
    if unit.kind == "base" and unit.task == task and not died.exists():
        died.write_text("")
        os.kill(os.getpid(), 9)
    return perform(unit, base)


def log(text):
    """One line, appended whole."""
    if LOG in os.environ:
        handle = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (text + "\n").encode())
        os.close(handle)


def lines(path):
    """What was logged, as lists of words."""
    return [line.split() for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


if __name__ == "__main__":
    outcome = run(sys.argv[1], {("main", "smoke"): units(int(sys.argv[2]))}, jobs=2, perform=perform)
    sys.exit(outcome.exit_code)
