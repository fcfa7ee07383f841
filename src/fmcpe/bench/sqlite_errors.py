"""Errors of SQLite in words that say what to do."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fmcpe._errors import FileError

_DAMAGE = ("malformed", "not a database", "corrupt", "decode to UTF-8", "no such", "has no column")


def damaged(path: Path, words: str) -> FileError:
    """The error for a store that SQLite cannot read."""
    if "not a database" in words:
        return FileError(
            f"Expected a run of fmcpe bench, got another file, or one without its first page, at {path} ({words}). Pass a new "
            "folder with --out."
        )
    line = next(iter(words.splitlines()), "")
    return FileError(
        f"Expected a store of fmcpe bench at {path}, got a damaged file ({line}). Keep what can be "
        f"read with fmcpe bench salvage --out {path.parent}, and run the same command again; or pass a new folder with --out."
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of a store at `path` into OSError for the disk, and FileError for the file."""
    try:
        yield
    # names of columns, and rows, that changed
    except (UnicodeDecodeError, LookupError, sqlite3.IntegrityError) as error:
        raise damaged(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        words = str(error)
        disk = {"full": errno.ENOSPC, "readonly": errno.EROFS, "disk I/O": errno.EIO}
        number = next((number for word, number in disk.items() if word in words), None)
        if number is not None:
            raise OSError(
                number,
                f"Expected to write to {path}, got: {words}. Units that are done are kept. Free space, or make the "
                "folder writable, and run the same command again.",
            ) from error
        if any(word in words for word in _DAMAGE):
            raise damaged(path, words) from error
        raise
