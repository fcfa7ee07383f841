"""The learning curve: nested subsets, a power law that is recovered, forecasts that hold the truth as often as they say."""

import numpy as np
import pytest
import torch
from conftest import PRIOR, observe, simulate
from scipy import stats

from fmcpe import FMCPE, Stack, candidates
from fmcpe._random import seeded
from fmcpe.diagnostics import LearningCurve, learning_curve
from fmcpe.diagnostics.power_law import PowerLaw, PowerLawPrior, spread_of_increments

LIGHT = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=3, repeats=1)
SIZES = (17, 25, 35, 50)


def curve_of(scores, sizes=SIZES):
    """A learning curve with these scores, (R, K, N)."""
    number = scores.shape[2]
    return LearningCurve(
        sizes, scores, torch.ones(scores.shape, dtype=torch.bool), torch.arange(number), torch.ones(number), ("prior",),
        False, 10, 1.0,
    )  # fmt: skip


def simulated(generator, removable, rate, spread, repeats=3, sizes=SIZES):
    """Scores of the model: a power law, Brownian motion in 1/n, pairs of different difficulty; and the true ratio at 2N."""
    n = np.array(sizes, dtype=float)
    pairs = int(n[-1])
    law = np.log(1 - removable + removable * (np.append(n, 2 * pairs) / pairs) ** -rate)
    steps = np.sqrt(spread * (1 / n[:-1] - 1 / n[1:])) * generator.standard_normal((repeats, len(n) - 1))
    walk = np.append(steps[:, ::-1].cumsum(1)[:, ::-1], np.zeros((repeats, 1)), axis=1)
    difficulty = generator.gamma(3.0, size=pairs) / 3
    interaction = 0.1 * generator.standard_normal((repeats, len(n), pairs)) * (n < pairs)[:, None]
    scores = np.exp(law[:-1] + walk)[..., None] * difficulty * (1 + interaction)
    truth = law[-1] + np.sqrt(spread / (2 * pairs)) * generator.standard_normal()
    return torch.as_tensor(scores), float(np.exp(truth))


def test_known_parameters_are_recovered():
    """Scores with an error of 0.1 % over two decades: g and b to a few per cent, whatever the prior says."""
    sizes = np.array([20, 50, 100, 300, 1000, 2000], dtype=float)
    log_scores = 0.4 + np.log(0.6 + 0.4 * (sizes / 2000) ** -0.5)
    law = PowerLaw.of(sizes, log_scores, 1e-6 * np.eye(6), 0.0, 3, PowerLawPrior(spread=1e-4))
    mean = {name: float((law.probability * getattr(law, name)).sum()) for name in ("rate", "removable", "level")}
    assert mean == pytest.approx({"rate": 0.5, "removable": 0.4, "level": 0.4}, rel=0.03)
    assert law.curve([100.0]) == pytest.approx(np.exp(log_scores[2]), rel=0.01)
    assert law.ratio(8000) == pytest.approx(0.8, rel=0.01)
    low, high = law.interval(8000)
    assert low < 0.8 < high < low + 0.03


def test_intervals_hold_the_truth_as_often_as_they_say():
    """80 % intervals, 200 curves drawn from the prior: inside the 99.9 % binomial band. A third of the spread is refuted."""
    generator, prior = np.random.default_rng(0), PowerLawPrior()
    inside = narrow = 0
    for _ in range(200):
        spread = 0.05 * 8 / generator.chisquare(8)
        scores, truth = simulated(generator, generator.beta(2, 5), generator.uniform(0.25, 1), spread)
        made = curve_of(scores).forecast(100)
        inside += made.low <= truth <= made.high
        narrow += abs(np.log(truth / made.ratio)) < np.log(made.high / made.low) / 6
    low, high = stats.binom.ppf([0.0005, 0.9995], 200, 0.8)
    assert low <= inside <= high and narrow < low
    assert prior == PowerLawPrior((2.0, 5.0), (0.25, 1.0), 0.05, 8.0)  # what the curves above were drawn from


def test_spread_is_estimated_without_bias():
    """Mean of 400 estimates within 4 standard errors; the interaction of pairs and repeats is not counted."""
    generator = np.random.default_rng(1)
    n, shares = np.array(SIZES, dtype=float), np.full(50, 1 / 50)
    found = []
    for _ in range(400):
        scores = simulated(generator, 0.2, 0.5, 0.05)[0].numpy()
        relative = scores / scores.mean((0, 2))[:, None]
        found.append(spread_of_increments(np.diff(relative, axis=1), 1 / n[:-1] - 1 / n[1:], shares))
    assert abs(np.mean(found) - 0.05) < 4 * np.std(found) / 20


def test_a_flat_curve_promises_little_and_a_steep_one_much():
    generator = np.random.default_rng(2)
    flat, steep = (curve_of(simulated(generator, g, 0.5, 0.005)[0]) for g in (0.0, 0.7))
    assert flat.forecast(100).ratio > 0.95
    assert steep.forecast(100).ratio < 0.9
    assert steep.forecast(400).ratio < steep.forecast(100).ratio
    for each in (flat, steep):
        near, far = each.forecast(100), each.forecast(400)
        assert far.high - far.low > near.high - near.low


def test_weights_and_groups_count():
    """A group of copies is one observation; a pair of weight zero has no influence."""
    scores = simulated(np.random.default_rng(3), 0.3, 0.5, 0.02)[0]
    one = curve_of(scores)
    twice = LearningCurve(
        tuple(2 * n for n in SIZES), scores.repeat(1, 1, 2), torch.ones(3, 4, 100, dtype=torch.bool),
        torch.arange(50).repeat(2), torch.ones(100), ("prior",), False, 10, 1.0,
    )  # fmt: skip
    torch.testing.assert_close(twice.errors, one.errors)
    spoilt = torch.cat([scores, 100 * scores[..., :1]], dim=2)
    ignored = LearningCurve(
        SIZES, spoilt, torch.ones(spoilt.shape, dtype=torch.bool), torch.arange(51), torch.tensor([1.0] * 50 + [0.0]),
        ("prior",), False, 10, 1.0,
    )  # fmt: skip
    torch.testing.assert_close(ignored.mean, one.mean)
    assert ignored.forecast(100).low == pytest.approx(one.forecast(100).low, abs=0.01)


@pytest.fixture(scope="module")
def fitted(base):
    """A curve of 15 different θ, each measured twice."""
    with seeded(5):
        theta = PRIOR.sample((15,)).repeat(2, 1)
        y = observe(theta)
    method = FMCPE(base, simulate)
    return theta, y, learning_curve(method, theta, y, recipe=LIGHT, fractions=(0.4, 0.7, 1), repeats=2, seed=3)


def test_subsets_are_nested_and_repeated_parameters_stay_together(fitted):
    _, _, curve = fitted
    assert curve.sizes == (12, 20, 30) and curve.fits == 5
    assert curve.inside.sum(2).tolist() == [[12, 20, 30]] * 2
    assert bool((curve.inside[:, 1:] | ~curve.inside[:, :-1]).all())
    assert torch.equal(curve.inside[..., :15], curve.inside[..., 15:])
    assert not torch.equal(curve.inside[0, 0], curve.inside[1, 0])


def test_scores_of_a_small_problem(base, fitted):
    """Finite, reproducible, and what an unseen pair scores under a fit on the subset alone."""
    theta, y, curve = fitted
    again = learning_curve(FMCPE(base, simulate), theta, y, recipe=LIGHT, fractions=(0.4, 0.7, 1), repeats=2, seed=3)
    assert torch.equal(again.scores, curve.scores) and bool(torch.isfinite(curve.scores).all())
    assert bool((curve.errors > 0).all()) and curve.candidates == ("prior", "uncorrected", "residual_shift")
    # other data for a pair outside the smallest subset of the first repeat change no score of that fit but its own
    outside = int((~curve.inside[0, 0]).nonzero()[0])
    changed = y.clone()
    changed[outside] = changed[outside] + 1.0
    other = learning_curve(
        FMCPE(base, simulate), theta, changed, recipe=LIGHT, fractions=(0.4, 0.7, 1), repeats=2, seed=3
    )
    same = other.scores[0, 0] == curve.scores[0, 0]
    assert bool(same[curve.inside[0, 0]].all()) and not bool(same[outside])
    assert not torch.equal(other.scores[0, -1], curve.scores[0, -1])


def test_summary_and_plot(fitted):
    _, _, curve = fitted
    with pytest.raises(ValueError, match=r"level between 0 and 1, got 1.5"):
        curve.forecast(1000, level=1.5)
    text = curve.summary()
    assert "5 fits" in text and "a recipe of its own: prior, uncorrected, residual_shift" in text
    assert "Doubling from 30 to 60 pairs is expected to lower the score by" in text and "80 % interval" in text
    axes = curve.plot().axes[0]
    assert axes.get_xlabel() == "calibration pairs"
    with pytest.raises(ValueError, match=r"Expected num_pairs above the 30 .* Try forecast\(60\)"):
        curve.forecast(30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": (0.5, 1.5)}, "Expected fractions above 0"),
        ({"fractions": (1.0,)}, "Expected some subset smaller"),
        ({"repeats": 1}, "Expected repeats"),
        ({"draws": 0}, "Expected draws"),
        ({"recipe": "paper"}, "Expected a recipe that keeps"),
        ({"weights": torch.ones(3)}, "Expected weights of shape"),
    ],
)
def test_what_is_refused(base, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        learning_curve(FMCPE(base, simulate), *pairs, **options)


def test_few_parameters_are_refused(base, pairs):
    with pytest.raises(ValueError, match="10 or more different θ, got 9"):
        learning_curve(FMCPE(base, simulate), pairs[0][:9], pairs[1][:9])
