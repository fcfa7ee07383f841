"""``fmcpe diagnose``: a report on whether a saved posterior can be believed."""

from __future__ import annotations

import argparse
from pathlib import Path

from fmcpe.cli.printing import say
from fmcpe.cli.sources import add_posterior_options, notes, read_model, say_notes

HELP = "Write a report on whether a saved posterior can be believed."
EXAMPLES = ("fmcpe diagnose model.fmcpe --out report.html",)
NOTES = """\
The report is one file that needs no network, and report.json beside it has the same numbers. It uses draws for
each calibration pair from fits that have not seen it: no pairs are spent."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, help="a file of fmcpe fit")
    parser.add_argument("--out", type=Path, metavar="FILE", default=Path("report.html"), help="default: report.html")
    add_posterior_options(parser)


def run(options: argparse.Namespace) -> int:
    """Read, write the report, and print the summary."""
    import torch

    torch.set_num_threads(1)
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"Expected --out FILE.html, got {options.out}. Try --out report.html.")
    if not options.out.parent.is_dir():
        raise FileNotFoundError(f"Expected --out in a folder that exists, got {options.out}. Create the folder first.")
    posterior = read_model(options)
    with notes() as found:
        written = posterior.report(options.out)
    say(posterior.summary())
    say_notes(found, [note.text for note in posterior.record.notes])
    say(f"\nReport: {written}")
    return 0
