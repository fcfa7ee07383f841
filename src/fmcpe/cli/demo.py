"""``fmcpe demo [TASK]``: train, correct and compare on one task; print a table and draw a figure."""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fmcpe.cli.printing import say

if TYPE_CHECKING:
    from torch import Tensor

    from fmcpe.spaces import ParameterSpace
    from fmcpe.tasks import Task

HELP = "Train a posterior on a wrong simulator, correct it with a few real pairs, and show before and after."
EXAMPLES = ("fmcpe demo", "fmcpe demo gaussian --pairs 100 --out figures")

NUM_DRAWS = 200
NUM_REFERENCE = 100
"""Number of test observations whose reference posterior is computed, to save time."""


class Score(NamedTuple):
    """Scores of one posterior on held-out real observations."""

    name: str
    draws: Tensor
    error: list[float]
    coverage_80: list[float]
    coverage_90: list[float]
    energy: float
    seconds: float | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from fmcpe import tasks

    names = ", ".join(tasks.names())
    parser.add_argument("task", nargs="?", default="pendulum", help=f"one of {names} (default: pendulum)")
    parser.add_argument(
        "--data", metavar="PATH", help="measured data of wind-tunnel or light-tunnel (see: fmcpe download)"
    )
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="option of the task, e.g. tau=0.5 (wind-tunnel-prior), alpha=2 (gaussian-ci), delta=1 (gaussian-prior), "
        "noise_std=0.3 (pendulum); repeatable",
    )
    parser.add_argument("--pairs", type=int, default=50, help="calibration pairs (default: 50)")
    parser.add_argument("--simulations", type=int, default=50_000, help="simulations (default: 50000)")
    parser.add_argument("--test", type=int, default=300, help="held-out real observations (default: 300)")
    parser.add_argument(
        "--recipe", choices=("default", "paper"), default="default", help="recipe of the correction (default: default)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--out", type=Path, default=Path("fmcpe-demo"), help="folder for the figure (default: fmcpe-demo)"
    )


def run(options: argparse.Namespace) -> int:
    """Train, correct, compare and plot."""
    import torch

    from fmcpe import FMCPE, baselines, tasks, train_npe
    from fmcpe._random import seeded
    from fmcpe.tasks.options import from_text

    torch.set_num_threads(1)  # the networks are small: more threads gain little, and slow down on a busy machine
    settings = options.option + ([] if options.data is None else [f"data={options.data}"])
    task = tasks.get(options.task, **from_text(tasks.find(options.task), settings))
    title = " ".join([task.label, *settings])
    if options.pairs < 2 or options.test < 2:
        raise ValueError(
            f"Expected at least 2 of each, got --pairs {options.pairs} --test {options.test}. Try --pairs 50."
        )
    theta, y = task.calibration_set(options.pairs, options.seed)
    theta_test, y_test = task.test_set(options.test, options.seed)

    say(f"{title}: training the base posterior on {options.simulations} simulations of an imperfect simulator ...")
    started = time.perf_counter()
    with seeded(options.seed):
        embedding_net = task.embedding_net()
    base = train_npe(task.simulator, task.simulation_prior, options.simulations, embedding_net, seed=options.seed)
    training = time.perf_counter() - started

    say(f"{title}: correcting it with {options.pairs} real pairs ...")
    started = time.perf_counter()
    corrected = FMCPE(base, task.simulator, task.prior, recipe=options.recipe).fit(theta, y, seed=options.seed)
    fitting = time.perf_counter() - started

    say(f"{title}: drawing {NUM_DRAWS} times for each of {options.test} new real observations ...")
    space, uncorrected = corrected.space, baselines.NPE(base, task.prior).fit()
    draws = uncorrected.sample_batched((NUM_DRAWS,), x=y_test, seed=0)
    before = score("uncorrected", draws, theta_test, space, training)
    draws = corrected.sample_batched((NUM_DRAWS,), x=y_test, seed=0)
    after = score("corrected", draws, theta_test, space, fitting)
    scores = [before, after]
    if task.real_side != "measured":
        reference = [
            task.reference_posterior(y).sample((NUM_DRAWS,), seed=i) for i, y in enumerate(y_test[:NUM_REFERENCE])
        ]
        draws = torch.stack(reference, dim=1)
        scores.append(score("reference", draws, theta_test[:NUM_REFERENCE], space, None))

    say("\n" + table(task, scores, options))
    picture = draw(task, before, after, theta_test, options.out / f"{task.label}.png")
    say(f"\nPicture: {picture}")
    return 0


def score(name: str, draws: Tensor, theta: Tensor, space: ParameterSpace, seconds: float | None) -> Score:
    """Score draws for test observations, (S, B, p), against the true parameters."""
    from fmcpe.diagnostics import central_coverage
    from fmcpe.metrics import energy_score

    return Score(
        name,
        draws,
        error=(draws.mean(0) - theta).square().mean(0).sqrt().tolist(),
        coverage_80=central_coverage(draws, theta, 0.8).tolist(),
        coverage_90=central_coverage(draws, theta, 0.9).tolist(),
        energy=energy_score(space.to_z_safely(draws), space.to_z_safely(theta)),
        seconds=seconds,
    )


def table(task: Task, scores: list[Score], options: argparse.Namespace) -> str:
    """The comparison as text."""
    header = ["posterior", *(f"error {n}" for n in task.theta_names), "in 80 %", "in 90 %", "energy", "seconds"]
    rows = [
        [
            s.name,
            *(f"{value:.3g}" for value in s.error),
            " ".join(f"{100 * c:.0f}%" for c in s.coverage_80),
            " ".join(f"{100 * c:.0f}%" for c in s.coverage_90),
            f"{s.energy:.2f}",
            "" if s.seconds is None else f"{s.seconds:.0f}",
        ]
        for s in scores
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    lines.insert(1, "-" * len(lines[0]))
    names = ", ".join(task.theta_names)
    notes = [
        "",
        "error    root mean square of (posterior mean - truth), physical units",
        f"in 80 %  share of {options.test} held-out real observations whose central 80 % interval contains the truth "
        f"({names}); likewise 90 %",
        "energy   energy score of the draws in standardised unconstrained parameters, lower is better",
        "seconds  to train the base posterior; to fit the correction",
    ]
    if any(s.name == "reference" for s in scores):
        compared = min(NUM_REFERENCE, options.test)
        notes.append(
            "reference: the true posterior, known for synthetic tasks; no method can do better "
            f"(first {compared} observations)"
        )
    if task.real_side != "process":
        notes.append(f"real side: {task.real_data}")
    return "\n".join(lines + notes)


def draw(task: Task, before: Score, after: Score, theta: Tensor, path: Path) -> Path:
    """Write the figure atomically."""
    from fmcpe._disk import write_whole
    from fmcpe.diagnostics.plots import before_after
    from fmcpe.tasks.plots import png_text

    figure = before_after(before.draws, after.draws, theta, names=task.theta_names)
    if task.real_side != "process":
        figure.suptitle(f"{task.name}, on {task.real_data}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata=png_text(task))
    write_whole(path, picture.getvalue())
    return path
