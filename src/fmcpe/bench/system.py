"""What is asked of the operating system: files that are whole or absent, whether a process is still there, and the machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
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
    with suppress(OSError):  # either part that is there tells two places apart
        parts.append("boot=" + (proc / "sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink(proc / "self/ns/pid"))
    return " ".join(parts)


@cache
def machine() -> str:
    """Processor, cores, memory and system of this machine, in a line. Its name is nobody's business."""
    parts = [_processor(), f"{os.cpu_count() or 1} cores"]
    with suppress(AttributeError, OSError, ValueError):  # not every system tells
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory")
    return ", ".join([*parts, platform.platform()])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*models, platform.processor(), platform.machine()]), "unknown processor")


@cache
def commit(folder: Path) -> str:
    """The git commit of the code in a folder, "+ changes" if it was edited since; "" if git does not keep this code.

    An installed package inside somebody's checkout is not theirs, so git is asked whether it keeps the folder's files.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10, env=environment
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return ""
        return git("rev-parse", "HEAD") + (" + changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
