"""Worker pools: processes of this machine, or the workers of a Dask cluster.

Units depend on base posteriors, and another run may claim them at any time, so a pool takes one call at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
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
        context = multiprocessing.get_context("spawn")
        # workers hold the reading end, and exit when the writing end is closed: by `close`, or because this process died
        alive, self._alive = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(self.jobs, context, _exit_without, (alive,))

    def slots(self) -> int:
        """One per process."""
        return self.jobs

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """Submit a call."""
        with _single_threaded():  # a worker starts when it is first needed
            try:
                future = self._executor.submit(function, *arguments)
            except BrokenExecutor:  # all processes stop when one dies: start new ones
                self.close()
                self._start()
                future = self._executor.submit(function, *arguments)
        self._futures = [f for f in self._futures if not f.done()] + [future]
        return future

    def close(self) -> None:
        """Kill the processes; their work is no longer needed."""
        if any(not future.done() for future in self._futures):
            self._alive.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._alive.close()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes that start within have one thread each, in libraries that read it on import."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def _exit_without(alive: Connection) -> None:
    """In a worker: exit, whatever it does, when the other end of the pipe is closed."""

    def watch() -> None:
        alive.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
