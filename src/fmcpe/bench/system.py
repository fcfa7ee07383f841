"""Operating-system helpers: process identity and a description of the machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path


def born(pid: int) -> str:
    """Start time of a process, which tells apart processes that reuse a pid; "" if there is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass  # another user's process, but alive
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "unknown"  # not Linux: a reused pid looks like an active run
    return "" if state in "ZX" else rest[18]


def namespace(proc: Path = Path("/proc")) -> str:
    """The scope in which process ids are comparable: host name, boot id and PID namespace.

    Containers that share a folder may have the same host name but different processes with the same id. On systems other than
    Linux, only the host name is available.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):  # either part suffices to tell two namespaces apart
        parts.append("boot=" + (proc / "sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink(proc / "self/ns/pid"))
    return " ".join(parts)


@cache
def machine() -> str:
    """Processor, cores, memory and system of this machine, without its host name."""
    parts = [_processor(), f"{os.cpu_count() or 1} cores"]
    with suppress(AttributeError, OSError, ValueError):  # not available on every system
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
    """The git commit of the code in a folder, with "+ changes" if it was edited; "" if git does not track it.

    The package may be installed inside the checkout of another project, so check that git tracks the folder's files.
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
