"""The command line: one file per command. Heavy imports happen in the command that needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fmcpe import __version__
from fmcpe.cli import bench, demo, download

COMMANDS = {"demo": demo, "download": download, "bench": bench}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``fmcpe``."""
    parser = argparse.ArgumentParser(
        prog="fmcpe", description="Correct a simulation-trained posterior with a few real measurements."
    )
    parser.add_argument("--version", action="version", version=f"fmcpe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        module.configure(commands.add_parser(name, help=module.HELP, description=module.HELP))
    options = parser.parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except (ValueError, OSError, ImportError) as error:
        sys.stderr.write(f"fmcpe {options.command}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted; no file is incomplete.\n")
        return 130
