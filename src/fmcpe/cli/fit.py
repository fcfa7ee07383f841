"""``fmcpe fit``: train a posterior on simulations, correct it with calibration pairs from a file, and save it."""

from __future__ import annotations

import argparse
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcpe.cli.printing import say
from fmcpe.cli.sources import (
    add_posterior_options,
    find_simulator,
    notes,
    read_posterior,
    say_notes,
)

if TYPE_CHECKING:
    from torch.distributions import Distribution

    from fmcpe.io.pairs import Pairs
    from fmcpe.io.prior_file import PriorFile
    from fmcpe.posterior import CorrectedPosterior

HELP = "Correct a posterior with your own simulator and calibration pairs, and save it."
EXAMPLES = (
    "fmcpe fit --prior prior.toml --simulator model.py:simulate --calibration pairs.csv --num-simulations 10000 "
    "--out model.fmcpe",
)
NOTES = """\
prior.toml      one table per parameter: [mass], distribution = "uniform", low = 0.5, high = 2.0
                (uniform, loguniform, normal, lognormal, halfnormal, exponential, gamma, beta)
pairs.csv       columns named as the parameters are θ, all others data in the order of the simulator;
                series and images as npz or netCDF, arrays theta (N, p) and y (N, ...)
model.py        def simulate(theta): θ a torch tensor (N, p), np.asarray(theta) for numpy; returns (N, ...)

`fmcpe init` writes a folder with all three, on which the example runs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    inputs = parser.add_argument_group("input")
    inputs.add_argument("--prior", type=Path, metavar="FILE", help="TOML file with the prior")
    inputs.add_argument(
        "--calibration", type=Path, metavar="FILE", required=True, help="calibration pairs: csv, npz, parquet or netCDF"
    )
    inputs.add_argument("--simulator", metavar="FILE.py:FUNCTION", help="the simulator, θ (N, p) -> data (N, ...)")
    inputs.add_argument(
        "--simulations",
        type=Path,
        metavar="FILE",
        help="existing simulations from the prior, in place of the simulator",
    )
    inputs.add_argument(
        "--paired-simulations",
        type=Path,
        metavar="FILE",
        help="one simulation at θ of each pair, in their order: helps where there is no simulator",
    )
    add_posterior_options(inputs)  # type: ignore[arg-type]
    inputs.add_argument("--names", metavar="A,B", help="names of the parameters, where there is no prior file")
    parser.add_argument("--out", type=Path, metavar="FILE", default=Path("model.fmcpe"), help="default: model.fmcpe")
    parser.add_argument("--num-simulations", type=int, default=50_000, metavar="N", help="to train on (default: 50000)")
    parser.add_argument(
        "--embedding",
        choices=("auto", "none"),
        default="auto",
        help="network that embeds the data: by their shape, none for vectors of fewer than 40 numbers (auto), or never",
    )
    parser.add_argument("--recipe", choices=("default", "paper"), default="default", help="recipe (default: default)")
    parser.add_argument(
        "--max-failed", type=float, default=0.1, metavar="SHARE", help="of simulations that may fail (default: 0.1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


@dataclass(frozen=True)
class Inputs:
    """What the options point at, checked: nothing long has run yet."""

    prior: PriorFile | None
    pairs: Pairs
    simulator: Any
    simulations: Pairs | None
    paired: Any
    base: Any
    names: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Read, train, correct, save."""
    import torch

    torch.set_num_threads(1)  # the networks are small: more threads gain little, and slow down on a busy machine
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise FileNotFoundError(
            f"Expected --out to be a file in a folder that exists, got {options.out}. Create the folder first."
        )
    if options.posterior is None and options.simulations is None and options.num_simulations < 100:
        raise ValueError(
            f"Expected --num-simulations of at least 100, got {options.num_simulations}. Pass 10000 or more."
        )
    if not 0 <= options.max_failed < 1:
        raise ValueError(f"Expected --max-failed between 0 and 1, got {options.max_failed}. Try --max-failed 0.1.")
    if options.prior is not None and options.names:
        raise ValueError(f"Expected no --names beside --prior, which has them, got {options.names}. Leave --names out.")
    inputs = _inputs(options)
    posterior = _fit(options, inputs)
    posterior.record = replace(posterior.record, data_names=inputs.pairs.data_names)
    say("\n" + posterior.summary() + "\n")
    posterior.save(options.out)
    size = options.out.stat().st_size / 1e6
    say(f"Model: {options.out} ({size:.1f} MB). Next: fmcpe sample {options.out} --observations observations.csv")
    return 0


def _fit(options: argparse.Namespace, inputs: Inputs) -> CorrectedPosterior:
    from fmcpe import FMCPE, train_npe

    prior = None if inputs.prior is None else inputs.prior.prior
    pairs, given, base = inputs.pairs, inputs.simulations, inputs.base
    rows = None if given is None else (given.theta, given.y)
    _say_plan(options, inputs)
    with notes() as found:
        if base is None:
            say(
                f"Training the base posterior on {options.num_simulations if given is None else 'existing'} simulations ..."
            )
            base = train_npe(
                None if given is not None else inputs.simulator, prior, options.num_simulations,  # type: ignore[arg-type]
                "auto" if options.embedding == "auto" else None, options.seed, names=inputs.names, simulations=rows,
                max_failed=options.max_failed, simulation_batch_size=max(1, options.num_simulations // 100),
            )  # fmt: skip
            prior = None
        say(f"Correcting it with {len(pairs.theta)} pairs ...")
        method = FMCPE(
            base, inputs.simulator, prior, recipe=options.recipe, names=inputs.names, simulations=rows,
            units=None if inputs.prior is None else inputs.prior.units,
            simulation_batch_size=100,
        )  # fmt: skip
        posterior = method.fit(pairs.theta, pairs.y, inputs.paired, seed=options.seed)
    say_notes(found, [note.text for note in posterior.record.notes])
    return posterior


def _say_plan(options: argparse.Namespace, inputs: Inputs) -> None:
    """What will be done, before it is done."""
    from fmcpe.method import planned_simulations

    for line in inputs.prior.descriptions if inputs.prior is not None else ():
        say(f"  {line}")
    number, shape = inputs.pairs.y.shape[0], inputs.pairs.y.shape[1:]
    notation = inputs.pairs.table.notation
    say(f"{number} pairs of shape {shape} from {options.calibration}{f' ({notation})' if notation else ''}")
    training = options.num_simulations if inputs.base is None and inputs.simulations is None else 0
    fitting = 0
    if inputs.simulator is not None and inputs.paired is None:
        fitting = planned_simulations(options.recipe, number, bank=inputs.simulations is None)
    say(f"Simulations that will be run: {training} to train the base posterior, then {fitting} for the correction")
    if inputs.simulations is not None:
        say(f"{len(inputs.simulations.theta)} existing simulations from {options.simulations}")


def _inputs(options: argparse.Namespace) -> Inputs:
    """Read everything that the options name; errors come before anything long runs."""
    from fmcpe.io.pairs import read_pairs
    from fmcpe.io.prior_file import read_prior_file

    if options.simulator is None and options.simulations is None and options.posterior is None:
        raise ValueError(
            "Expected --simulator FILE.py:FUNCTION, --simulations FILE or --posterior FILE, got none. Try --simulator "
            "model.py:simulate, or fmcpe init for an example."
        )
    if options.prior is None and options.posterior is None:
        raise ValueError("Expected --prior FILE, got none. Try --prior prior.toml, or fmcpe init for an example.")
    base = read_posterior(options.posterior, options.trust_pickle)
    prior = None if options.prior is None else read_prior_file(options.prior)
    names, support = _names(options, prior, base)
    columns, prefix = ((), "") if prior is None else (prior.columns, prior.prefix)
    pairs = read_pairs(options.calibration, names, columns=columns, prefix=prefix)
    if len(pairs.theta) < 2:
        raise ValueError(
            f"Expected 2 or more pairs in {options.calibration}, better 10 or more, got {len(pairs.theta)}. Write one row "
            "per pair."
        )
    _refuse_outside(pairs, support, names, options.prior or options.posterior)
    simulator = None if options.simulator is None else find_simulator(options.simulator)
    if simulator is not None:
        _refuse_other_shape(simulator, support, pairs, options)
    simulations = None
    if options.simulations is not None:
        simulations = read_pairs(options.simulations, names, columns=columns, prefix=prefix, array="x", finite=False)
        _refuse_other_columns(simulations, pairs)
    paired = None if options.paired_simulations is None else _paired(options, pairs, names)
    return Inputs(prior, pairs, simulator, simulations, paired, base, names)


def _names(options: argparse.Namespace, prior: PriorFile | None, base: Any) -> tuple[tuple[str, ...], Distribution]:
    """Names of the parameters, and the prior."""
    from fmcpe import as_base_posterior
    from fmcpe._checks import parameter_dim
    from fmcpe._names import as_names, default_names

    if prior is not None:
        return prior.names, prior.prior
    adapted = as_base_posterior(base)
    dim = parameter_dim(adapted.prior)
    given = options.names.split(",") if options.names else adapted.names
    return as_names(given or default_names(dim), dim), adapted.prior


def _refuse_outside(pairs: Pairs, prior: Distribution, names: tuple[str, ...], where: Path) -> None:
    """Refuse pairs outside of the prior, by file, line and column."""
    import torch
    from sbi.utils.sbiutils import within_support

    from fmcpe._random import seeded

    theta = torch.as_tensor(pairs.theta, dtype=torch.float32)
    outside = ~within_support(prior, theta)
    if not bool(outside.any()):
        return
    row = int(outside.nonzero()[0])
    with seeded(0):
        inside = prior.sample(torch.Size((1,))).repeat(len(names), 1)
    columns = inside.clone()
    columns[range(len(names)), range(len(names))] = theta[row].to(columns)
    wrong = [name for name, ok in zip(names, within_support(prior, columns).tolist(), strict=True) if not ok]
    values = ", ".join(f"{name} = {theta[row, names.index(name)]:.6g}" for name in wrong or names)
    others = f" and others in {int(outside.sum()) - 1} more rows" if int(outside.sum()) > 1 else ""
    raise ValueError(
        f"Expected θ inside the prior of {where} in {pairs.table.path}, got {values} in {pairs.table.place(row)}{others}. "
        "Widen the prior, or leave the pair out."
    )


def _refuse_other_shape(simulator: Any, prior: Distribution, pairs: Pairs, options: argparse.Namespace) -> None:
    """Refuse a simulator whose data have another shape than the pairs'."""
    import torch

    from fmcpe._random import seeded
    from fmcpe._simulator import CheckedSimulator

    with seeded(0), notes():
        theta = prior.sample(torch.Size((50,))).to(torch.float32)
        try:
            shape = CheckedSimulator(simulator, None).shape_of_one(theta)
        except Exception as error:
            if str(error).startswith("Expected"):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            own = Path(last.filename).parent.name != "fmcpe"  # else it is the call that failed
            raise ValueError(
                f"Expected {options.simulator} to take θ of shape (N, {len(theta[0])}) and to return data, got "
                f"{type(error).__name__}: {error}{f' (line {last.lineno} of {Path(last.filename).name})' if own else ''}. "
                "Write def simulate(theta): with one row of data for each row of θ."
            ) from error
    if tuple(shape) != pairs.y.shape[1:]:
        columns = f" (columns {', '.join(pairs.data_names[:8])}{', ...' if len(pairs.data_names) > 8 else ''})"
        raise ValueError(
            f"Expected data of one shape, got {tuple(shape)} from {options.simulator} and {pairs.y.shape[1:]} from "
            f"{options.calibration}{columns if pairs.data_names else ''}. Let the simulator return what is measured, in that "
            'order; name the columns that are data in the prior file:\n[data]\ncolumns = ["reading_1", "reading_2"]'
        )


def _refuse_other_columns(simulations: Pairs, pairs: Pairs) -> None:
    if simulations.y.shape[1:] != pairs.y.shape[1:] or (
        simulations.data_names and pairs.data_names and simulations.data_names != pairs.data_names
    ):
        raise ValueError(
            f"Expected the same data in {simulations.table.path} as in {pairs.table.path}, got "
            f"{simulations.data_names or simulations.y.shape[1:]} and {pairs.data_names or pairs.y.shape[1:]}. Write the same "
            "columns in the same order."
        )


def _paired(options: argparse.Namespace, pairs: Pairs, names: tuple[str, ...]) -> Any:
    """Simulations at θ of the pairs, (N, ...)."""
    import numpy as np

    from fmcpe.io.pairs import read_observations
    from fmcpe.io.tables import read_table

    _, x = read_observations(options.paired_simulations, pairs.data_names, pairs.y.shape[1:])
    table = read_table(options.paired_simulations)
    if len(x) != len(pairs.theta):
        raise ValueError(
            f"Expected one simulation for each of {len(pairs.theta)} pairs in {options.paired_simulations}, got {len(x)}. "
            f"Simulate at each row of {options.calibration}, in that order."
        )
    if all(name in table for name in names):
        theta = np.stack([table.numbers(name) for name in names], axis=1)
        if not np.allclose(theta, pairs.theta, rtol=1e-4):
            raise ValueError(
                f"Expected θ of {options.paired_simulations} to be that of {options.calibration}, got other values. Keep the "
                "order of the pairs."
            )
    return x
