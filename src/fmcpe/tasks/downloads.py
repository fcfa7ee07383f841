"""Fetching the chambers' data sets: a complete folder appears, or everything is as it was.

The causalchamber package knows where each data set is and its checksum. The bytes are fetched here: the package takes an
error page of the server for the archive, reads all of it into memory, and waits for ever.
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

from tqdm.auto import tqdm

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
    """Fetch the measured data of a task, unless they are there.

    What will be fetched, from where and how large it is, is said before it starts. The archive's checksum is compared, what
    it holds is read, and the folder appears under its name only when it is complete.

    Args:
        task: ``"wind-tunnel"`` or ``"light-tunnel"``.
        root: Folder to put the data set's folder in; pass the same to ``tasks.get(task, data=root)``.
        say: Receives the messages; by default they go to the standard error stream.

    Returns:
        The data set's folder.

    Raises:
        ValueError: If the task has no measurements.
        ImportError: If the ``chambers`` extra is not installed.
        ConnectionError: If the network or the server fails.
        OSError: If what came, or what is there already, is not the data set.
    """
    if task not in _DATASETS:
        known = " and ".join(map(repr, _DATASETS))
        raise ValueError(f"There are no measurements to download for {task!r}; {known} have some: pass one of these.")
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
        # In the same folder, so that the last step is a rename, which cannot be half done.
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
            archive, unpacked = Path(scratch, "archive.zip"), Path(scratch, "unpacked")
            # A bar appears if it takes long.
            with tqdm(desc=name, total=length, unit="B", unit_scale=True, delay=2, leave=False) as bar:
                _fetch(chunks, archive, md5, url, name, bar.update)
            _unpack(archive, unpacked, name, read)
            if target.exists():
                target.rmdir()  # it is empty, or there would have been an error before
            (unpacked / name).rename(target)
    say(f"{name} is complete and its checksum is right.")
    return target


def _is_there(target: Path, read: Callable[[Path], Any]) -> bool:
    """Whether the data set was put there before, and whole; refuses a folder with something else in it."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        read(target)
    except (ValueError, OSError) as error:
        raise FileExistsError(
            f"{target} is there, but it is not complete ({error}) Remove it, or download to another folder."
        ) from error
    return True


def _address(name: str) -> tuple[str, str]:
    """Where a data set is, and its checksum. Importing the package's module asks the network for the list of data sets."""
    quiet = contextlib.redirect_stdout(io.StringIO())  # the package prints on import
    try:
        with quiet:
            import causalchamber  # noqa: F401
            import requests  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error.name!r} is not installed, but downloads are made with it; type: pip install 'fmcpe[chambers]'."
        ) from error
    try:
        with quiet:
            import causalchamber.datasets.main as datasets
        listed = dict(datasets.directory["datasets"])
    except (
        Exception
    ) as error:  # no network, an error page, or the log-in page of a hotel: each breaks it in its own way
        raise ConnectionError(
            f"The list of data sets could not be fetched ({type(error).__name__}), and a network was expected. Try again, or "
            f"{_ELSEWHERE.format(name=name)}."
        ) from error
    if name not in listed:
        raise FileNotFoundError(
            f"The causal chambers' directory has no data set {name!r} any more; look for it at https://causalchamber.org, "
            "and pass its folder as data=."
        )
    return listed[name]["url"], listed[name]["md5"]


@contextlib.contextmanager
def _opened(url: str, name: str) -> Iterator[tuple[int | None, Iterator[bytes]]]:
    """The length of what is at `url`, and its bytes, not yet fetched."""
    import requests

    try:
        reply = requests.get(url, stream=True, timeout=_TIMEOUT)
    except (requests.RequestException, OSError) as error:
        raise ConnectionError(
            f"{url} could not be reached ({type(error).__name__}), and a network was expected. Nothing was kept; try again, or "
            f"{_ELSEWHERE.format(name=name)}."
        ) from error
    with contextlib.closing(reply):
        if not reply.ok:
            raise ConnectionError(
                f"{url} answered {reply.status_code} {reply.reason}, but {name} was expected there. Nothing was kept; try "
                f"again later, or {_ELSEWHERE.format(name=name)}."
            )
        length = reply.headers.get("content-length", "")
        yield int(length) if length.isdigit() else None, reply.iter_content(_CHUNK)


def _fetch(
    chunks: Iterator[bytes], path: Path, md5: str, url: str, name: str, progress: Callable[[int], object]
) -> None:
    """Write the bytes to `path` and compare their checksum."""
    digest, count = hashlib.md5(usedforsecurity=False), 0
    try:
        with path.open("wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                count += file.write(chunk)
                progress(len(chunk))
    except OSError as error:  # those of requests are among them
        raise ConnectionError(
            f"{name} broke off after {count / 1e6:.1f} MB from {url} ({error}). Nothing was kept; try again."
        ) from error
    if digest.hexdigest() != md5:
        raise OSError(
            f"What {url} sent, {count / 1e6:.1f} MB, has the checksum {digest.hexdigest()}, but {md5} was expected of {name}. "
            "Nothing was kept; try again, and if it happens twice, look at https://causalchamber.org for news."
        )


def _unpack(archive: Path, to: Path, name: str, read: Callable[[Path], Any]) -> None:
    """Extract the archive, and make sure that the task can read what is in it."""
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(to)
        read(to / name)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        reason = str(error).replace(str(to), archive.name)
        raise OSError(
            f"The archive of {name} has the right checksum and not the expected layout ({reason}) Nothing was kept; look at "
            "https://causalchamber.org for a change."
        ) from error


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
