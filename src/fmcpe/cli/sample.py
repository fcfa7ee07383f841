"""``fmcpe sample``: draws from a saved posterior for observations from a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from fmcpe.cli.printing import say
from fmcpe.cli.sources import add_posterior_options, notes, read_model

HELP = "Draw parameters for new observations, and say which of them are out of range."
EXAMPLES = ("fmcpe sample model.fmcpe --observations observations.csv -n 1000 --out draws.csv",)
NOTES = """\
Observations have the columns of the calibration file, or an array y (B, ...); a column `observation` holds
labels, else they are 1, 2, ... Draws go to csv (one line per draw), npz, or netCDF (.nc, which ArviZ reads)."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, help="a file of fmcpe fit")
    parser.add_argument(
        "--observations",
        type=Path,
        required=True,
        metavar="FILE",
        help="real observations: csv, npz, parquet or netCDF",
    )
    parser.add_argument("-n", type=int, default=1000, metavar="N", help="draws for each observation (default: 1000)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="csv, npz or nc; without it, only the table is printed"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    add_posterior_options(parser)


def run(options: argparse.Namespace) -> int:
    """Read, draw, write, and print medians and intervals."""
    import torch

    from fmcpe.io.draws import check_output
    from fmcpe.io.pairs import read_observations

    torch.set_num_threads(1)
    if options.n < 1:
        raise ValueError(f"Expected -n of at least 1, got {options.n}. Try -n 1000.")
    if options.out is not None:
        check_output(options.out)
    posterior = read_model(options)
    labels, y = read_observations(options.observations, posterior.record.data_names, tuple(posterior.observation_shape))
    with notes():  # the table says which observations are out of range
        draws = posterior.draws(options.n, y, labels=labels, seed=options.seed)
    say(draws.summary())
    if options.out is not None:
        draws.save(options.out)
        say(f"Draws: {options.out}, {options.n} for each of {len(y)} observation(s)")
    return 0
