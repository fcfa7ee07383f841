"""Where to measure next: space that is filled, support, seeds, weights of chosen pairs."""

from types import SimpleNamespace

import pytest
import torch
from conftest import PRIOR, observe, simulate
from scipy.stats import qmc
from torch.distributions import MultivariateNormal

import fmcpe
from fmcpe import FMCPE, Stack, candidates
from fmcpe._random import seeded
from fmcpe.diagnostics import design_weights, suggest
from fmcpe.spaces import ParameterSpace

BANANA = MultivariateNormal(torch.tensor([3.0, -1.0]), torch.tensor([[4.0, 3.8], [3.8, 4.0]]))


def posterior_of(prior, theta, simulation_prior=None):
    """What suggestions are computed from: the pairs, the prior, the space."""
    space = ParameterSpace.of(simulation_prior or prior)
    with seeded(1):
        pool = space.to_z_safely(prior.sample((4096,)))
    shared = SimpleNamespace(target_prior=prior, pool=pool)
    return SimpleNamespace(space=space, shared=shared, held_out=SimpleNamespace(theta=theta), method="x")


def smallest_gap(points, new):
    """Smallest distance of a new point to any other, in whitened coordinates."""
    white = torch.linalg.inv(torch.linalg.cholesky(torch.cov(points.T)))
    scaled = points @ white.T
    gaps = torch.cdist(scaled[-new:], scaled)
    gaps[torch.arange(new), len(points) - new + torch.arange(new)] = torch.inf
    return float(gaps.min())


def test_suggestions_fill_a_box_better_than_draws():
    """20 beside 20 pairs: lower discrepancy, and nothing measured twice, in at least 9 of 10 seeds."""
    better = [0, 0]
    low, high = PRIOR.base_dist.low, PRIOR.base_dist.high
    for seed in range(10):
        with seeded(seed):
            theta, drawn = PRIOR.sample((20,)), PRIOR.sample((20,))
        found = suggest(posterior_of(PRIOR, theta), 20, seed=seed)
        assert bool(PRIOR.support.check(found).all()) and found.shape == (20, 2)
        all_pairs = [torch.cat([theta, more]) for more in (found, drawn)]
        mine, others = (qmc.discrepancy(((pairs - low) / (high - low)).numpy()) for pairs in all_pairs)
        better[0] += mine < others
        better[1] += smallest_gap(all_pairs[0], 20) > smallest_gap(all_pairs[1], 20)
    assert min(better) >= 9, better


def test_suggestions_avoid_what_was_measured():
    """All pairs in one half of the box: most suggestions go to the other."""
    with seeded(0):
        theta = PRIOR.sample((20,))
    theta[:, 0] = theta[:, 0].abs()
    found = suggest(posterior_of(PRIOR, theta), 20)
    assert int((found[:, 0] < 0).sum()) >= 17
    first = suggest(posterior_of(PRIOR, theta), 20)[:5]
    assert bool((first[:, 0] < 0).all())


def test_a_correlated_prior_keeps_its_shape():
    """Moments of pairs and suggestions are closer to the prior's than those of as many draws, in 9 of 10 seeds."""
    better = 0
    for seed in range(10):
        with seeded(seed):
            theta, drawn = BANANA.sample((10,)), BANANA.sample((30,))
        found = suggest(posterior_of(BANANA, theta), 30, seed=seed)
        whole = [torch.cat([theta, more]) for more in (found, drawn)]
        mine, others = (
            (torch.cov(pairs.T) - BANANA.covariance_matrix).norm() + (pairs.mean(0) - BANANA.mean).norm()
            for pairs in whole
        )
        better += bool(mine < others)
    assert better >= 9


def test_seeds_decide():
    with seeded(0):
        one = posterior_of(PRIOR, PRIOR.sample((15,)))
    state = torch.random.get_rng_state()
    assert torch.equal(suggest(one, 7, seed=3), suggest(one, 7, seed=3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(suggest(one, 7, seed=3), suggest(one, 7, seed=4))


def test_weights_bring_a_design_to_the_prior():
    """Pairs from a shifted, narrow design: weights follow the density ratio and undo most of the shift; draws keep theirs."""
    prior = MultivariateNormal(torch.zeros(2), torch.eye(2))
    design = MultivariateNormal(torch.tensor([0.7, 0.0]), 0.5 * torch.eye(2))
    with seeded(0):
        theta, draws = design.sample((100,)), prior.sample((100,))
    one = posterior_of(prior, theta)
    weights = design_weights(one, theta)
    ratio = prior.log_prob(theta) - design.log_prob(theta)
    assert float(weights.mean()) == pytest.approx(1.0, abs=1e-5) and bool((weights > 0).all())
    assert float(torch.corrcoef(torch.stack([weights.log(), ratio]))[0, 1]) > 0.8
    assert abs(float((weights * theta[:, 0]).mean())) < abs(float(theta[:, 0].mean())) / 3
    kept = design_weights(one, draws)
    assert float(kept.sum() ** 2 / kept.square().sum()) > 90


def test_suggestions_of_a_loaded_posterior(base, pairs, tmp_path):
    """The same before and after a file; a fit takes the weights of all pairs."""
    light = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    method = FMCPE(base, simulate, recipe=light)
    posterior = method.fit(*pairs, seed=0, show_progress_bars=False)
    found = suggest(posterior, 6)
    assert torch.equal(suggest(fmcpe.load(posterior.save(tmp_path / "a.fmcpe")), 6), found)
    theta = torch.cat([pairs[0], found])
    with seeded(0):
        y = torch.cat([pairs[1], observe(found)])
    again = method.fit(theta, y, weights=design_weights(posterior, theta), seed=0, show_progress_bars=False)
    assert again.record.num_pairs == 36


def test_what_is_refused():
    one = posterior_of(PRIOR, PRIOR.sample((5,)))
    with pytest.raises(ValueError, match="Expected n to be a whole number of at least 1, got 0"):
        suggest(one, 0)
    one.held_out = None
    with pytest.raises(ValueError, match="Expected a posterior that keeps its pairs"):
        suggest(one, 3)
