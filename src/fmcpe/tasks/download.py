"""Fetching the chambers' data sets with the causalchamber package, or leaving everything as it was."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from fmcpe.tasks.chambers import IMAGES, IMPULSES

_DATASETS = {"wind-tunnel": IMPULSES[0], "light-tunnel": IMAGES[0]}
_TIMEOUT = 30


def download(task: str, root: str | PathLike[str], *, say: Callable[[str], None] | None = None) -> Path:
    """Fetch the measured data of a task, unless they are there.

    What will be fetched, from where and how large it is, is said before it starts. The archive's checksum is compared, and
    the folder appears under its name only when it is complete.

    Args:
        task: ``"wind-tunnel"`` or ``"light-tunnel"``.
        root: Folder to put the data set's folder in; pass the same to ``tasks.get(task, data=root)``.
        say: Receives the messages; by default they go to the standard error stream.

    Returns:
        The data set's folder.
    """
    if task not in _DATASETS:
        known = " and ".join(map(repr, _DATASETS))
        raise ValueError(f"There are no measurements to download for {task!r}; {known} have some: pass one of these.")
    say = say or _to_stderr
    name, root = _DATASETS[task], Path(root)
    target = root / name
    if target.exists():
        say(f"{name} is already in {target}; nothing to fetch.")
        return target
    datasets = _directory(name)
    if name not in datasets.directory["datasets"]:
        raise RuntimeError(
            f"The causal chambers' directory has no data set {name!r} any more; look for it at https://causalchamber.org, "
            f"and unpack it to {target}."
        )
    entry = datasets.directory["datasets"][name]
    say(f"Fetching {name} for {task!r} from {entry['url']} ({_size(entry['url'])}) to {target}.")
    root.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the last step is a rename, which cannot be half done.
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
        try:
            datasets.utils.download_and_extract(entry["url"], scratch, entry["md5"], verbose=False)
        except Exception as error:
            # The package raises bare Exception for a wrong checksum.
            raise RuntimeError(
                f"{name} could not be fetched from {entry['url']}: {error}. Nothing was kept; try again, or leave data= out "
                "for the stand-in."
            ) from error
        unpacked = Path(scratch, name)
        if not unpacked.is_dir():
            raise RuntimeError(
                f"The archive of {name} holds no folder of that name, which was expected. Nothing was kept; look at "
                "https://causalchamber.org for a change of layout."
            )
        shutil.move(str(unpacked), target)
    say(f"{name} is complete and its checksum is right.")
    return target


def _directory(name: str) -> Any:
    """The package's data set module, whose import asks the network for the list of data sets."""
    quiet = contextlib.redirect_stdout(io.StringIO())  # the package prints on import
    try:
        with quiet:
            import causalchamber  # noqa: F401
            import requests
    except ImportError as error:
        raise ImportError(
            f"{error.name!r} is not installed, but downloads are made with it; type: pip install 'fmcpe[chambers]'."
        ) from error
    try:
        with quiet:
            import causalchamber.datasets.main as datasets
    except (requests.RequestException, OSError) as error:
        raise ConnectionError(
            f"The list of data sets could not be fetched ({type(error).__name__}), and a network was expected. Download "
            f"{name} from https://causalchamber.org on another machine and pass its folder as data=, or leave data= out "
            "for the stand-in."
        ) from error
    return datasets


def _size(url: str) -> str:
    import requests

    try:
        length = int(requests.head(url, timeout=_TIMEOUT, allow_redirects=True).headers["content-length"])
    except (requests.RequestException, OSError, KeyError, ValueError):
        return "of unknown size"
    return f"{length / 1e6:.1f} MB"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
