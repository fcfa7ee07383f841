"""The command line: one file per command. Heavy imports happen in the command that needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from fmcpe import __version__
from fmcpe.cli import bench, demo, diagnose, download, fit, init, sample
from fmcpe.cli.printing import ends_with

COMMANDS: dict[str, Any] = {
    "init": init,
    "fit": fit,
    "sample": sample,
    "diagnose": diagnose,
    "demo": demo,
    "download": download,
    "bench": bench,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``fmcpe``."""
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except (ValueError, OSError, ImportError, TypeError, RuntimeError) as error:
        if isinstance(error, TypeError | RuntimeError) and not str(error).startswith("Expected"):
            raise  # not a message for users: its traceback says where it comes from
        sys.stderr.write(f"fmcpe {options.command}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted; no file is incomplete.\n")
        return 130


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; each ``--help`` ends with examples."""
    whole = argparse.ArgumentParser(
        prog="fmcpe",
        description="Correct a simulation-trained posterior with a few real measurements.",
        **ends_with("fmcpe init", "fmcpe demo", notes="Each command has examples of its own: fmcpe fit --help."),
    )
    whole.add_argument("--version", action="version", version=f"fmcpe {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        end = ends_with(*module.EXAMPLES, notes=getattr(module, "NOTES", ""))
        module.configure(commands.add_parser(name, help=module.HELP, description=module.HELP, **end))
    return whole
