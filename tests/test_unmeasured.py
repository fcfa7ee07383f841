"""Parameters that were not measured over their range: moments against exact ones, densities against integrals and draws."""

import warnings

import pytest
import torch
from conftest import PRIOR, observe, simulate

from fmcpe import FMCPE, FMCPEWarning, Stack, candidates
from fmcpe._random import seeded
from fmcpe.unmeasured import Moments, largest_sets, with_prior


def one(mean, covariance):
    return Moments(torch.tensor([mean]).double(), torch.tensor([covariance]).double())


PRIOR_MOMENTS = Moments(torch.zeros(2).double(), torch.eye(2).double())
RIDGE = [[0.5, -0.49], [-0.49, 0.5]]  # a base posterior that knows the sum of both parameters


def test_a_confounded_parameter_follows_and_an_independent_one_stays():
    inner, second = one([0.3, 0.2], [[0.01, 0.0], [0.0, 0.01]]), torch.tensor([[False, True]])
    ridge = with_prior(inner, one([0.0, 0.0], RIDGE), PRIOR_MOMENTS, second)
    slope = -0.49 / 0.5
    assert float(ridge.covariance_matrix[0, 1, 1]) == pytest.approx(1, abs=1e-3)
    assert float(ridge.covariance_matrix[0, 0, 1]) == pytest.approx(slope, abs=1e-2)
    assert float(ridge.covariance_matrix[0, 0, 0]) == pytest.approx(0.01 + slope**2 * 1.01, abs=1e-2)
    assert ridge.mean[0].tolist() == pytest.approx([0.3 - slope * 0.2, 0.0], abs=1e-2)
    apart = with_prior(inner, one([0.0, 0.0], [[0.5, 0.0], [0.0, 0.5]]), PRIOR_MOMENTS, second)
    assert torch.allclose(apart.covariance_matrix[0], torch.tensor([[0.01, 0.0], [0.0, 1.0]]).double(), atol=1e-3)
    assert apart.mean[0].tolist() == pytest.approx([0.3, 0.0], abs=1e-3)


def test_no_parameter_becomes_wider_than_the_prior():
    steep = one([0.0, 0.0], [[1.0, 0.099], [0.099, 0.01]])  # ten units of the first for one of the second
    found = with_prior(one([0.0, 0.0], [[0.2, 0.0], [0.0, 0.01]]), steep, PRIOR_MOMENTS, torch.tensor([[False, True]]))
    assert 0.9 < float(found.covariance_matrix[0, 0, 0]) < 1.05


def test_all_parameters_returned_are_the_priors_moments():
    found = with_prior(
        one([2.0, -1.0], [[0.1, 0.05], [0.05, 0.1]]), one([1.0, 1.0], RIDGE), PRIOR_MOMENTS, torch.ones(1, 2) > 0
    )
    assert torch.allclose(found.mean, torch.zeros(1, 2).double(), atol=1e-6)
    assert torch.allclose(found.covariance_matrix[0], torch.eye(2).double(), atol=1e-4)


def test_sets_are_nested_and_have_the_probabilities_of_their_members():
    with seeded(0):
        shares = torch.rand(20, 4)
    probabilities, sets = largest_sets(shares)
    assert torch.allclose(probabilities.sum(1), torch.ones(20)) and float(probabilities.min()) >= 0
    assert torch.allclose((probabilities[:, :, None] * sets).sum(1), shares, atol=1e-6)
    assert bool((sets[:, 1:] | ~sets[:, :-1]).all())


@pytest.fixture(scope="module")
def never_varied(base):
    """All pairs have one value of the second parameter."""
    with seeded(0):
        theta = PRIOR.sample((30,))
        theta[:, 1] = 0.5
        y = observe(theta)
    recipe = Stack([candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        return FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False).inner


def test_the_density_integrates_to_one_and_has_the_moments_of_the_draws(never_varied):
    with seeded(1):
        y = observe(PRIOR.sample((3,)))
        draws = never_varied.sample(y, 20_000).double()
    assert 0.3 < float(never_varied.share_by_theta(y)[:, 1].mean()) < 0.999
    side = torch.linspace(-8, 8, 321)
    grid = torch.cartesian_prod(side, side)
    mass = never_varied.log_prob(grid.expand(3, -1, -1), y).double().exp() * (16 / 320) ** 2
    assert mass.sum(1).tolist() == pytest.approx([1.0] * 3, abs=0.02)
    mean = (mass[..., None] * grid).sum(1)
    assert torch.allclose(mean, draws.mean(1), atol=0.05)
    centred = grid - mean[:, None]
    covariance = (mass[..., None] * centred).mT @ centred.double()
    assert torch.allclose(covariance, Moments.of(draws).covariance, atol=0.08)


def test_the_other_parameter_keeps_what_the_pairs_say(never_varied):
    """The base posterior hardly confounds the two."""
    with seeded(2):
        y = observe(PRIOR.sample((100,)))
        spread = never_varied.sample(y, 400).std(1).median(0).values
        inner = never_varied.inner.sample(y, 400).std(1).median(0).values
    assert float(spread[1]) > 0.6  # it has the prior with a large weight
    assert float(spread[0]) < 1.6 * float(inner[0]) < 0.6
