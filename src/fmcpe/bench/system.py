"""What is asked of the operating system: files that are whole or absent, whether a process is still there, and the machine."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a kill, finds all of it or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def born(pid: int) -> str:
    """When the process of this number was started, or "" if there is none: numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass  # somebody else's, but alive
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "unknown"  # not Linux: a number that is used again looks like a run that is still at work
    return "" if state in "ZX" else rest[18]


def namespace(proc: Path = Path("/proc")) -> str:
    """Where the process numbers that we see mean something: host name, this boot of the machine, PID namespace.

    Containers that share a folder may have the same host name, and each its own process 17. Where the system does not tell
    boot and namespace (not Linux), the host name is all there is.
    """
    parts = [socket.gethostname()]
    try:
        parts.append("boot=" + (proc / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink(proc / "self/ns/pid"))
    except OSError:
        pass  # each part that is there makes two places easier to tell apart, none of them is needed
    return " ".join(parts)
