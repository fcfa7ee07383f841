"""Pairs that are left out of training rows: faults, clean pairs, heavy tails, and what they cost a fit."""

from dataclasses import replace

import pytest
import torch
from conftest import PRIOR, SMALL, observe, simulate, with_pairs_of

from fmcpe import FMCPE, FMCPEWarning, candidates
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.outliers import data_distances, features_of, p_values, plausible_rows
from fmcpe.problem import build_problem, split_pairs
from fmcpe.stacking import training_rows


def problem_of(base, theta, y):
    with seeded(0):
        simulator = CheckedSimulator(simulate, torch.Size((3,)))
        return build_problem(as_base_posterior(base), simulator, PRIOR, theta, y, None, bank=300)


def pairs_of(seed, number=30):
    with seeded(seed):
        theta = PRIOR.sample((number,))
        return theta, observe(theta)


@pytest.mark.parametrize(("columns", "simulated"), [(3, True), (3, False), (400, True)])
def test_clean_pairs_stay(columns, simulated):
    """At p < 0.001, at most 1 in 100 of 1800 clean Gaussian pairs, of few numbers or many; a tenfold y never stays."""
    left = hit = 0
    with seeded(1):
        for _ in range(60):
            z, mixing = torch.randn(30, 2), torch.randn(2, columns)
            seen = z @ mixing + 0.3 * torch.randn(30, columns) + 1
            x = z @ mixing + 0.1 * torch.randn(30, columns) if simulated else None
            left += int((p_values(*data_distances(z, seen, x, torch.arange(30))) < 1e-3).sum())
            far = int(seen.norm(dim=1).argmax())
            seen[far] *= 10
            hit += float(p_values(*data_distances(z, seen, x, torch.arange(30)))[far]) < 1e-3
    assert left <= 18 and hit == 60, (left, hit)


def test_few_pairs_and_fits_that_are_not_robust_keep_all(base):
    theta, y = pairs_of(2)
    y[3] *= 10
    problem, rows = problem_of(base, theta, y), torch.arange(30)
    assert plausible_rows(problem, rows).tolist() == [j for j in range(30) if j != 3]
    assert torch.equal(plausible_rows(problem, rows, robust=False), rows)
    assert torch.equal(plausible_rows(problem, rows[:7]), rows[:7])


def test_training_rows_depend_on_nothing_inside_the_fold(base):
    """A wrong pair is left out of the folds that train on it; what a fold holds does not matter to its own rows."""
    theta, y = pairs_of(3)
    y[5] *= 10
    here = problem_of(base, theta, y)
    there = problem_of(base, *pairs_of(4))
    with seeded(5):
        folds = split_pairs(theta, 3, 2)
    found = training_rows(here, folds, True)
    for split, parts in zip(folds, found, strict=True):
        for k, rows in enumerate(parts):
            outside = (split != k).nonzero()[:, 0]
            assert 5 not in rows and set(rows.tolist()) <= set(outside.tolist()) and len(rows) >= len(outside) - 2
            changed = with_pairs_of(here, (split == k).nonzero()[:, 0], there)
            assert torch.equal(plausible_rows(changed, outside), rows)


@pytest.mark.parametrize("fault", [10.0, -1.0], ids=["tenfold", "flip"])
def test_a_wrong_pair_costs_little(base, fault):
    """Error of the residual shift on 200 new pairs, mean over three sets: less than half of what it costs if all pairs stay."""
    theta_test, y_test = pairs_of(99, 200)

    def error(problem, rows):
        with seeded(0):
            draws = candidates.ResidualShift().fit(problem, rows).sample(y_test, 64)
        mean = problem.space.to_theta(draws.flatten(0, 1)).reshape(draws.shape).mean(1)
        return float((mean - theta_test).square().mean().sqrt())

    all_rows, kept, everything = torch.arange(30), 0.0, 0.0
    for seed in range(3):
        theta, y = pairs_of(10 + seed)
        clean, wrong = problem_of(base, theta, y), y.clone()
        wrong[int(y.norm(dim=1).argmax())] *= fault
        faulty, at_best = problem_of(base, theta, wrong), error(clean, all_rows)
        kept += error(faulty, plausible_rows(faulty, all_rows)) - at_best
        everything += error(faulty, all_rows) - at_best
    assert everything > 0.06 and kept < 0.5 * everything, (kept / 3, everything / 3)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_data_that_do_not_vary_are_no_fault(base, value):
    """A stuck detector, or one event in 20 counts: the training rows of a fold are constant, and the fit goes on."""
    theta, _ = pairs_of(3, 20)
    y = torch.full((20, 3), value)
    assert len(plausible_rows(problem_of(base, theta, y), torch.arange(20))) >= 19
    y[7, 0] += 1
    recipe = replace(SMALL, candidates=(candidates.Prior(), candidates.ResidualShift()))
    with pytest.warns(FMCPEWarning):
        posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
    assert bool(posterior.held_out.z.isfinite().all())


def test_components_are_those_that_vary():
    """A mean simulation that is constant, or moves in one direction, has no other components."""
    line = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None] * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    assert features_of(torch.randn(20, 2), torch.full((20, 3), 1.5)).shape == (20, 2)
    assert features_of(torch.randn(20, 2), line).shape == (20, 3)


def test_two_swapped_rows_are_left_out(base):
    """60 sets of 30 pairs: both rows nearly always, others rarely."""
    both = others = 0
    for seed in range(60):
        theta, y = pairs_of(seed)
        j = int((theta - theta[0]).norm(dim=1).argmax())
        theta[[0, j]] = theta[[j, 0]]
        left = set(range(30)) - set(plausible_rows(problem_of(base, theta, y), torch.arange(30)).tolist())
        both += {0, j} <= left
        others += len(left - {0, j})
    assert both >= 54 and others <= 6, (both, others)


def test_how_wrong_a_pair_is_does_not_matter(base):
    """A y ten or a thousand times as large: a warning, the same weights and the same members, bit for bit."""
    recipe = replace(SMALL, candidates=(candidates.Prior(), candidates.ResidualShift()))
    found = []
    for factor in (10, 1000):
        theta, y = pairs_of(6)
        y[4] *= factor
        with pytest.warns(FMCPEWarning, match=r"leaves out 1 of 30 pairs \(row 4\)"):
            posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
        members = posterior.inner.inner.inner.state_dict()
        found.append((posterior.weights, {k: v for k, v in members.items() if "ridge" in k}))
    (weights, one), (same, other) = found
    assert weights == same and one and all(torch.equal(one[k], other[k]) for k in one)


def test_noise_that_depends_on_theta_is_no_fault():
    """Noise from 0.1 to 1.6: at most 0.3 of 30 clean pairs on average (by quartiles alone 0.48), and a tenfold y is found."""
    left = hit = 0
    with seeded(7):
        for _ in range(40):
            z, mixing = torch.randn(30, 2), torch.randn(2, 6)
            seen = z @ mixing + 0.4 * z[:, :1].exp().clamp(0.25, 4) * torch.randn(30, 6)
            left += int((p_values(*data_distances(z, seen, z @ mixing, torch.arange(30))) < 1e-3).sum())
            far = int(seen.norm(dim=1).argmax())
            seen[far] *= 10
            hit += float(p_values(*data_distances(z, seen, z @ mixing, torch.arange(30)))[far]) < 1e-3
    assert left <= 12 and hit >= 38, (left, hit)


def test_many_pairs_with_heavy_tails_stay():
    """Student-t noise with 3 degrees of freedom: of 5 × 1000 pairs at most three are left out, by a normal tail 15 or more."""
    left = normal = 0
    for seed in range(5):
        with seeded(seed):
            z, mixing = torch.randn(1000, 2), torch.randn(2, 6)
            noise = torch.distributions.StudentT(3.0).sample((1000, 6))
        seen = z @ mixing + 0.3 * noise
        given = data_distances(z, seen, z @ mixing, torch.arange(1000))
        level = 0.03 / 1000
        left += int((p_values(*given, heavy=True) < level).sum())
        normal += int((p_values(*given) < level).sum())
        seen[7] += 300
        wrong = p_values(*data_distances(z, seen, z @ mixing, torch.arange(1000)), heavy=True)
        assert float(wrong[7]) < level
    assert left <= 3 and normal >= 15, (left, normal)
