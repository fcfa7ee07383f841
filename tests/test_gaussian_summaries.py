"""The penalties of summaries in training: their formulas, what they make of an embedding, and the test that it feeds."""

import pytest
import torch
from conftest import PRIOR, simulate
from sbi.diagnostics.misspecification import compute_rbf_mmd
from torch import nn

import fmcpe
from fmcpe import baselines
from fmcpe._random import seeded
from fmcpe.baselines.npers import mmd2_between
from fmcpe.diagnostics import misspecification
from fmcpe.nn.mmd import mmd2_to_normal

QUIET = {"seed": 0, "show_progress_bars": False}


def test_mmd_to_the_normal_is_the_limit_of_many_normal_draws():
    with seeded(0):
        s, z = 0.4 + 1.3 * torch.randn(300, 3).double(), torch.randn(2000, 3).double()
    for width in (0.5, 2.0):
        drawn = compute_rbf_mmd(s, z, width * 3**0.5)
        assert float(mmd2_to_normal(s, (width,))) == pytest.approx(
            float(drawn), abs=2e-3
        )  # √(1/2000) of the kernel's spread, 0.2 at most
    assert float(mmd2_to_normal(z[:1000])) < 0.1 * float(mmd2_to_normal(s))


def test_mmd_between_summaries_is_sbis_in_units_of_the_first_and_has_a_gradient_far_away():
    with seeded(1):
        s, t = torch.randn(80, 3).double(), 1.0 + torch.randn(40, 3).double()
    unit = float(s.var(0, correction=0).sum().sqrt())
    far = float((t - s.mean(0)).square().sum(1).mean().sqrt()) / unit
    assert far > 1
    found = mmd2_between(s, t, (0.7,))
    assert float(found) == pytest.approx(float(compute_rbf_mmd(s / unit, t / unit, 0.7 * far)))
    assert float(mmd2_between(5 - 100 * s, 5 - 100 * t, (0.7,))) == pytest.approx(float(found))
    shift = torch.full((3,), 1e3, dtype=torch.float64, requires_grad=True)
    mmd2_between(s, t + shift).backward()
    assert float(shift.grad.sum()) * 1e3 > 0.1  # per relative change of the distance


def test_without_a_penalty_training_is_the_same_to_the_bit_and_with_one_it_is_not():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))
    trained = [
        fmcpe.train_npe(simulate, PRIOR, 300, net, max_num_epochs=1, **gamma, **QUIET).posterior_estimator.state_dict()
        for gamma in ({}, {"gaussian_summaries": 0.0}, {"gaussian_summaries": 1.0})
    ]
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])
    assert not all(torch.equal(trained[0][name], trained[2][name]) for name in trained[0])


@pytest.mark.parametrize("randomised", [True, False])
def test_summaries_of_simulations_become_normal(randomised):
    """The undistorted ones, without the level of domain randomisation."""
    torch.manual_seed(0)
    net, far = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2)), {}
    x = simulate(PRIOR.sample((1000,)))
    for gamma in (0.0, 10.0):
        options = {"gaussian_summaries": gamma, "domain_randomisation": randomised, "max_num_epochs": 8}
        base = fmcpe.train_npe(simulate, PRIOR, 1500, net, training_batch_size=150, **options, **QUIET)
        with torch.no_grad():
            far[gamma] = float(mmd2_to_normal(base.posterior_estimator.embedding_net(x)[:, :2]))
    assert far[10.0] < 0.5 * far[0.0]


def test_a_penalty_needs_an_embedding_and_a_weight_that_makes_sense():
    with pytest.raises(
        ValueError, match=r"^Expected an embedding_net with weights for gaussian_summaries=1\.0, got none"
    ):
        fmcpe.train_npe(simulate, PRIOR, 200, gaussian_summaries=1.0, **QUIET)
    with pytest.raises(ValueError, match=r"got gaussian_summaries=-1\. Try gaussian_summaries=10"):
        fmcpe.train_npe(simulate, PRIOR, 200, nn.Linear(3, 2), gaussian_summaries=-1, **QUIET)


# ------------------------------------------------------------------ the test without pairs


def test_unlabelled_observations_are_tested_against_the_prior(base_with_embedding, base, posteriors):
    torch.manual_seed(0)
    y = simulate(PRIOR.sample((40,)))
    for posterior in (base_with_embedding, base, baselines.NPE(base).fit(), posteriors("default")):
        right, wrong = (misspecification(posterior, each, simulate, num_permutations=99) for each in (y, y + 2))
        assert wrong.refuted and "Real data are unlike simulations (40 observation" in wrong.verdict
        assert right.marginal.p_mmd > 0.01 and right.refuted == (right.marginal.p_mmd <= 0.05)
        assert "of 40 observations below" in right.summary() and "What the answer is made of" not in right.summary()
    assert misspecification(base, y[0] + 8, simulate, num_permutations=99).refuted  # a single one
    theta = PRIOR.sample((400,))
    given = [
        misspecification(
            base, y, simulations=(theta, simulate(theta)), num_simulations=300, seed=1
        ).marginal.simulations,
        misspecification(base, y, simulate, num_simulations=200).marginal.simulations,
    ]
    assert given == [300, 200]


def test_the_test_without_pairs_repeats_and_leaves_the_generator_alone(base):
    torch.manual_seed(5)
    y = simulate(PRIOR.sample((10,)))
    state = torch.get_rng_state()
    first, again, other = (misspecification(base, y, simulate, num_permutations=99, seed=s).marginal for s in (0, 0, 1))
    assert first == again and first != other
    assert torch.equal(state, torch.get_rng_state())


def test_false_alarms_without_pairs_are_at_the_level(base_with_embedding):
    """100 repeats at 5 %: at most what a binomial exceeds once in 1000."""
    with seeded(2):
        theta = PRIOR.sample((4000,))
        x, alarms = simulate(theta), 0
        for repeat in range(100):
            y = simulate(PRIOR.sample((10,)))
            part = slice(40 * repeat, 40 * repeat + 40)
            options = {"simulations": (theta[part], x[part]), "num_simulations": 40, "num_permutations": 59}
            alarms += misspecification(base_with_embedding, y, **options).refuted
    assert alarms <= 13


def test_the_test_without_pairs_says_what_it_needs(base, posteriors):
    with pytest.raises(ValueError, match="simulator or simulations"):
        misspecification(base, torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"^Expected a batch of observations x of shape \(B, 3\), got \(5, 2\)"):
        misspecification(base, torch.zeros(5, 2), simulate)
    with pytest.raises(ValueError, match=r"^Expected y_unlabelled with a simulator"):
        misspecification(posteriors("default"), simulator=simulate)
