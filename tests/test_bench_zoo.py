"""The zoo's experiment: its plan, methods of somebody's own, and the report, from made-up numbers whose verdicts are known."""

import json

import pytest
import torch
from bench_results import fill, made_up
from scipy.stats import binom

from fmcpe import tasks
from fmcpe.bench import zoo
from fmcpe.bench.fitting import build, fitted
from fmcpe.bench.keep import keep
from fmcpe.bench.plan import plan
from fmcpe.bench.presets import PRESETS, ZOO_PAPER, ZOO_QUICK
from fmcpe.bench.results import Results
from fmcpe.bench.store import Store
from fmcpe.bench.units import Unit, options
from fmcpe.cli import main
from fmcpe.tasks.zoo import DEVELOPMENT, REPORTING, SEEDS, names, split


class Shrinking:
    """Ten lines of a method: the mean of the pairs' θ, with their spread."""

    def __init__(self, prior, simulator):
        assert callable(simulator)
        self.prior = prior

    def fit(self, theta, y):
        self.mean, self.std = theta.mean(0), theta.std(0)
        return self

    def sample(self, sample_shape, x):
        inside = self.prior.sample((1,))[0] * 0
        return self.mean + self.std * torch.randn(*sample_shape, len(inside)).clamp(-1, 1)


def test_the_plan_covers_both_halves_with_seeds_fixed_in_advance():
    assert len(ZOO_QUICK) == 18 and set(ZOO_PAPER) <= set(ZOO_QUICK) <= set(names())
    halves = [split(name)[0] in DEVELOPMENT for name in ZOO_QUICK]
    assert sum(halves) == 9 and SEEDS == {"development": 0, "reporting": 100}, "fixed before any method was run"
    units = [unit for unit in plan("zoo", "quick") if unit.kind == "fit"]
    assert {unit.pairs for unit in units} == {0, 10, 30, 100, 300} and {unit.set for unit in units} == {0, 1}
    assert "j-npe" not in {unit.method for unit in units}
    seeds = {(split(unit.task)[0] in REPORTING, dict(unit.options)["seed"]) for unit in units}
    assert seeds == {(True, SEEDS["reporting"]), (False, SEEDS["development"])}
    assert {unit.task for unit in plan("zoo", "full")} == set(names())
    assert {unit.set for unit in plan("zoo", "full")} == {0, 1, 2}
    with_paper = {unit.task for unit in plan("zoo", "quick", with_paper=True) if unit.method == "fmcpe-paper"}
    assert with_paper == set(ZOO_PAPER)
    assert all(unit.base is None or unit.base.method == "" for unit in units)
    assert PRESETS["quick"].zoo_evaluation.test >= 500


def test_a_method_of_ones_own_is_fitted_and_drawn_from():
    unit = Unit("fit", "zoo/linear-none", "test_bench_zoo:Shrinking", options(seed=0), pairs=20)
    task = tasks.get("zoo/linear-none", seed=0)
    posterior = fitted(unit, task, None)
    draws = posterior.sample_batched((5,), x=task.test_set(3, 0)[1], show_progress_bars=False)
    assert draws.shape == (5, 3, len(task.theta_names))
    assert {u.method for u in plan("zoo", "smoke", methods=["test_bench_zoo:Shrinking"])} == {
        "",
        "test_bench_zoo:Shrinking",
    }
    for wrong in ("nowhere.at.all:Name", "test_bench_zoo:Nothing"):
        with pytest.raises(ValueError, match="can be imported"):
            build(Unit("fit", "zoo/linear-none", wrong, options(seed=0), pairs=20), task, None)
    with pytest.raises(ValueError, match=r"^Expected methods of main, got .+ Run your own methods on zoo"):
        plan("main", "smoke", methods=["test_bench_zoo:Shrinking"])


@pytest.fixture
def run(tmp_path):
    return fill(tmp_path / "run", ["zoo"])


def test_ratios_are_to_the_best_method(run):
    results = Results.read(run)
    found = zoo.scores(results)
    methods = {score.method for score in found}
    assert methods == {"npe", "dpe", "mf-npe", "fmcpe"}, "the reference is not a rival"
    assert {score.ratio for score in found if score.method == "fmcpe"} == {1.0}
    assert all(score.ratio > 3 for score in found if score.method == "dpe")
    table = zoo.ratio_table(found, results)
    assert table.rows[0][0] == "fmcpe" and table.rows[0][2:7] == ["1"] * 5
    ranks = dict(zip(table.header, table.rows[0], strict=True))["mean rank"]
    assert ranks == "1.00 ± 0.00"
    by_size = zoo.breakdown_table(found, "pairs", results)
    assert [row[0] for row in by_size.rows] == ["10", "20"]
    assert all(table.note.count("Base posterior: ") == 1 for table in (table, by_size, zoo.worst_table(found, results)))


def test_the_ten_worst_are_problems_in_the_order_of_their_ratio(run):
    results = Results.read(run)
    found = zoo.scores(results)
    rows = zoo.worst_table(found, results).rows
    for method in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == method]
        assert len({row[1] for row in own}) == len(own)
        ratios = [float(row[4]) for row in own]
        assert ratios == sorted(ratios, reverse=True)
        worst = max((score for score in found if score.method == method), key=lambda score: score.ratio)
        assert own[0][1] == worst.problem


def test_the_profile_is_the_share_within_a_factor(run):
    found = zoo.scores(Results.read(run))
    figure = zoo.profiles(found)
    for axes, size in zip(figure.axes, sorted({score.pairs for score in found}), strict=True):
        for line in axes.get_lines():
            own = [s.ratio for s in found if s.method == line.get_label() and s.pairs == size]
            x, y = line.get_data()
            assert list(y) == sorted(y) and y[-1] == 1
            for factor in (1.2, 2.0, 3.5):
                assert y[x <= factor].max() == pytest.approx(sum(r <= factor for r in own) / len(own))


def test_the_band_is_that_of_the_test_pairs(run):
    found = zoo.scores(Results.read(run))
    (band,) = zoo.coverage_plot(found).axes[0].patches
    low, high = band.get_y(), band.get_y() + band.get_height()
    (tests,) = {score.tests for score in found}
    assert tests == made_up(plan("zoo", "smoke")[-1]).metrics["sbc"]["observations"], "not times the number of sets"
    expected = [binom.ppf(q, tests, 0.8) / tests for q in (0.025, 0.975)]
    assert [low, high] == pytest.approx(expected)


def test_the_papers_recipe_does_not_decide_who_is_best(tmp_path):
    """It runs on a part of the problems: a ratio to it would mean something else there."""
    units = plan("zoo", "smoke", with_paper=True)
    with Store(tmp_path, "") as store:
        store.add("zoo", "smoke", units)
        for unit in units:
            result = made_up(unit)
            if unit.method == "fmcpe-paper":
                result.metrics["energy"] = 1e-3
            store.claim([unit.id])
            store.finish(unit.id, result)
    found = zoo.scores(Results.read(tmp_path))
    assert min(score.ratio for score in found if score.method == "fmcpe") == 1.0
    assert {score.ratio < 0.1 for score in found if score.method == "fmcpe-paper"} == {True}


def test_a_method_of_ones_own_that_fails_takes_nobody_with_it(tmp_path):
    own = "test_bench_zoo:Shrinking"
    units = plan("zoo", "smoke", methods=[own]) + plan("zoo", "smoke")
    units = list(dict.fromkeys(units))
    with Store(tmp_path, "") as store:
        store.add("zoo", "smoke", units)
        for unit in units:
            store.claim([unit.id])
            if unit.method == own:
                store.fail(unit.id, "it failed")
            else:
                store.finish(unit.id, made_up(unit))
    found = zoo.scores(Results.read(tmp_path))
    assert {score.pairs for score in found} == {10, 20} and own not in {score.method for score in found}
    with pytest.raises(ValueError, match="can be imported"):
        plan("zoo", "smoke", methods=["test_bench_zoo:Typo"])


def test_settings_that_are_not_finished_are_left_out(tmp_path):
    fill(tmp_path, ["zoo"], wanted=lambda unit: unit.pairs != 20 or unit.method != "dpe")
    assert {score.pairs for score in zoo.scores(Results.read(tmp_path))} == {10}


def test_the_report_and_the_files_beside_it(run, tmp_path):
    files = {path.name for path in keep(run, tmp_path / "kept")}
    assert {"zoo.json", "zoo-ratios.csv", "zoo-by-family.csv", "zoo-worst.csv", "zoo-units.csv"} <= files
    text = (tmp_path / "kept" / "zoo.json").read_text()
    assert "NaN" not in text, "strict parsers refuse it"
    scores = json.loads(text)
    assert {"problem", "half", "severity", "energy", "crps", "coverage_80", "ratio"} <= set(scores[0])
    page = (tmp_path / "kept" / "report.html").read_text()
    assert "Performance profiles" in page and "misspecification zoo" in page
    assert page.count('id="picture-linear-gain-offset"') == 1 and 'href="#picture-linear-gain-offset"' in page


def test_zoo_is_not_part_of_all(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("fmcpe.bench.plan.plan", lambda name, *_: seen.append(name) or [])
    monkeypatch.setattr("fmcpe.bench.run.run", lambda *_, **__: type("Outcome", (), {"statuses": {}, "done_now": 0})())
    assert main(["bench", "run", "all", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert "zoo" not in seen and "main" in seen


def test_made_up_results_have_what_units_have():
    assert {"crps", "severity"} <= set(made_up(plan("zoo", "smoke")[-1]).metrics)


def test_a_method_that_is_asked_for_later_joins_the_others(tmp_path):
    first, later = plan("zoo", "smoke"), plan("zoo", "smoke", methods=["j-npe"])
    assert "j-npe" not in {unit.method for unit in first} and {"", "j-npe"} >= {unit.method for unit in later}
    with Store(tmp_path, "") as store:
        store.add("zoo", "smoke", first, grow=True)
        store.add("zoo", "smoke", later, grow=True)
        store.add("zoo", "smoke", first, grow=True)
        planned = store.plans()["zoo", "smoke"]
    assert len(planned) == len(set(planned)) == len({unit.id for unit in (*first, *later)})
    assert planned[: len(first)] == [unit.id for unit in first]
