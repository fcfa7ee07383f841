"""Output of the commands."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def say(text: str) -> None:
    """Print and flush, since output may go to a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def ends_with(*examples: str, notes: str = "") -> dict[str, Any]:
    """Arguments of a parser whose help ends with examples, and notes."""
    lines = ["example:" if len(examples) == 1 else "examples:", *(f"  {line}" for line in examples)]
    text = "\n".join([*lines, *(["", notes] if notes else [])])
    return {"epilog": text, "formatter_class": argparse.RawDescriptionHelpFormatter}
