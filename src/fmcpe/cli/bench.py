"""``fmcpe bench``: run the paper's experiments, resumably, on one machine or a cluster, and report them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from fmcpe.cli.printing import ends_with, say

PRESET_NAMES = ("smoke", "quick", "paper", "full")
HELP = "Run the paper's experiments and report them."
EXAMPLES = ("fmcpe bench run main --preset smoke --out runs", "fmcpe bench report --out runs")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from fmcpe.bench.plan import EXPERIMENTS

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    names = ", ".join(EXPERIMENTS)

    runs = actions.add_parser(
        "run", help="run the units that are not done yet", description=f"Experiments: {names}, or all.",
        **ends_with("fmcpe bench run main --preset smoke --out runs"),
    )  # fmt: skip
    runs.add_argument("experiment", choices=[*EXPERIMENTS, "all"], metavar="EXPERIMENT", help=f"{names}, or all")
    _run_options(runs)
    for name in ("frontier", "speed"):
        end = ends_with(f"fmcpe bench {name} --preset smoke --out runs")
        action = actions.add_parser(name, help=f"run {name} and print its table", **end)
        action.set_defaults(experiment=name)
        _run_options(action)
    for name, text in (
        ("status", "show what is done, running and failed"),
        ("salvage", "keep what can be read of a damaged store"),
        ("report", "write DIR/report.html"),
    ):
        end = ends_with(f"fmcpe bench {name} --out runs")
        action = actions.add_parser(name, help=text, description=text, **end)
        action.add_argument(
            "--out", type=Path, default=Path("fmcpe-bench"), help="run directory (default: fmcpe-bench)"
        )
        if name == "status":
            action.add_argument("--failures", action="store_true", help="show tracebacks")
        elif name == "report":
            action.add_argument(
                "--preset", choices=PRESET_NAMES, help="preset to show (default: each experiment's most complete)"
            )
            action.add_argument(
                "--keep",
                type=Path,
                metavar="FOLDER",
                help="also write the page and all tables (CSV and text) to FOLDER",
            )
    end = ends_with("fmcpe bench restore docs/results/zoo --out runs")
    text = "go on from the finished units that report --keep wrote"
    restores = actions.add_parser("restore", help=text, description=text, **end)
    restores.add_argument("folder", type=Path, metavar="FOLDER", help="where report --keep wrote")
    restores.add_argument("--out", type=Path, default=Path("fmcpe-bench"), help="run directory (default: fmcpe-bench)")
    end = ends_with("fmcpe bench compare runs-a runs-b")
    compare = actions.add_parser("compare", help="compare two runs", description="Compare run B with run A.", **end)
    compare.add_argument("a", type=Path, metavar="A", help="run directory")
    compare.add_argument("b", type=Path, metavar="B", help="run directory")


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", choices=PRESET_NAMES, default="quick", help="budget (default: quick)")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="TASK",
        help="task to run in place of the preset's; repeatable",
    )
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="METHOD",
        help="method to fit: one that the experiment compares or, on zoo, your own as package.module:Name; repeatable "
        "(default: all)",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="TASK=FOLDER",
        help="measured data of wind-tunnel or light-tunnel, in place of the stand-in; repeatable",
    )
    parser.add_argument("--with-paper", action="store_true", help="zoo: also run the paper's recipe, on six problems")
    parser.add_argument("--out", type=Path, default=Path("fmcpe-bench"), help="run directory (default: fmcpe-bench)")
    parser.add_argument("--jobs", type=int, help="worker processes (default: one per core; one for timing and speed)")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on a Dask cluster, e.g. tcp://host:8786")
    parser.add_argument("--retry-failed", action="store_true", help="run failed units again")


def run(options: argparse.Namespace) -> int:
    """Run the chosen action."""
    actions = {"status": _status, "report": _report, "compare": _compare, "salvage": _salvage, "restore": _restore}
    return actions.get(options.action, _run)(options)


def _run(options: argparse.Namespace) -> int:
    from fmcpe import tasks
    from fmcpe.bench.plan import EXPERIMENTS, ONE_AT_A_TIME, OWN_TASKS, plan
    from fmcpe.bench.progress import Progress
    from fmcpe.bench.run import run as work_through
    from fmcpe.tasks.chambers import fingerprint

    folders = _folders(options.data)
    data = {}
    for task, folder in folders.items():
        tasks.get(task, data=folder)  # reject wrong files before anything runs
        data[task] = fingerprint(folder, task)
    names = [options.experiment]
    if options.experiment == "all":
        names = [name for name in EXPERIMENTS if name != "zoo" and (not options.task or name not in OWN_TASKS)]
    # timed experiments run last and alone, since other load would distort the times
    groups = [[n for n in names if n not in ONE_AT_A_TIME], [n for n in names if n in ONE_AT_A_TIME]]
    units: dict[str, str] = {}
    done = 0
    for group in filter(None, groups):
        plans = {
            (name, options.preset): plan(name, options.preset, options.task, options.method, data, options.with_paper)
            for name in group
        }
        jobs = options.jobs if options.jobs is not None else (1 if group[0] in ONE_AT_A_TIME else None)
        outcome = work_through(
            options.out, plans, jobs=jobs, dask=options.dask, data=folders, retry_failed=options.retry_failed,
            command=_typed(options), progress=Progress(f"{options.experiment} ({options.preset})"),
        )  # fmt: skip
        units, done = units | outcome.statuses, done + outcome.done_now
    states = list(units.values())
    failed = states.count("failed")
    title = f"{options.experiment} ({options.preset})"
    say(f"{title}: {states.count('done')} of {len(states)} units done, {done} now, in {options.out}")
    if failed:
        sys.stderr.write(
            f"fmcpe bench: {failed} units failed; see fmcpe bench status --failures --out {options.out}, then --retry-failed\n"
        )
    if options.action in ("frontier", "speed"):
        from fmcpe.bench.frontier import frontier_table, speed_table
        from fmcpe.bench.results import Results

        table = frontier_table if options.action == "frontier" else speed_table
        say("\n" + table(Results.read(options.out, options.preset)).as_text())
    return 1 if failed else 0


def _salvage(options: argparse.Namespace) -> int:
    from fmcpe.bench.salvage import salvage

    saved, kept = salvage(options.out)
    say(f"{saved['units']} units and {saved['plans']} lines of plans are kept; the damaged file is {kept}.")
    say("Run the same fmcpe bench run again: what was lost is done again.")
    return 0


def _restore(options: argparse.Namespace) -> int:
    from fmcpe.bench.restore import restore

    done = restore(options.folder, options.out)
    old = f"; {done.old} are of another version and left out" if done.old else ""
    say(f"{done.found} finished units in {options.folder}, {done.added} new in {options.out}{old}.")
    return 0


def _folders(words: list[str]) -> dict[str, str]:
    """``TASK=FOLDER`` as a mapping to absolute paths, since workers may have another working directory."""
    from fmcpe.bench.plan import WITH_DATA

    found = {}
    for word in words:
        task, separator, folder = word.partition("=")
        if not separator or not folder or task not in WITH_DATA:
            raise ValueError(
                f"Expected --data TASK=FOLDER with TASK {' or '.join(WITH_DATA)}, got {word!r}. "
                "Try --data wind-tunnel=chambers."
            )
        if task in found:
            raise ValueError(f"Expected one folder for {task}, got two. Give --data {task}=FOLDER once.")
        found[task] = str(Path(folder).resolve())
    return found


def _typed(options: argparse.Namespace) -> str:
    """The command that repeats this run, without private paths, as the report may be published."""
    words = [
        "fmcpe",
        "bench",
        "run",
        options.experiment,
        "--preset",
        options.preset,
        "--out",
        options.out.resolve().name,
    ]
    words += [word for task in options.task for word in ("--task", task)]
    words += [word for method in options.method for word in ("--method", method)]
    words += ["--with-paper"] if options.with_paper else []
    words += [word for each in options.data for word in ("--data", f"{each.partition('=')[0]}=FOLDER")]
    words += [] if options.jobs is None else ["--jobs", str(options.jobs)]
    words += [] if options.dask is None else ["--dask", "ADDRESS"]
    return shlex.join(words)


def _status(options: argparse.Namespace) -> int:
    from fmcpe.bench.status import status

    say(status(options.out, options.failures))
    return 0


def _report(options: argparse.Namespace) -> int:
    from fmcpe.bench.keep import keep
    from fmcpe.bench.report import write_report

    say(f"Report: {write_report(options.out, options.preset)}")
    if options.keep is not None:
        say(f"Kept: {len(keep(options.out, options.keep, options.preset))} files in {options.keep}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from fmcpe.bench.compare import compare

    say(compare(options.a, options.b))
    return 0
