"""``fmcpe download TASK``: fetch measured chamber data for ``fmcpe demo TASK --data``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fmcpe.cli.printing import say

HELP = "Fetch and verify the measured data of wind-tunnel or light-tunnel."
EXAMPLES = ("fmcpe download wind-tunnel --to chambers",)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("task", help="wind-tunnel or light-tunnel")
    parser.add_argument("--to", type=Path, default=Path("chambers"), help="target folder (default: chambers)")


def run(options: argparse.Namespace) -> int:
    """Fetch the data and print how to use them."""
    from fmcpe import tasks

    tasks.download(options.task, options.to, say=say)
    say(f"Try: fmcpe demo {options.task} --data {options.to}")
    return 0
