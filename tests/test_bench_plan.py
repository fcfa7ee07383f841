"""Plans are functions of names; units are named by their content; methods and measures are what they say."""

import math
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fmcpe import tasks
from fmcpe._random import seeded
from fmcpe.base_posteriors.domain_randomisation import on_a_baseline
from fmcpe.bench.clock import timed_parts
from fmcpe.bench.fitting import build, recipe_of
from fmcpe.bench.measure import measured, reference_draws
from fmcpe.bench.plan import EXPERIMENTS, METHODS, ROBUST, WITHOUT_PAIRS, plan
from fmcpe.bench.presets import PRESETS
from fmcpe.bench.units import RANDOMISABLE, Evaluation, Unit, options
from fmcpe.bench.work import BASE_FILE, _timed_fit, load_base, perform
from fmcpe.cli import main
from fmcpe.nn.embeddings import level_aware_part

ALL = [(experiment, preset) for experiment in EXPERIMENTS for preset in PRESETS]


@pytest.mark.parametrize(("experiment", "preset"), ALL)
def test_a_plan_has_every_unit_once_and_base_posteriors_first(experiment, preset):
    units = plan(experiment, preset)
    names = [unit.id for unit in units]
    assert len(set(names)) == len(units) > 0
    for position, unit in enumerate(units):
        assert unit.base is None or names.index(unit.base.id) < position
        assert unit.kind == "base" or unit.method in METHODS
        assert (unit.pairs == 0) == (unit.kind == "base" or unit.method in WITHOUT_PAIRS)
        assert Unit.from_json(unit.to_json()) == unit


@pytest.mark.parametrize(("experiment", "preset"), ALL)
def test_every_recipe_of_a_plan_is_within_its_limits(experiment, preset):
    for method, changed in {(unit.method, unit.recipe) for unit in plan(experiment, preset) if "fmcpe" in unit.method}:
        assert recipe_of(method, dict(changed)) is not None


def test_plans_are_the_same_in_every_process():
    code = (
        "from fmcpe.bench.plan import plan\nimport sys\n"
        "print(' '.join(u.id for u in plan('main', 'paper') + plan('sensitivity', 'quick')))\nassert 'torch' not in sys.modules"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": s}
        )
        for s in ("1", "2")
    ]
    here = " ".join(unit.id for unit in plan("main", "paper") + plan("sensitivity", "quick"))
    assert {run.stdout.strip() for run in runs} == {here}


def test_every_setting_is_part_of_the_name():
    unit = Unit("fit", "gaussian", "fmcpe", options(seed=1), 100, 2, 10, 1, options(clip=1.0), Evaluation())
    changed = [
        replace(unit, kind="base"), replace(unit, task="pendulum"), replace(unit, method="npe"),
        replace(unit, options=options(seed=2)), replace(unit, simulations=101), replace(unit, epochs=3),
        replace(unit, pairs=11), replace(unit, set=2), replace(unit, recipe=options(clip=2.0)),
        replace(unit, evaluation=Evaluation(test=1)), replace(unit, randomised=True), replace(unit, data="0123"),
    ]  # fmt: skip
    assert len(changed) == len(fields(Unit))
    assert len({unit.id, *(other.id for other in changed)}) == len(changed) + 1


def test_the_paper_preset_has_the_papers_budgets():
    units = [unit for unit in plan("main", "paper") if unit.kind == "fit" and unit.pairs]
    assert {unit.task for unit in units} == {"gaussian", "pendulum", "wind-tunnel", "light-tunnel"}
    assert {unit.pairs for unit in units} == {10, 50, 200, 1000}
    assert {unit.set for unit in units} == set(range(5))
    assert {(unit.simulations, unit.evaluation.test) for unit in units} == {(50_000, 2000)}
    assert {"dpe", "mf-npe", "rope", "j-npe", "fmcpe", "fmcpe-paper"} == {unit.method for unit in units}
    ranks = [unit for unit in plan("sbc", "paper") if unit.kind == "fit"]
    assert {(unit.evaluation.test, unit.evaluation.draws) for unit in ranks} == {(1000, 500)}
    assert {unit.evaluation for unit in units} == {Evaluation(2000, 50, 3, 5000, 3)}
    for preset in ("paper", "quick"):
        fits = [unit for unit in plan("sensitivity", preset) if unit.method == "fmcpe-paper"]
        assert len({unit.recipe for unit in fits}) == 16
        assert {(unit.pairs, unit.evaluation.draws, dict(unit.recipe)["epochs"]) for unit in fits} == {(200, 1, 50)}
        alphas = [unit for unit in plan("independence", preset) if unit.method == "fmcpe-paper"]
        assert {dict(unit.options)["alpha"] for unit in alphas} == {0.0, 0.5, 1.0, 2.0, 5.0}
        assert {(unit.pairs, unit.set) for unit in alphas} == {(1000, 0), (1000, 1), (1000, 2)}
    assert {unit.task for unit in plan("main", "quick")} == {"gaussian", "pendulum"}
    assert {unit.set for unit in plan("main", "quick")} == {0, 1, 2}


def test_tasks_can_be_chosen():
    units = plan("frontier", "quick", ["wind-tunnel"])
    assert {unit.task for unit in units} == {"wind-tunnel"}
    assert {unit.id for unit in plan("frontier", "quick", ["gaussian", "pendulum"])} == {
        unit.id for unit in plan("frontier", "quick")
    }
    with pytest.raises(ValueError, match=r"^Expected one of .*'pendulum', .+, got 'nonsense'\. Try"):
        plan("main", "quick", ["nonsense"])


def test_wrong_names_say_what_there_is(capsys):
    with pytest.raises(ValueError, match=r"^Expected an experiment of .+ablation.+, got 'mian' and 'quick'\. Try"):
        plan("mian", "quick")
    with pytest.raises(SystemExit):
        main(["bench", "run", "mian"])
    assert "sensitivity" in capsys.readouterr().err


@pytest.fixture(scope="module")
def base():
    """A base posterior that a unit made."""
    unit = Unit("base", "gaussian", simulations=300, epochs=2)
    return unit, perform(unit).files[BASE_FILE]


def test_a_base_posterior_comes_back_from_its_file_as_it_was(base):
    unit, content = base
    again = perform(unit)
    assert again.files[BASE_FILE] == content, "the same unit gave another posterior"
    one, two = load_base(content), load_base(again.files[BASE_FILE])
    y = torch.zeros(1, 10)
    torch.manual_seed(0)
    a = one.posterior_estimator.sample((5,), y)
    torch.manual_seed(0)
    assert torch.equal(a, two.posterior_estimator.sample((5,), y))


def test_a_unit_gives_the_same_numbers_again_and_leaves_torch_as_it_was(base):
    unit = next(u for u in plan("main", "smoke") if u.method == "fmcpe-paper" and u.task == "gaussian")
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first, second = perform(unit, base[1]), perform(unit, base[1])
    assert (torch.get_num_threads(), True) == (threads, torch.equal(state, torch.get_rng_state()))
    for name, value in first.metrics.items():
        if "seconds" not in name and name != "summary":
            assert second.metrics[name] == value, name
    assert first.files.keys() == {"draws.npz"} and set(first.versions) >= {"fmcpe", "torch", "python"}
    assert "cores" in first.metrics["machine"]
    ranks = first.metrics["sbc"]
    assert len(ranks["statistics"]) == len(ranks["names"]) and all(0 < value <= 1 for value in ranks["statistics"])


def test_with_one_draw_the_joint_metrics_are_all_there_is():
    task = tasks.get("gaussian")
    found, arrays = measured(reference_draws(task), task, Evaluation(test=40, draws=1, reference=0), seed=0)
    assert set(found) == {"joint_w2", "joint_mmd2", "joint_mmd2_paired", "joint_c2st", "test_pairs"}
    assert set(arrays) == {"theta"}


@pytest.mark.slow
def test_the_reference_posterior_scores_as_the_truth_should():
    """What every other method is measured with finds no fault in the exact posterior."""
    task = tasks.get("gaussian")
    evaluation = Evaluation(test=300, draws=40, reference=1, reference_draws=300)
    found, arrays = measured(reference_draws(task), task, evaluation, seed=0)
    assert np.mean(found["coverage"]["0.9"]) == pytest.approx(0.9, abs=0.05)
    assert found["c2st"] == pytest.approx(0.5, abs=0.08)
    assert found["joint_c2st"] == pytest.approx(0.5, abs=0.08)
    assert max(abs(b) for b in found["sbc"]["bias"]) < 0.2
    assert arrays["ranks"].shape == (300, 3) and arrays["draws"].shape == (300, 3)

    wide, _ = measured(
        lambda n, y: 1.5 * torch.randn(n, len(y), 3) + reference_draws(task)(n, y), task, evaluation, seed=0
    )
    for metric in ("energy", "mse", "c2st", "w2", "joint_c2st"):
        assert wide[metric] > found[metric], metric


def test_the_parts_of_a_fit_add_up_to_its_time(base):
    unit = next(u for u in plan("timing", "smoke") if u.method == "fmcpe-paper" and u.task == "gaussian")
    metrics = perform(unit, base[1]).metrics
    # both are read from the clock, one after the other: a busy machine may come between
    assert sum(metrics["parts"].values()) == pytest.approx(metrics["fit_seconds"], rel=0.05, abs=0.5)
    for part in ("gradient steps", "base draws", "x-transport", "simulation"):
        assert metrics["parts"][part] > 0, part
    assert all(metrics[name] > 0 for name in ("inference_seconds", "one_observation_seconds", "tenth_seconds"))


def test_the_clock_leaves_no_trace():
    from fmcpe.candidates.joint_flow import JointFlowed

    before = (JointFlowed.carry_x, torch.Tensor.backward, vars(torch.optim.AdamW).get("step"))
    with timed_parts() as clock:
        assert JointFlowed.carry_x is not before[0]
        clock.timed("simulation", sum)([1, 2])
    assert (JointFlowed.carry_x, torch.Tensor.backward, vars(torch.optim.AdamW).get("step")) == before
    assert clock.seconds["simulation"] > 0 and math.isclose(clock.seconds["gradient steps"], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "units"),
    [
        (("gaussian",), 5),
        pytest.param(("gaussian", "pendulum", "wind-tunnel", "light-tunnel"), 20, marks=pytest.mark.nightly),
    ],
    ids=["one", "all"],
)
def test_speed_runs_for_real_and_prints_its_table(tmp_path, capsys, names, units):
    """The whole way: worker processes, base posteriors from files, fits, the table. Numbers mean nothing here."""
    command = ["bench", "speed", "--preset", "smoke", "--jobs", "2", "--out", str(tmp_path)]
    command += [word for name in names for word in ("--task", name)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"{units} of {units} units done, {units} now" in out and "gradient steps" in out
    assert all(name in out for name in names)
    assert main(command) == 0
    assert "0 now" in capsys.readouterr().out


def test_some_methods_of_an_experiment_are_units_of_the_whole():
    whole, some = plan("frontier", "quick"), plan("frontier", "quick", methods=["fmcpe", "dpe"])
    assert {unit.method for unit in some} == {"", "fmcpe", "dpe"}
    assert set(some) < set(whole)
    with pytest.raises(ValueError, match=r"^Expected methods of frontier \(.*fmcpe-paper.*\), got 'nonsense'\. Leave"):
        plan("frontier", "quick", methods=["fmcpe", "nonsense"])


def test_what_is_timed_is_the_whole_recipe():
    assert all(not unit.recipe for name in ("timing", "speed", "main") for unit in plan(name, "quick"))


def test_the_papers_methods_stand_on_plain_base_posteriors_and_the_default_recipe_on_its_own():
    units = [unit for unit in plan("main", "quick") if unit.kind == "fit"]
    assert {unit.method for unit in units if unit.randomised} == {"fmcpe", "npe-randomised"}
    assert {unit.task for unit in units if unit.randomised} == {"pendulum"}
    assert {unit.base.randomised for unit in units if unit.base and unit.task == "pendulum"} == {True, False}
    with_base = [unit for unit in plan("frontier", "quick", ["pendulum"]) if unit.base]
    assert {unit.randomised for unit in with_base} == {True}
    assert {unit.method for unit in plan("frontier", "quick") if not unit.base and unit.kind == "fit"} == {
        "dpe", "nnpe", "j-npe", "reference",
    }  # fmt: skip


@pytest.mark.parametrize("name", tasks.names())
def test_which_base_posteriors_are_domain_randomised_by_default(name):
    """The plan knows without torch what `train_npe` decides by looking at simulations."""
    task = tasks.get(name)
    with seeded(0):
        net, x = task.embedding_net(), task.simulator(task.prior.sample((100,)))
    assert (name in RANDOMISABLE) == (net is not None and not on_a_baseline(x))


@pytest.mark.parametrize("randomised", [True, False])
def test_a_base_posterior_sees_the_simulations_that_its_unit_says(randomised):
    unit = Unit("base", "wind-tunnel", simulations=300, epochs=1, randomised=randomised)
    posterior = load_base(perform(unit).files[BASE_FILE])
    assert (level_aware_part(posterior.posterior_estimator) is not None) == randomised
    fit = Unit("fit", "wind-tunnel", "j-npe", simulations=300, epochs=1, randomised=randomised)
    trained = build(fit, tasks.get("wind-tunnel"), None).fit(seed=0, show_progress_bars=False)
    assert (level_aware_part(trained.inner.base.estimator) is not None) == randomised


@pytest.mark.parametrize(("first", "middle"), [(3.0, 3.0), (9.0, 4.0), (11.0, 11.0)])
def test_of_a_short_fit_the_middle_of_three_times_counts(monkeypatch, first, middle):
    clock, seconds = [0.0], iter([first, 4.0, 2.0])
    monkeypatch.setattr("fmcpe.bench.work.time.perf_counter", lambda: clock[0])

    def fit(*_):
        clock[0] += next(seconds)

    monkeypatch.setattr("fmcpe.bench.fitting.fitted", fit)
    unit = plan("speed", "quick", ["gaussian"])[-1]
    assert _timed_fit(unit, tasks.get("gaussian"), None)[1] == middle


@pytest.mark.parametrize("experiment", ["prior", "independence"])
def test_experiments_about_certain_tasks_take_no_others(experiment):
    with pytest.raises(ValueError, match=r"^Expected .+ in \w+, got --task\. Leave --task out"):
        plan(experiment, "smoke", ["gaussian"])


def test_methods_that_train_on_simulations_get_as_many_as_the_unit_says():
    """From the simulations' own prior, too, where a task has one."""
    for unit in plan("main", "smoke", ["gaussian-prior"], ["nnpe", "npe-rs", "j-npe"]):
        assert unit.base is None
        method = build(unit, tasks.get("gaussian-prior"), None)
        assert len(method.simulations[0]) == unit.simulations == 300


@pytest.mark.parametrize("experiment", ["main", "timing", "frontier", "zoo"])
def test_robust_baselines_run_where_they_are_named(experiment):
    """They are no part of the experiments otherwise, so the units of stored runs stay as they are."""
    asked = plan(experiment, "quick", methods=ROBUST)
    fits = [unit for unit in asked if unit.kind == "fit"]
    assert {unit.method for unit in fits} == set(ROBUST)
    assert all(unit.base in asked for unit in fits if unit.method != "npe-rs")
    assert all((unit.pairs == 0) == (unit.method in ("rnpe", "rsnl")) for unit in fits)
    assert not {unit.method for unit in plan(experiment, "quick")} & set(ROBUST)
