"""Plans: the list of units of an experiment, a function of its name, preset and options.

- main: all methods, tasks, sizes and calibration sets (figures 2 and 3, and those of "Additional results");
- sbc: rank histograms ("Posterior Calibration");
- ablation: joint, sequential, one map alone, and the default recipe ("Impact of joint learning");
- independence: gaussian-ci by α, both maps against the x-map alone ("Conditional independence");
- prior: simulations from a wrong prior ("Prior misspecification");
- timing: fit and inference times by part ("Training and inference times");
- sensitivity: learning rate × clipping ("Hyperparameter sensitivity");
- zoo: every method on the misspecification zoo (``docs/zoo.md``);
- frontier: accuracy of the default recipe against all methods;
- speed: time of the default recipe against the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fmcpe.bench.fitting import own_factory
from fmcpe.bench.presets import PRESETS, ZOO_PAPER, Preset
from fmcpe.bench.units import RANDOMISABLE, WITHOUT_BASE, Evaluation, Options, Unit, options
from fmcpe.tasks import find, zoo

BASELINES = ("npe", "dpe", "mf-npe", "rope", "nnpe", "j-npe")
ROBUST = ("frisbi", "rnpe", "rsnl", "npe-rs")
"""Baselines that `main`, `timing`, `frontier` and `zoo` run where ``methods`` names them."""

PAPER_STAGES = ("fmcpe-paper-sequential", "fmcpe-paper-x-only", "fmcpe-paper-theta-only")
METHODS = ("npe", "npe-randomised", *BASELINES[1:], *ROBUST, "fmcpe-paper", *PAPER_STAGES, "fmcpe", "reference")
"""All methods by name, in the order of tables."""

WITHOUT_PAIRS = ("npe", "npe-randomised", "nnpe", "rnpe", "rsnl", "reference")
"""Methods that use no calibration pairs: one unit of each serves all sizes and sets."""

GROWING = ("zoo",)
"""Experiments to whose plan a later run adds units, e.g. a user-defined method."""

BEYOND_THE_PAPER = ("frontier", "speed", "zoo")
"""Experiments that do not reproduce the paper: every method uses the default recipe's base posterior."""

OWN_TASKS = {"independence": ("gaussian-ci",), "prior": ("gaussian-prior", "wind-tunnel-prior")}
"""Experiments with fixed tasks."""

WITH_DATA = ("wind-tunnel", "light-tunnel")
"""Tasks that accept measured data."""

ONE_AT_A_TIME = ("timing", "speed")
"""Experiments that measure time and so use one worker by default."""


def plan(
    experiment: str,
    preset: str,
    tasks: Iterable[str] = (),
    methods: Iterable[str] = (),
    data: Mapping[str, str] | None = None,
    with_paper: bool = False,
) -> list[Unit]:
    """The units of an experiment without duplicates, base posteriors first.

    In experiments that reproduce the paper, base posteriors are trained on plain simulations, except the default recipe's;
    `frontier` and `speed` use the default recipe's base posterior for every method. NNPE, NPE-RS and J-NPE always train
    their own posterior on plain simulations.

    Args:
        experiment: One of `EXPERIMENTS`.
        preset: One of `PRESETS`.
        tasks: Tasks in place of the preset's.
        methods: Subset of the methods that the experiment compares; all by default.
        data: Fingerprints of measured data by task; without one, the task uses its stand-in.
        with_paper: Whether `zoo` includes the paper's recipe, on the problems of `ZOO_PAPER`.
    """
    if experiment not in EXPERIMENTS or preset not in PRESETS:
        raise ValueError(
            f"Expected an experiment of {', '.join(EXPERIMENTS)} and a preset of {', '.join(PRESETS)}, got {experiment!r} and "
            f"{preset!r}. Try fmcpe bench run main --preset quick."
        )
    budget, chosen = PRESETS[preset], tuple(tasks)
    if chosen:
        for name in chosen:
            find(name)  # reject an unknown task before anything runs
        if experiment in OWN_TASKS:
            raise ValueError(
                f"Expected {' and '.join(OWN_TASKS[experiment])} in {experiment}, got --task. Leave --task out."
            )
        budget = replace(
            budget, tasks=chosen, stage_tasks=chosen, sbc_tasks=chosen, sensitivity_tasks=chosen, zoo=chosen
        )
    wanted = tuple(methods)
    own = tuple(name for name in wanted if ":" in name)
    if own and experiment != "zoo":
        raise ValueError(f"Expected methods of {experiment}, got {', '.join(own)}. Run your own methods on zoo.")
    for name in own:
        own_factory(name)  # reject one that cannot be imported before anything runs
    paper = ("fmcpe-paper",) if with_paper or "fmcpe-paper" in wanted else ()
    others = tuple(name for name in wanted if name in (*BASELINES, *ROBUST) and name not in budget.zoo_methods)
    more = tuple(name for name in ROBUST if name in wanted)
    budget = replace(budget, zoo_methods=(*budget.zoo_methods, *others, *paper, *own), more=more)
    made = (_with_base(unit, experiment, data or {}) for unit in EXPERIMENTS[experiment](budget))
    fits = list(dict.fromkeys(made))
    unknown = set(wanted) - {unit.method for unit in fits}
    if unknown:
        raise ValueError(
            f"Expected methods of {experiment} ({', '.join(dict.fromkeys(unit.method for unit in fits))}), got "
            f"{', '.join(map(repr, sorted(unknown)))}. Leave --method out for all of them."
        )
    fits = [unit for unit in fits if not wanted or unit.method in wanted]
    unused = sorted(set(data or {}) - {unit.task for unit in fits if unit.data and unit.task in WITH_DATA})
    if unused:
        raise ValueError(
            f"Expected measured data of {' or '.join(WITH_DATA)} that {experiment} uses, got data of {', '.join(unused)}. "
            f"Add --task {unused[0]}, or leave --data out."
        )
    bases = dict.fromkeys(base for base in (unit.base for unit in fits) if base is not None)
    return [*bases, *fits]


def _with_base(unit: Unit, experiment: str, data: Mapping[str, str]) -> Unit:
    """The unit, with domain randomisation of its base posterior and measured data of its task set."""
    default = unit.method == "npe-randomised" or (unit.method.startswith("fmcpe") and "-paper" not in unit.method)
    randomised = default or experiment in BEYOND_THE_PAPER
    possible = unit.task in RANDOMISABLE and unit.method not in WITHOUT_BASE
    return replace(unit, randomised=randomised and possible, data=data.get(unit.task, ""))


def _main(p: Preset) -> Iterable[Unit]:
    units = _grid(p, p.tasks, (*BASELINES, *p.more, "npe-randomised", "fmcpe-paper", "fmcpe", "reference"))
    return (unit for unit in units if unit.method != "npe-randomised" or unit.task in RANDOMISABLE)


def _sbc(p: Preset) -> Iterable[Unit]:
    methods = ("npe", "fmcpe", "fmcpe-paper", "mf-npe", "rope", "dpe", "reference")
    return _grid(replace(p, evaluation=p.sbc, sets=1), p.sbc_tasks, methods)


def _ablation(p: Preset) -> Iterable[Unit]:
    p = replace(p, sizes=p.few_sizes)
    yield from _grid(p, p.stage_tasks, ("fmcpe-paper", "fmcpe", "reference"))
    yield from _grid(replace(p, evaluation=p.extra), p.stage_tasks, PAPER_STAGES)


def _independence(p: Preset) -> Iterable[Unit]:
    p = replace(p, sizes=(p.most_pairs,), sets=min(3, p.sets), evaluation=p.extra, simulations=p.side_simulations)
    for alpha in p.alphas:
        methods = ("fmcpe-paper", "fmcpe-paper-x-only", "fmcpe", "reference")
        yield from _grid(p, OWN_TASKS["independence"], methods, options(alpha=alpha))


def _prior(p: Preset) -> Iterable[Unit]:
    methods = ("npe", "mf-npe", "rope", "fmcpe-paper", "fmcpe", "reference")
    p = replace(p, sizes=p.few_sizes, sets=min(3, p.sets), evaluation=p.extra, simulations=p.side_simulations)
    return _grid(p, OWN_TASKS["prior"], methods)


def _timing(p: Preset) -> Iterable[Unit]:
    return _timed(p, p.timed_sizes, (*BASELINES, *p.more, "fmcpe-paper", "fmcpe"))


def _speed(p: Preset) -> Iterable[Unit]:
    return _timed(p, p.speed_sizes, ("fmcpe-paper", "fmcpe"))


def _timed(p: Preset, sizes: tuple[int, ...], methods: Iterable[str]) -> Iterable[Unit]:
    clock = Evaluation(test=0, draws=0, reference=0, reference_draws=0, joint=False, timed=p.timed)
    return _grid(replace(p, evaluation=clock, sizes=sizes, sets=1), p.tasks, methods)


def _sensitivity(p: Preset) -> Iterable[Unit]:
    # joint W2 and MMD of the reference posterior are the floor of the table
    evaluation = replace(p.evaluation, test=p.grid_test, draws=1, reference=0)
    for task in p.sensitivity_tasks:
        for rate in p.rates:
            for clip in p.clips:
                changed = options(learning_rate=rate, clip=1e9 if clip is None else clip, epochs=p.grid_epochs)
                for seed in p.grid_seeds:
                    unit = Unit(
                        "fit", task, "fmcpe-paper", (), p.simulations, p.epochs, p.grid_pairs, seed,
                        options(**dict(p.recipe) | dict(changed)), evaluation,
                    )  # fmt: skip
                    yield unit
        yield Unit("fit", task, "reference", simulations=0, epochs=0, evaluation=evaluation)


def _frontier(p: Preset) -> Iterable[Unit]:
    p = replace(p, sets=min(3, p.sets))
    methods = (*BASELINES, *p.more, "fmcpe-paper", "fmcpe", "reference")
    return _grid(p, p.stage_tasks, methods)


def _zoo(p: Preset) -> Iterable[Unit]:
    p = replace(
        p, evaluation=p.zoo_evaluation, sizes=p.zoo_sizes, sets=p.zoo_sets, simulations=p.zoo_simulations,
        own_simulations=p.zoo_simulations,
    )  # fmt: skip
    for name in p.zoo:
        methods = [method for method in p.zoo_methods if method != "fmcpe-paper" or name in ZOO_PAPER]
        for unit in _grid(p, (name,), methods, options(seed=zoo.SEEDS[zoo.half_of(name)])):
            # a reference posterior takes a second per observation: 40 observations suffice for the floor
            few = replace(unit.evaluation, test=min(40, unit.evaluation.test))
            yield replace(unit, evaluation=few) if unit.method == "reference" else unit


def _grid(p: Preset, tasks: Iterable[str], methods: Iterable[str], task_options: Options = ()) -> Iterable[Unit]:
    """Every task × method × set × size, small sizes first so that partial results come early."""
    methods = tuple(methods)
    for task in tasks:
        for method in methods:
            if method in WITHOUT_PAIRS:
                simulations, epochs = (0, 0) if method == "reference" else (p.simulations_of(method), p.epochs)
                yield Unit("fit", task, method, task_options, simulations, epochs, evaluation=p.evaluation)
    for number in range(p.sets):
        for pairs in p.sizes:
            for task in tasks:
                for method in methods:
                    if method in WITHOUT_PAIRS:
                        continue
                    simulations = p.simulations_of(method)
                    yield Unit(
                        "fit", task, method, task_options, simulations, p.epochs, pairs, number, p.recipe, p.evaluation
                    )


EXPERIMENTS: dict[str, Callable[[Preset], Iterable[Unit]]] = {
    "main": _main,
    "sbc": _sbc,
    "ablation": _ablation,
    "independence": _independence,
    "prior": _prior,
    "timing": _timing,
    "sensitivity": _sensitivity,
    "zoo": _zoo,
    "frontier": _frontier,
    "speed": _speed,
}
"""Experiments in the order of the paper, then those beyond it."""
