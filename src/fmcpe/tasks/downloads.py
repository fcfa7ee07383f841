"""Download of the chambers' data sets, atomically: a failed download leaves nothing behind.

The causalchamber package provides address and checksum of each data set. The archive is fetched here because the package
accepts error pages, reads everything into memory and has no timeout.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from fmcpe._progress import Progress
from fmcpe.tasks.chambers import IMAGES, IMPULSES, read_images, read_impulses

_DATASETS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "wind-tunnel": (IMPULSES[0], read_impulses),
    "light-tunnel": (IMAGES[0], read_images),
}
_TIMEOUT = 30
_CHUNK = 2**20
_ELSEWHERE = (
    "download {name} from https://causalchamber.org on another machine and pass its folder as data=, or leave data= out "
    "for the stand-in"
)


def download(task: str, root: str | PathLike[str], *, say: Callable[[str], None] | None = None) -> Path:
    """Fetch the measured data of a task, unless they are already there.

    Source and size are announced first. The folder gets its final name only after the checksum and the content are verified.

    Args:
        task: ``"wind-tunnel"`` or ``"light-tunnel"``.
        root: Parent of the data set's folder; pass the same to ``tasks.get(task, data=root)``.
        say: Receives the messages; standard error by default.

    Returns:
        The data set's folder.

    Raises:
        ValueError: If the task has no measurements.
        ImportError: If the ``chambers`` extra is not installed.
        ConnectionError: If the network or the server fails.
        OSError: If the download, or an existing folder, is not the data set.
    """
    if task not in _DATASETS:
        known = " and ".join(map(repr, _DATASETS))
        raise ValueError(f"Expected a task with measurements, {known}, got {task!r}. Pass one of these.")
    say = say or _to_stderr
    (name, read), root = _DATASETS[task], Path(root)
    target = root / name
    if _is_there(target, read):
        say(f"{name} is already in {target}; nothing to fetch.")
        return target
    url, md5 = _address(name)
    with _opened(url, name) as (length, chunks):
        size = "of unknown size" if length is None else f"{length / 1e6:.1f} MB"
        say(f"Fetching {name} for {task!r} from {url} ({size}) to {target}.")
        root.mkdir(parents=True, exist_ok=True)
        # in the same folder, so that the last step is an atomic rename
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
            archive, unpacked = Path(scratch, "archive.zip"), Path(scratch, "unpacked")
            with Progress(length or 0, name) as bar:
                _fetch(chunks, archive, md5, url, name, bar.update)
            _unpack(archive, unpacked, name, read)
            if target.exists():
                target.rmdir()  # empty: `_is_there` has checked
            (unpacked / name).rename(target)
    say(f"{name} is complete and its checksum is correct.")
    return target


def _is_there(target: Path, read: Callable[[Path], Any]) -> bool:
    """Whether the complete data set exists already; raises an error if the folder contains anything else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        read(target)
    except (ValueError, OSError) as error:
        raise FileExistsError(
            f"Expected the complete data set or no folder, got {target}, which is not complete ({str(error).rstrip('.')}). "
            "Remove it, or download to another folder."
        ) from error
    return True


def _address(name: str) -> tuple[str, str]:
    """Address and checksum of a data set. Importing the package's module fetches the list of data sets."""
    quiet = contextlib.redirect_stdout(io.StringIO())  # the package prints on import
    try:
        with quiet:
            import causalchamber  # noqa: F401
            import requests  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"Expected {error.name!r} to be installed, got no such package. Run: pip install 'fmcpe[chambers]'."
        ) from error
    try:
        with quiet:
            import causalchamber.datasets.main as datasets
        listed = dict(datasets.directory["datasets"])
    except Exception as error:  # no network, an error page and a captive portal raise different errors
        raise ConnectionError(
            f"Expected the list of data sets from the network, got {type(error).__name__}. Try again, or "
            f"{_ELSEWHERE.format(name=name)}."
        ) from error
    if name not in listed:
        raise FileNotFoundError(
            f"Expected data set {name!r} in the causal chambers' directory, got a list without it. Look for it at "
            "https://causalchamber.org, and pass its folder as data=."
        )
    return listed[name]["url"], listed[name]["md5"]


@contextlib.contextmanager
def _opened(url: str, name: str) -> Iterator[tuple[int | None, Iterator[bytes]]]:
    """The length of the content of `url`, and an iterator over its bytes."""
    import requests

    try:
        reply = requests.get(url, stream=True, timeout=_TIMEOUT)
    except (requests.RequestException, OSError) as error:
        raise ConnectionError(
            f"Expected an answer from {url}, got {type(error).__name__}. Nothing was kept. Try again, or "
            f"{_ELSEWHERE.format(name=name)}."
        ) from error
    with contextlib.closing(reply):
        if not reply.ok:
            raise ConnectionError(
                f"Expected {name} from {url}, got {reply.status_code} {reply.reason}. Nothing was kept. Try again later, or "
                f"{_ELSEWHERE.format(name=name)}."
            )
        length = reply.headers.get("content-length", "")
        yield int(length) if length.isdigit() else None, reply.iter_content(_CHUNK)


def _fetch(
    chunks: Iterator[bytes], path: Path, md5: str, url: str, name: str, progress: Callable[[int], object]
) -> None:
    """Write the bytes to `path` and verify their checksum."""
    digest, count = hashlib.md5(usedforsecurity=False), 0
    try:
        with path.open("wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                count += file.write(chunk)
                progress(len(chunk))
    except OSError as error:  # includes those of requests
        raise ConnectionError(
            f"Expected all of {name} from {url}, got {count / 1e6:.1f} MB ({error}). Nothing was kept. Try again."
        ) from error
    if digest.hexdigest() != md5:
        raise OSError(
            f"Expected {name} with checksum {md5} from {url}, got {count / 1e6:.1f} MB with checksum {digest.hexdigest()}. "
            "Nothing was kept. Try again; if the error persists, look at https://causalchamber.org for news."
        )


def _unpack(archive: Path, to: Path, name: str, read: Callable[[Path], Any]) -> None:
    """Extract the archive, and verify that the task can read its content."""
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(to)
        read(to / name)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        reason = str(error).replace(str(to), archive.name)
        raise OSError(
            f"Expected the known layout in the archive of {name}, got another one ({reason.rstrip('.')}). Nothing was kept. "
            "Look at https://causalchamber.org for changes."
        ) from error


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
