"""Weighted conformal intervals: pairs at chosen θ keep the promise for θ of the target prior; without weights they break it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import PRIOR, observe
from scipy import stats
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import fmcpe
from fmcpe import baselines
from fmcpe.diagnostics.conformal import SplitConformal, median_and_width
from fmcpe.diagnostics.label_shift import LabelShiftConformal, hull

TARGET = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
LEVEL = 0.9


def designed(both):
    """Most θ near -1, where measurements are precise; in the second parameter too, if `both`."""
    centre = torch.tensor([[-1.0, -1.0 if both else 0.0], [0.0, 0.0]])
    width = torch.tensor([[0.5, 0.5 if both else 1.0], [1.0, 1.0]])
    return MixtureSameFamily(Categorical(torch.tensor([0.6, 0.4])), Independent(Normal(centre, width), 1))


def measured(theta):
    """The noise grows with the first parameter."""
    return theta + (0.1 + (theta[:, :1] + 1).clamp_min(0)) * torch.randn_like(theta)


def posterior():
    """Answers N(y, 0.3²) whatever the noise: over-confident where θ is large. No training."""
    return baselines.NPE(lambda x: x + 0.3 * torch.randn_like(x), TARGET).fit(y=torch.zeros(1, 2))


def ratio_of(design):
    return lambda theta: (TARGET.log_prob(theta) - design.log_prob(theta)).exp()


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_weights_keep_the_promise_that_a_design_breaks(both, joint):
    torch.manual_seed(0)
    asked, design, pairs = posterior(), designed(both), 100
    theta = design.sample((4000,))
    pool = LabelShiftConformal.of(asked, theta, measured(theta), ratio_of(design), 200, 0)
    new = TARGET.sample((2000,))
    median, width = median_and_width(asked, measured(new), 200, 1)
    truth = asked.space.to_z_safely(new)
    weighted, plain, stated = [], [], []
    for _ in range(200):
        rows = torch.randperm(4000)[:pairs]
        few = replace(pool, scores=pool.scores[rows], weights=pool.weights[rows])
        low, high = hull(median, width, few.thresholds(LEVEL, joint), pool.edges)
        inside = (truth >= low) & (truth <= high)
        weighted.append((inside.all(1, keepdim=True) if joint else inside).float().mean(0))
        reach, _ = SplitConformal(few.scores, 200).threshold(LEVEL, joint)
        inside = (truth - median).abs() <= reach * width
        plain.append((inside.all(1, keepdim=True) if joint else inside).float().mean(0))
        stated.append(few.effective)
    weighted, plain = torch.stack(weighted), torch.stack(plain)
    # the mean over 200 sets, the pool of 4000 pairs and the 2000 new ones: standard error below 0.01
    assert bool((weighted.mean(0) > LEVEL - 0.03).all())
    assert bool((plain.mean(0) < LEVEL - 0.05).all())  # negative control: without weights the promise is broken
    if (
        not both and not joint
    ):  # the ratio depends on the first parameter alone, whose interval is then not conservative
        assert float(weighted.mean(0)[0]) < LEVEL + 0.03
    effective = sum(stated) / len(stated)
    law = stats.beta(LEVEL * (effective + 1), (1 - LEVEL) * (effective + 1))
    assert bool((weighted.quantile(0.05, dim=0) > law.ppf(0.05) - 0.03).all())


def test_equal_weights_are_split_conformal_but_for_the_slack():
    torch.manual_seed(0)
    asked, theta = posterior(), TARGET.sample((57,))
    y = measured(theta)
    weighted = LabelShiftConformal.of(asked, theta, y, lambda at: torch.full((len(at),), 3.0), 200, 0)
    split = SplitConformal.of(asked, theta, y, 200, 0)
    for joint in (False, True):  # 0.8 · 58 is no whole number, so that the slack of 0.0005 or 0.001 changes no rank
        expected = split.threshold(0.8, joint)[0].expand(50, 2)
        assert torch.equal(weighted.thresholds(0.8, joint), expected)
    assert weighted.effective == pytest.approx(57)
    for constant in (1e-300, 1e300):  # a ratio is known up to a constant
        ratio = partial(torch.full, fill_value=constant, dtype=torch.float64)
        scaled = LabelShiftConformal.of(asked, theta, y, lambda at, full=ratio: full((len(at),)), 200, 0)
        assert scaled.effective == pytest.approx(57)
        assert torch.equal(scaled.thresholds(0.8, False), weighted.thresholds(0.8, False))
    fewer = replace(weighted, scores=weighted.scores[:9], weights=weighted.weights[:9])
    with pytest.raises(ValueError, match=r"at least 9\.05 times .* got 9 times \(9 pairs"):
        fewer.thresholds(0.9, False)


def test_the_hull_is_that_of_a_fine_grid():
    torch.manual_seed(0)
    edges = torch.randn(7, 3).sort(dim=0).values
    reach, median, width = 2 * torch.rand(8, 3), torch.randn(20, 3), 0.1 + torch.rand(20, 3)
    reach[3, 1] = torch.inf
    low, high = hull(median, width, reach, edges)
    grid = torch.linspace(-8, 8, 16001)
    for i in range(3):
        of_grid = reach[torch.searchsorted(edges[:, i].contiguous(), grid), i]
        inside = (grid - median[:, i, None]).abs() <= of_grid * width[:, i, None]
        for row in range(20):
            assert float(grid[inside[row]].min()) == pytest.approx(float(low[row, i]), abs=2e-3)
            assert float(grid[inside[row]].max()) == pytest.approx(float(high[row, i]), abs=2e-3)


def test_where_the_design_has_no_density_every_value_is_inside(posteriors):
    """Pairs with θ below 1 alone: of what lies above nothing is known, and intervals have no upper end."""
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    asked = baselines.NPE(lambda x: x + 0.3 * torch.randn_like(x), prior).fit(y=torch.zeros(1, 1))
    theta = prior.sample((200,))
    theta = theta[theta[:, 0] < 1]
    asked.conformalize(
        theta, theta + 0.3 * torch.randn_like(theta), weights=lambda at: torch.where(at[:, 0] < 1, 1.0, torch.inf)
    )
    found = asked.interval(0.9, x=torch.linspace(-2, 0, 20)[:, None])
    assert bool(found.high.isinf().all()) and bool((found.low > -4).all())
    assert "For 16% of the target prior" in found.guarantee or "For 18% of the target prior" in found.guarantee
    # of two parameters, the other one may come with any value of the first: nothing can be promised of it
    asked, theta = posteriors("npe"), PRIOR.sample((200,))
    theta = theta[theta[:, 0] < 1]
    asked.conformalize(theta, observe(theta), weights=lambda at: torch.where(at[:, 0] < 1, 1.0, torch.inf))
    with pytest.raises(ValueError, match=r"got 0 times .* whatever the value of parameter 1"):
        asked.interval(0.9, x=observe(theta[:1]))
    asked.conformal = None


def test_weights_survive_a_file_and_are_reported(posteriors, tmp_path):
    torch.manual_seed(0)
    asked, theta = posteriors("npe"), PRIOR.sample((80,))
    y = observe(theta)
    found = asked.conformalize(theta, y, weights=lambda at: 1 + at[:, 1]).interval(0.8, x=y[:5])
    weights = 1 + theta[:, 1]
    assert found.effective == pytest.approx(float(weights.sum() ** 2 / weights.square().sum()), rel=1e-4)
    assert f"worth {found.effective:.1f} of equal weight" in str(found) and "target prior" in found.guarantee
    again = fmcpe.load(asked.save(tmp_path / "a.fmcpe")).interval(0.8, x=y[:5])
    asked.conformal = None
    assert torch.equal(found.low, again.low) and torch.equal(found.high, again.high)
    assert found.guarantee == again.guarantee


def test_what_has_no_density_ratio_is_refused(posteriors):
    asked, theta = posteriors("npe"), PRIOR.sample((40,))
    y = observe(theta)
    grid = torch.cartesian_prod(torch.linspace(-1.5, 1.5, 5), torch.linspace(0.1, 0.9, 5))
    with pytest.raises(ValueError, match=r"5 value\(s\) of parameter 0 in 25 pairs.*has no density"):
        asked.conformalize(grid, observe(grid), weights=lambda at: torch.ones(len(at)))
    repeated = theta[:10].repeat(4, 1)
    with pytest.raises(ValueError, match=r"10 value\(s\) of parameter 0 in 40 pairs"):
        asked.conformalize(repeated, observe(repeated), weights=lambda at: torch.ones(len(at)))
    with pytest.raises(TypeError, match="function from physical θ"):
        asked.conformalize(theta, y, weights=torch.ones(40))
    with pytest.raises(ValueError, match=r"shape \(40,\), none negative or NaN, got shape \(40, 2\)"):
        asked.conformalize(theta, y, weights=lambda at: at)
    with pytest.raises(ValueError, match="finite and not all zero"):
        asked.conformalize(theta, y, weights=lambda at: torch.zeros(len(at)))
    assert asked.conformal is None
