"""``fmcpe download TASK``: measured chamber data, to use with ``fmcpe demo TASK --data``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fmcpe.cli.printing import say

HELP = "Fetch the measured data of wind-tunnel or light-tunnel, completely or not at all."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("task", help="wind-tunnel or light-tunnel")
    parser.add_argument("--to", type=Path, default=Path("chambers"), help="folder to put it in (default: chambers)")


def run(options: argparse.Namespace) -> int:
    """Say what will be fetched, fetch it, and say how to use it."""
    from fmcpe import tasks

    tasks.download(options.task, options.to, say=say)
    say(f"Try: fmcpe demo {options.task} --data {options.to}")
    return 0
