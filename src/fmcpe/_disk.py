"""Atomic writes: a temporary file in the same folder is synchronised, then renamed.

A process that is killed leaves the old file, and perhaps a temporary one. The next write to the same place removes those that
are older than `STALE` seconds; younger ones may belong to another process.
"""

from __future__ import annotations

import glob
import os
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = 2**20
"""Bytes per write."""
STALE = 3600.0
LONGEST = 50
"""Characters of the name in that of the temporary file, so that it is not too long where the name is not."""


_KINDS = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def as_path(path: Any) -> Path:
    """The path of a file, which need not exist; refuses what the system does not take as one."""
    try:
        found = Path(path)
        found.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except TypeError as error:
        raise TypeError(f'Expected a file name, got {path!r:.80}. Pass text or a Path, e.g. "run.fmcpe".') from error
    except ValueError as error:
        raise ValueError(f"Expected a file name, got {path!r:.80} ({error}). Pass another name.") from error
    except OSError as error:
        raise type(error)(
            error.errno,
            f"Expected a path that the system can follow, got {path!s:.80} ({error.strerror}). Pass another path, or change "
            "the permissions of its folder.",
        ) from error
    return found


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; its readers see the old file or the new one, with the permissions of the old one.

    The target of a symbolic link is written, not the link.

    Raises:
        ValueError: If there is something at `path` that is no regular file, such as a device.
        OSError: With the same `errno`, if the disk is full or the folder cannot be written. The old file is unchanged.
    """
    temporary: str | None = None
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        _remove_stale(target)
        temporary = str(target.with_name(f".{target.name[:LONGEST]}.{uuid.uuid4().hex[:12]}.tmp"))
        # not `mkstemp`, whose files are private: to read the umask is to set it, for all threads
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(temporary, flags, 0o666 if mode is None else mode)
        try:
            _write(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        if mode is not None:
            with suppress(OSError):  # the umask may have removed some, and some disks have none
                os.chmod(temporary, mode)
        os.replace(temporary, target)
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


def _mode(path: Path) -> int | None:
    """Permissions of a regular file; None if there is none."""
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    kind = _KINDS.get(stat.S_IFMT(found))
    if kind is not None:
        raise ValueError(f"Expected a regular file, got {kind} at {path}. Pass a file name.")
    return found & 0o777


def _write(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest[:CHUNK]) :]  # a nearly full disk may take a part


def _remove_stale(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name[:LONGEST])}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
