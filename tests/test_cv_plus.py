"""CV+ intervals: whole refits for each fold, the set of Barber et al. (2021), and its guarantee."""

import math

import pytest
import torch
from conftest import PRIOR, observe, simulate
from torch.distributions import Independent, Normal

import fmcpe
from fmcpe import FMCPE, Stack, baselines, candidates
from fmcpe._random import derive
from fmcpe.diagnostics import CVPlus
from fmcpe.diagnostics.conformal import SplitConformal, median_and_width
from fmcpe.diagnostics.cv_plus import CVPlusConformal, guaranteed, guaranteed_for_one_set
from fmcpe.problem import groups_of

TARGET = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
LIGHT = Stack([candidates.Uncorrected(), candidates.SyntheticLikelihood()], folds=2, repeats=1)


def drawn(number, size=6):
    theta = TARGET.sample((number,))
    directions = torch.arange(2.0 * size).sin().reshape(2, size)
    return theta, theta @ directions + torch.randn(number, size)


def regressed(theta, y):
    """Least squares without a penalty, as sure as its residuals on the rows it was fitted on: over-confident."""

    def features(y):
        return torch.cat([y, torch.ones(len(y), 1)], dim=1)

    matrix = torch.linalg.lstsq(features(y), theta).solution
    scale = (theta - features(y) @ matrix).std(0)
    return baselines.NPE(lambda x: features(x) @ matrix + scale * torch.randn(len(x), 2), TARGET).fit(y=y)


def test_coverage_is_above_the_guarantee_and_near_the_level():
    """20 pairs for 7 coefficients: the fit's own 90 % intervals hold far fewer, CV+ about 90 %."""
    torch.manual_seed(0)
    each, together, plain = [], [], []
    for repeat in range(30):
        theta, y = drawn(20)
        found = CVPlus(num_samples=100).calibrate(
            lambda rows, _, theta=theta, y=y: regressed(theta[rows], y[rows]), theta, y, repeat
        )
        whole, (truth, new) = regressed(theta, y), drawn(200)
        for joint, results in ((False, each), (True, together)):
            intervals = found.intervals(whole, new, 0.9, joint, 0)
            inside = (truth >= intervals.low) & (truth <= intervals.high)
            results.append(float((inside.all(1) if joint else inside).float().mean()))
        median, width = median_and_width(whole, new, 100, 0)
        plain.append(float(((truth - whole.space.to_theta(median)).abs() < 1.645 * width).float().mean()))
    means = [torch.tensor(results).mean() for results in (each, together, plain)]
    assert means[0] > 0.87 and means[1] > 0.87  # the guarantee is 0.48; the standard error of the mean about 0.01
    assert means[2] < 0.8  # negative control
    assert means[0] < 0.97 and means[1] < 0.97


def test_models_have_not_seen_the_pairs_they_score():
    torch.manual_seed(0)
    theta, y = drawn(23)
    theta[20:] = theta[0]  # 20 different θ, one measured four times
    seen = []

    def fit(rows, seed):
        seen.append(set(rows.tolist()))
        return regressed(theta[rows], y[rows])

    found = CVPlus(folds=3, num_samples=50).calibrate(fit, theta, y, 0)
    assert len(found.scores) == 18 and found.folds.bincount().tolist() == [6, 6, 6]  # two θ of 20 are in all fits
    groups = groups_of(theta)[0]
    for k, rows in enumerate(seen):
        held = set(range(23)) - rows
        assert not {int(groups[j]) for j in held} & {int(groups[j]) for j in rows}  # the same θ stays together
        model = regressed(theta[sorted(rows)], y[sorted(rows)])
        for j in held:  # each of the fold's pairs has the score of a model without it, but for Monte-Carlo error
            median, width = median_and_width(model, y[j : j + 1], 2000, 0)
            score = ((model.space.to_z_safely(theta[j : j + 1]) - median) / width).abs()
            near = (found.scores[found.folds == k] - score).abs().amax(1).min()
            assert groups[j] == groups[0] or float(near) < 0.5 + 0.3 * float(score.max())
    assert len(set.intersection(*seen)) in (2, 5)


def test_the_interval_contains_every_value_that_few_pairs_exclude():
    """Brute force: θ that fewer than r of the pairs' own intervals exclude, on a grid."""
    torch.manual_seed(0)
    theta, y = drawn(25)
    found = CVPlus(num_samples=200).calibrate(lambda rows, _: regressed(theta[rows], y[rows]), theta, y, 0)
    new = drawn(4)[1]
    whole = found.models[0]
    low, high = (getattr(found.intervals(whole, new, 0.8, False, 0), end) for end in ("low", "high"))
    grid, rank = torch.linspace(-6, 6, 2401), math.ceil(0.8 * 26)
    median, width = found.answers(new, 0)
    for j, k in enumerate(found.folds.tolist()):  # each pair asks the model that has not seen it
        own = median_and_width(found.models[k], new, 200, derive(0, "new observations", k))
        assert torch.equal(median[j], own[0]) and torch.equal(width[j], own[1])
    z = whole.space.to_z_safely(grid[:, None].expand(-1, 2))  # (G, p)
    scores = (z[:, None, None] - median).abs() / width  # (G, N, B, p)
    excluded = (scores > found.scores[:, None]).sum(1)  # (G, B, p)
    for b in range(4):
        for i in range(2):
            values = grid[excluded[:, b, i] < rank]
            assert float(values.min()) >= float(low[b, i]) - 1e-4 and float(values.max()) <= float(high[b, i]) + 1e-4
            assert float(high[b, i] - low[b, i]) < 1.5 * float(values.max() - values.min()) + 0.1


def test_one_model_for_all_folds_is_split_conformal():
    torch.manual_seed(0)
    model = regressed(*drawn(500))
    theta, y = drawn(40)
    found = CVPlus(num_samples=4000).calibrate(lambda rows, _: model, theta, y, 0)
    split, new = SplitConformal.of(model, theta, y, 4000, 0), drawn(5)[1]
    for joint in (False, True):
        ours, theirs = (each.intervals(model, new, 0.9, joint, 0) for each in (found, split))
        assert torch.allclose(ours.low, theirs.low, atol=0.15) and torch.allclose(ours.high, theirs.high, atol=0.15)
        assert ours.guaranteed == pytest.approx(0.8 - math.sqrt(2 / 40)) and theirs.guaranteed == 0.9


@pytest.fixture(scope="module")
def with_cv_plus(base, pairs):
    plan = CVPlus(folds=4, num_samples=200)
    return FMCPE(base, simulate, recipe=LIGHT).fit(*pairs, conformal=plan, seed=3, show_progress_bars=False)


def test_the_posterior_is_that_of_a_fit_without_and_keeps_its_folds_in_a_file(base, pairs, with_cv_plus, tmp_path):
    without = FMCPE(base, simulate, recipe=LIGHT).fit(*pairs, seed=3, show_progress_bars=False)
    torch.manual_seed(5)
    theta = PRIOR.sample((60,))
    y = observe(theta)
    assert torch.equal(without.sample((5,), x=y[0], seed=0), with_cv_plus.sample((5,), x=y[0], seed=0))
    assert without.conformal is None and isinstance(with_cv_plus.conformal, CVPlusConformal)
    found = with_cv_plus.interval(0.8, x=y)
    inside = ((theta >= found.low) & (theta <= found.high)).float().mean(0)
    assert found.low.shape == (60, 2) and found.num_pairs == 28 and bool((inside > 0.6).all())
    assert f"{2 * 0.8 - 1 - math.sqrt(2 / 28):.2f} = 1 - 2α - √(2/28) with α = 0.2" in str(found)
    assert "no bound" in found.guarantee and found.coverage_5 == 0
    loaded = fmcpe.load(with_cv_plus.save(tmp_path / "a.fmcpe"))
    for joint in (False, True):
        one, again = (each.interval(0.8, x=y[0], joint=joint) for each in (with_cv_plus, loaded))
        assert torch.equal(one.low, again.low) and torch.equal(one.high, again.high) and one.low.shape == (2,)
        assert one.guarantee == again.guarantee
    assert torch.equal(loaded.to("cpu").interval(0.8, x=y[0], joint=True).low, one.low)
    # held-out pairs take the place of the folds
    assert "split conformal" in loaded.conformalize(theta, y).interval(0.9, x=y[0]).guarantee


def test_paired_simulations_and_weights_go_to_the_folds(base, pairs):
    theta, y = pairs
    plan, weights = CVPlus(folds=2, num_samples=50), torch.rand(30)
    x, recipe = simulate(theta), Stack([candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    with pytest.warns(
        fmcpe.FMCPEWarning, match=r"CV\+ promises holds for θ distributed like those of the pairs.*weights=ratio"
    ):
        fitted = FMCPE(base, recipe=recipe).fit(theta, y, x, weights=weights, conformal=plan, show_progress_bars=False)
    assert fitted.interval(0.5, x=y[0]).low.shape == (2,)


def test_few_pairs_are_folds_of_one():
    """9 pairs are enough for 90 % intervals, as 5 of them in 5 folds would not be."""
    torch.manual_seed(0)
    model, (theta, y) = regressed(*drawn(100)), drawn(9)
    found = CVPlus(num_samples=50).calibrate(lambda rows, _: model, theta, y, 0)
    assert sorted(found.folds.tolist()) == list(range(9)) and found.intervals(model, y, 0.9, False, 0).num_pairs == 9


def test_a_design_with_a_few_fixed_values_is_refused_before_any_fit():
    theta = drawn(5)[0].repeat(5, 1)
    with pytest.raises(ValueError, match=r"drawn from a density, got 5 value\(s\) of parameter 0 in 25 .*conformalize"):
        CVPlus().calibrate(lambda rows, _: pytest.fail("a fold was fitted"), theta, drawn(25)[1], 0)


def test_guarantees():
    assert guaranteed(0.9, 50) == pytest.approx(0.6) and guaranteed(0.9, 2) == 0
    assert guaranteed_for_one_set(0.95, 2000, 5) == pytest.approx(0.9 - math.sqrt(2 * math.log(100) / 400))


def test_what_makes_no_sense_is_refused(base, pairs, with_cv_plus):
    method = FMCPE(base, simulate, recipe=LIGHT)
    with pytest.raises(ValueError, match='Expected conformal="cv\\+"'):
        method.fit(*pairs, conformal="split")
    with pytest.raises(ValueError, match=r"at least 5 pairs with different θ for CV\+ with 5 folds, got 4"):
        method.fit(*(rows[:4] for rows in pairs), conformal="cv+")
    with pytest.raises(ValueError, match=r"at least 99 pairs in folds of equal size .* got 28"):
        with_cv_plus.interval(0.99, x=pairs[1][0])
    for level in (0.0, 1.0, 90, float("nan"), "0.9"):
        with pytest.raises(ValueError, match="level between 0 and 1"):
            with_cv_plus.interval(level, x=pairs[1][0])
    with pytest.raises(ValueError, match="folds"):
        CVPlus(folds=1)
