"""Memory and threads under load, each part in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = Path(__file__).parents[1] / "benchmarks" / "load.py"


@pytest.mark.nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
@pytest.mark.parametrize("part", ["draws", "observations", "wide", "fits", "threads"])
def test_memory_is_bounded_and_draws_in_threads_are_right(part):
    done = subprocess.run([sys.executable, LOAD, part, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
