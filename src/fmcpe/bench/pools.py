"""Worker pools: processes of this machine, or the workers of a Dask cluster.

The local pool uses loky, the backend of joblib. `joblib.Parallel` itself takes a list of independent tasks, whereas units
depend on base posteriors and another run may claim them at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any, Protocol

from fmcpe._cluster import connect


class Pool(Protocol):
    """Workers that perform units."""

    shared_fate: bool
    """Whether the death of one process aborts the work of all others."""

    def slots(self) -> int:
        """Number of units that can run now."""
        ...

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """A future with `add_done_callback` and `exception`."""
        ...

    def close(self) -> None:
        """Stop the workers that the pool started."""
        ...


class LocalPool:
    """`jobs` single-threaded processes of this machine; they exit when this process dies."""

    shared_fate = True

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"Expected at least 1 worker process, got --jobs {jobs}. Leave it out to use every core.")
        self.jobs = jobs
        self._futures: list[Any] = []
        self._start()

    def _start(self) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self._executor = ProcessPoolExecutor(
            self.jobs, env=dict.fromkeys(threads, "1"), initializer=_die_with_parent, initargs=(os.getpid(),)
        )

    def slots(self) -> int:
        """One per process."""
        return self.jobs

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """Submit a call."""
        try:
            future = self._executor.submit(function, *arguments)
        except BrokenExecutor:  # loky stops all its processes when one dies: start new ones
            self.close()
            self._start()
            future = self._executor.submit(function, *arguments)
        self._futures = [f for f in self._futures if not f.done()] + [future]
        return future

    def close(self) -> None:
        """Kill the processes; their work is no longer needed."""
        self._executor.shutdown(wait=True, kill_workers=any(not future.done() for future in self._futures))


class DaskPool:
    """The current workers of a Dask cluster."""

    shared_fate = False

    def __init__(self, address: str) -> None:
        self._client = connect(address)

    def slots(self) -> int:
        """One per worker that is connected now."""
        threads = self._client.nthreads()
        many = [worker for worker, count in threads.items() if count > 1]
        if many:
            raise ValueError(
                f"Expected Dask workers with one thread, because seeds and torch's settings are per process, got several "
                f"threads in {', '.join(many)}. Start the workers with --nthreads 1."
            )
        return len(threads)

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """Submit a call. Dask repeats it if its worker dies."""
        return self._client.submit(function, *arguments, pure=False)

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        self._client.close()


def _die_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    # loky may start processes through another one; only a direct child can detect that its parent died
    if os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()
