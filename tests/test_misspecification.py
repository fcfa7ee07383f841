"""How wrong is the simulator: exact levels, power, which difference it is, and what a fitted posterior says."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import PRIOR, SMALL, simulate
from sbi.diagnostics.misspecification import compute_rbf_mmd
from scipy import stats

import fmcpe
from fmcpe import FMCPE, candidates
from fmcpe._random import seeded
from fmcpe.diagnostics import conditional_test, marginal_test, misspecification
from fmcpe.diagnostics.misspecification import ParameterShift, parameter_shifts
from fmcpe.in_range import whitening
from fmcpe.record import HeldOut

MIXING = torch.linspace(-1.5, 2.0, 10).reshape(2, 5)


def summaries(number, simulations=8, noise=None):
    """z, and summaries of y and of simulations at the same z: linear in z, with noise that depends on z."""
    z = torch.randn(number, 2)
    scale = (0.5 * z[:, :1]).exp()[:, None]
    error = scale * torch.randn(number, simulations + 1, 5)
    if noise is not None:
        error[:, 0] *= noise
    both = (z @ MIXING)[:, None] + error
    return z, both[:, 0], both[:, 1:]


@pytest.mark.parametrize(("number", "simulations"), [(5, 8), (30, 1), (30, 8)])
def test_a_right_simulator_is_refuted_at_the_nominal_rate(number, simulations):
    """150 repeats at 5 %, within what a binomial exceeds once in 1000."""
    with seeded(0):
        p = []
        for repeat in range(150):
            z, y, x = summaries(number, simulations)
            p.append(conditional_test(y, x, z, num_permutations=99, seed=repeat).p_value)
    p = torch.tensor(p)
    assert int((p <= 0.05).sum()) <= stats.binom.ppf(0.999, 150, 0.05)
    assert 0.38 < float((p <= 0.5).double().mean()) < 0.62  # neither conservative


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (lambda y, z: y + 0.8, "shift"),
        (lambda y, z: y + z[:, :1] * torch.tensor([1.0, -1.0, 1.0, 0.0, 0.5]), "trend"),
        (lambda y, z: z @ MIXING + 2.0 * (y - z @ MIXING), "spread"),
        (lambda y, z: z @ MIXING + 0.4 * (y - z @ MIXING), "spread"),
    ],
    ids=["shift", "trend", "more noise", "less noise"],
)
def test_differences_are_found_and_named(changes, name):
    """In 18 of 20 repeats at 60 pairs; what is only noise is not called a shift."""
    found, called_shift = 0, 0
    with seeded(1):
        for repeat in range(20):
            z, y, x = summaries(60)
            test = conditional_test(changes(y, z), x, z, num_permutations=199, seed=repeat)
            found += test.p_value <= 0.05 and test.p_values[name] <= 0.05
            called_shift += test.p_values["shift"] <= 0.05
    assert found >= 18
    if name == "spread":
        assert called_shift <= 4  # binomial of 5 %: above with a probability of 0.3 %


def test_other_noise_is_measured():
    with seeded(2):
        ratio = [conditional_test(*_reordered(summaries(200, 16, noise)), num_permutations=1) for noise in (0.5, 1, 2)]
    for test, noise in zip(ratio, (0.5, 1, 2), strict=True):
        # the mean of 16 simulations has noise of its own
        expected = ((noise**2 + 1 / 16) / (1 + 1 / 16)) ** 0.5
        assert test.distance_ratio == pytest.approx(expected, rel=0.1) and test.common_share < 0.1
    with seeded(3):
        z, y, x = summaries(200, 16)
    assert conditional_test(y + 5, x, z, num_permutations=1).common_share > 0.6


def _reordered(zyx):
    z, y, x = zyx
    return y, x, z


def test_the_detectable_shift_is_found_in_four_of_five_repeats():
    found = 0
    with seeded(4):
        for repeat in range(60):
            z = torch.randn(30, 2)
            both = torch.randn(30, 17, 4) + (z @ MIXING[:, :4])[:, None]
            shift = conditional_test(both[:, 0], both[:, 1:], z, num_permutations=1).detectable_shift
            y = both[:, 0] + torch.tensor([shift, 0, 0, 0])
            found += conditional_test(y, both[:, 1:], z, num_permutations=199, seed=repeat).p_value <= 0.05
    assert 37 <= found <= 57  # four of five, give or take: 62 to 95 %


def test_the_marginal_test_has_its_level_and_sees_another_prior():
    with seeded(5):
        p = []
        for repeat in range(100):
            y, x = (torch.randn(n, 2) @ MIXING + 0.3 * torch.randn(n, 5) for n in (20, 200))
            test = marginal_test(y, x, num_permutations=99, seed=repeat)
            p.append((test.p_mmd, test.p_log_prob))
    p = torch.tensor(p)
    assert ((p <= 0.05).sum(0) <= stats.binom.ppf(0.999, 100, 0.05)).all()
    with seeded(6):
        z, y, x = summaries(30)
        simulated = torch.randn(300, 2) @ MIXING + torch.randn(300, 5)
    narrow = conditional_test(0.1 * y, 0.1 * x, z, num_permutations=99)
    assert narrow.p_value > 0.05 and marginal_test(0.1 * y + 3, simulated, num_permutations=99).p_mmd <= 0.01


def test_the_mmd_is_sbis():
    with seeded(7):
        y, x = torch.randn(20, 3), torch.randn(50, 3) + 1
    both = torch.cat([y, x]).double()
    mean, matrix = whitening(both, 3)
    a, b = ((each.double() - mean) @ matrix for each in (y, x))
    width = float(torch.cdist(torch.cat([a, b]), torch.cat([a, b])).median())
    found = marginal_test(y, x, num_permutations=1)
    assert found.mmd == pytest.approx(float(compute_rbf_mmd(a, b, width)), rel=1e-6)


def test_shift_and_width_of_a_posterior_are_those_it_has():
    with seeded(8):
        truth = torch.randn(400, 2)
        mean = truth + torch.randn(400, 2)
        draws = mean[:, None] + torch.tensor([0.0, 0.75]) + torch.tensor([0.5, 1.0]) * torch.randn(400, 64, 2)
    narrow, biased = parameter_shifts(draws, truth, ("a", "b"), 0.05)
    assert narrow.width == pytest.approx(2.0, rel=0.15) and narrow.shift == pytest.approx(0.0, abs=0.3)
    assert biased.width == pytest.approx(1.0, rel=0.15) and biased.shift == pytest.approx(0.75, abs=0.2)
    assert "over-confident" in narrow.verdict and "too high" in biased.verdict


def test_repeats_at_one_theta_count_once():
    """An exact posterior, ten θ that were measured twenty times each: called wrong at the nominal rate of 5 %."""
    wrong = 0
    for repeat in range(60):
        with seeded(repeat):
            theta = torch.randn(10, 1).repeat_interleave(20, 0)
            y = theta + torch.randn(200, 1)
            draws = y[:, None] / 2 + 0.5**0.5 * torch.randn(200, 64, 1)
        asked = SimpleNamespace(
            held_out=HeldOut(theta, draws, draws, y, None), weights={}, space=SimpleNamespace(to_z_safely=lambda z: z),
            record=SimpleNamespace(parameters=[SimpleNamespace(name="a")]),
        )  # fmt: skip
        wrong += not misspecification(asked).parameters[0].calibrated
    assert wrong <= 9  # a binomial exceeds it once in 1000


def test_a_factor_that_contradicts_the_verdict_is_left_out():
    """Tails make it over-confident, quartiles do not."""
    narrow = ParameterShift("a", 0.0, 0.8, "too narrow (∪): over-confident")
    assert narrow.words == "intervals too narrow" and replace(narrow, width=2.0).words.endswith("by a factor of 2.0")
    wide = ParameterShift("a", 0.0, 1.3, "too wide (∩): under-confident")
    assert wide.words == "intervals too wide" and replace(wide, width=0.5).words.endswith("by a factor of 2.0")


def test_a_fitted_posterior_says_that_its_simulator_is_wrong_also_after_loading(posteriors, tmp_path):
    posterior = posteriors("default")
    found = misspecification(posterior, num_permutations=199)
    assert found.refuted and found.conditional.simulations == 16 and found.marginal.simulations == 500
    assert found.score_ratio[2] < 1 and "A correction is needed" in found.verdict
    assert "offset" not in found.verdict and all(line.name in found.summary() for line in found.parameters)
    assert all(name in found.summary() for name, weight in posterior.weights.items() if weight > 0)
    again = misspecification(fmcpe.load(posterior.save(tmp_path / "a.fmcpe")), num_permutations=199)
    assert again.summary() == found.summary()
    with pytest.raises(ValueError, match=r"recipe=.default."):
        misspecification(posteriors("joint"))


def test_a_right_simulator_is_not_refuted_whatever_the_design(base):
    """Pairs in a corner of the prior: the marginal test rejects, the one of the simulator does not."""
    few = replace(SMALL, candidates=(candidates.Uncorrected(), candidates.ResidualShift()))
    with seeded(9):
        theta = torch.cat([1.5 + 0.4 * torch.rand(40, 1), 0.8 + 0.1 * torch.rand(40, 1)], dim=1)
        y = simulate(theta)
    with pytest.warns(fmcpe.FMCPEWarning):
        posterior = FMCPE(base, simulate, recipe=few).fit(theta, y, seed=0, show_progress_bars=False)
    found = misspecification(posterior, num_permutations=199)
    assert not found.refuted and found.marginal.p_mmd <= 0.01
    assert "do not refute the simulator" in found.verdict and "target_prior=" in found.verdict


def test_files_of_earlier_versions_have_no_simulations_at_the_pairs(posteriors):
    posterior = posteriors("default")
    kept = posterior.held_out
    posterior.held_out = replace(kept, at_pairs=None, before=None)
    try:
        found = misspecification(posterior, num_permutations=19)
    finally:
        posterior.held_out = kept
    assert found.conditional is None and not found.refuted and "fit it again" in found.verdict
    assert found.parameters == () and math.isnan(found.score_ratio[0])


def test_paired_simulations_are_one_each(base):
    with seeded(10):
        theta = PRIOR.sample((30,))
        y, x = simulate(theta) + 2, simulate(theta)
    few = replace(SMALL, candidates=(candidates.Uncorrected(), candidates.ResidualShift()))
    posterior = FMCPE(base, recipe=few).fit(theta, y, x, seed=0, show_progress_bars=False)
    found = misspecification(posterior, num_permutations=199)
    assert found.conditional.simulations == 1 and found.refuted and found.marginal is None
    assert "1 simulation(s)" in found.summary() and math.isnan(found.conditional.distance_ratio)
