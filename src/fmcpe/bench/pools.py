"""Where units are done: worker processes of this machine, or of a Dask cluster. Both have the same three methods.

On one machine these are the processes of joblib's own backend, loky. `joblib.Parallel` itself takes a list of independent
tasks, whereas units depend on base posteriors and may be taken by another run at any moment.
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
    """Processes that do units."""

    shared_fate: bool
    """Whether the death of one process ends what all the others have at work."""

    def slots(self) -> int:
        """How many units can be at work now."""
        ...

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """A future with `add_done_callback` and `exception`."""
        ...

    def close(self) -> None:
        """End the workers that are ours."""
        ...


class LocalPool:
    """`jobs` processes of this machine, one thread each; they end when this process does, however it ends."""

    shared_fate = True

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"--jobs {jobs} came; at least 1 was expected. Leave it out to use every core.")
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
        """Hand over a call."""
        try:
            future = self._executor.submit(function, *arguments)
        except BrokenExecutor:  # loky gives up all its processes when one dies: start new ones
            self.close()
            self._start()
            future = self._executor.submit(function, *arguments)
        self._futures = [f for f in self._futures if not f.done()] + [future]
        return future

    def close(self) -> None:
        """End the processes, whatever they are doing: it is not wanted any more."""
        self._executor.shutdown(wait=True, kill_workers=any(not future.done() for future in self._futures))


class DaskPool:
    """The workers of a Dask cluster, as many as there are at the moment."""

    shared_fate = False

    def __init__(self, address: str) -> None:
        self._client = connect(address)

    def slots(self) -> int:
        """One per worker; workers that come and go are noticed."""
        threads = self._client.nthreads()
        many = [worker for worker, count in threads.items() if count > 1]
        if many:
            raise ValueError(
                f"dask workers with several threads came ({', '.join(many)}); one thread each was expected, because seeds and "
                "torch's settings belong to a process. Start them with --nthreads 1."
            )
        return len(threads)

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """Hand over a call. Dask does it again if its worker dies."""
        return self._client.submit(function, *arguments, pure=False)

    def close(self) -> None:
        """Leave the cluster, which goes on without us."""
        self._client.close()


def _die_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    # loky may start processes through another one; only where we are a child can we see the parent go
    if os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()
