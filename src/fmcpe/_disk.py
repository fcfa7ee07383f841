"""Atomic writes: a temporary file in the same folder is synchronised, then renamed.

A process that is killed leaves the old file, and perhaps a temporary one. The next write to the same place removes those that
are older than `STALE` seconds; younger ones may belong to another process.
"""

from __future__ import annotations

import glob
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

CHUNK = 2**20
"""Bytes per write."""
STALE = 3600.0


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; its readers see the old file or the new one.

    Raises:
        OSError: With the same `errno`, if the disk is full or the folder cannot be written. The old file is unchanged.
    """
    temporary: str | None = None
    try:
        _remove_stale(path)
        temporary = str(path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"))
        # not `mkstemp`, whose files are private: to read the umask is to set it, for all threads
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            _write(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise type(error)(
            error.errno,
            f"Expected to write {len(content) / 1e6:.1f} MB to {path}, got: {error.strerror or error}. Nothing was changed. "
            "Free space, or choose a folder that you may write to.",
        ) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def _write(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest[:CHUNK]) :]  # a nearly full disk may take a part


def _remove_stale(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
