"""What commands print."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
