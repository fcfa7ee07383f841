"""Ablations of the stack: recomputed from stored distances, the same as from the fit itself."""

import pytest
import torch
from bench_results import made_up
from conftest import observe

from fmcpe import metrics
from fmcpe._random import seeded
from fmcpe.bench import zoo
from fmcpe.bench.plan import plan
from fmcpe.bench.results import Results
from fmcpe.bench.stack import ablation_table, hindsight_table, more_pairs_table, restacked, stack_metrics, weights_table
from fmcpe.bench.store import Store
from fmcpe.bench.work import of_the_fit


@pytest.fixture(scope="module")
def stored(posteriors, prior_pairs):
    with seeded(0):
        return stack_metrics(posteriors("default"), *prior_pairs)


@pytest.fixture(scope="module")
def prior_pairs():
    from conftest import PRIOR

    with seeded(5):
        theta = PRIOR.sample((200,))
        return theta, observe(theta)


def test_the_whole_stack_has_the_weights_of_the_fit(posteriors, stored, prior_pairs):
    posterior = posteriors("default")
    score, weights = restacked(stored)
    assert weights == pytest.approx(posterior.weights, abs=1e-3)
    with seeded(1):
        draws = posterior.inner.inner.inner.sample(prior_pairs[1], 200)  # the mixture, before recalibration
    direct = metrics.energy_score(draws.movedim(0, 1), posterior.space.to_z_safely(prior_pairs[0]))
    assert score == pytest.approx(direct, rel=0.05)


def test_without_a_candidate_the_others_share_its_weight(stored):
    score, weights = restacked(stored, ["synthetic_likelihood"])
    assert "synthetic_likelihood" not in weights and sum(weights.values()) == pytest.approx(1, abs=1e-5)
    alone, only = restacked(stored, [name for name in stored["names"] if name != "prior"])
    assert only == {"prior": 1.0} and alone > score


@pytest.fixture(scope="module")
def results(tmp_path_factory, stored):
    """Every unit of the smoke run made up; fmcpe has this stack, and an energy score that falls with the pairs."""
    tmp_path, units = tmp_path_factory.mktemp("zoo"), plan("zoo", "smoke")
    with Store(tmp_path, "") as store:
        store.add("zoo", "smoke", units)
        for unit in units:
            result = made_up(unit)
            if unit.method == "fmcpe":
                result.metrics.update(stack=stored, energy=3.0 / unit.pairs)
            store.claim([unit.id])
            store.finish(unit.id, result)
    return Results.read(tmp_path)


def test_the_table_has_a_line_for_each_candidate(results, stored):
    table = ablation_table(results, "development")
    assert [row[0] for row in table.rows] == stored["names"]
    lines = {row[0]: row for row in table.rows}
    assert float(lines["prior"][4]) > 1  # alone, it is worse than the stack
    assert all(torch.tensor(float(row[6])) > 0 for row in table.rows)


def test_candidates_alone_compete_in_hindsight(results, stored):
    found = zoo.scores(results)
    table = hindsight_table(found, results, "development")
    lines = {row[0]: row for row in table.rows}
    assert {f"{name} alone" for name in stored["names"]} <= set(lines)
    own = {s.pairs: s.energy for s in found if s.method == "fmcpe" and s.half == "development"}
    prior = restacked(stored, [name for name in stored["names"] if name != "prior"])[0]
    best = {
        size: min(
            *(restacked(stored, [o for o in stored["names"] if o != name])[0] for name in stored["names"]),
            *(s.energy for s in found if s.pairs == size and s.half == "development"),
        )
        for size in own
    }
    expected = max(prior / value for value in best.values())
    assert float(lines["prior alone"][5]) == pytest.approx(expected, rel=0.01)
    assert float(lines["fmcpe"][5]) == pytest.approx(max(own[size] / best[size] for size in own), rel=0.01)


def test_more_pairs_are_compared_with_fewer(results):
    (row,) = [row for row in more_pairs_table(zoo.scores(results), results).rows if row[0] == "fmcpe"]
    assert row[1] == "10 to 20" and row[3].startswith("-69.3") and row[4] == "0"


def test_every_unit_of_a_stack_records_its_weights(posteriors, tmp_path):
    found = of_the_fit(posteriors("default"))
    assert found["weights"] == posteriors("default").weights and found["skipped"] == {} and "weight" in found["summary"]
    assert "weights" not in of_the_fit(posteriors("npe"))
    with Store(tmp_path, "") as store:
        units = plan("main", "smoke")
        store.add("main", "smoke", units)
        for unit in units:
            result = made_up(unit)
            if unit.method == "fmcpe":
                result.metrics["weights"] = {"prior": 0.25, "fine_tuned": 0.75}
            store.claim([unit.id])
            store.finish(unit.id, result)
    results = Results.read(tmp_path)
    table = weights_table(results, "main")
    assert table.header == ["task", "pairs", "fits", "prior", "fine_tuned"]
    assert len(table.rows) == len({(u.task, u.pairs) for u in units if u.method == "fmcpe"})
    assert all((float(row[3]), float(row[4])) == (0.25, 0.75) for row in table.rows)
    assert weights_table(results, "ablation") is None
