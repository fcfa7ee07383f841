"""Output of the commands."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print and flush, since output may go to a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
