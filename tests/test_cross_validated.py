"""Calibration from the pairs alone: exact posteriors pass, wrong ones are named, at the rates that the levels promise."""

import pytest
import torch

import fmcpe
from fmcpe.diagnostics import calibration, misspecification, suspects
from fmcpe.diagnostics.cross_validated import calibration_of_draws

NAMES = ("ω0", "A")


def verdict(number, seed, scale=1.0, shift=0.0):
    """Of draws N(m + shift, scale²), where the truth is N(m, 1), for the second of two parameters."""
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(number, 2, generator=generator)
    truth = mean + torch.randn(number, 2, generator=generator)
    factor, offset = torch.tensor([1.0, scale]), torch.tensor([0.0, shift])
    draws = mean[:, None] + offset + factor * torch.randn(number, 64, 2, generator=generator)
    return calibration_of_draws(draws, truth, None, NAMES).verdict


@pytest.mark.parametrize("number", [50, 200])
def test_exact_posteriors_pass(number):
    """At a level of 2 % at most 5 of 100 repeats are false alarms (a binomial of 2 % exceeds that with probability 1.5 %)."""
    verdicts = [verdict(number, seed) for seed in range(100)]
    passed = "Too few pairs to tell" if number < 100 else "Calibrated"
    assert sum(not text.startswith(passed) for text in verdicts) <= 5


@pytest.mark.parametrize(
    ("scale", "shift", "says"),
    [(0.6, 0.0, "over-confident in A"), (1.0, 0.5, "biased upwards in A"), (1.0, -0.5, "biased downwards in A")],
)
def test_wrong_posteriors_are_named(scale, shift, says):
    verdicts = [verdict(200, seed, scale, shift) for seed in range(100)]
    assert sum(says in text and "ω0" not in text for text in verdicts) >= 95


def test_a_parameter_that_was_never_varied_is_not_tested():
    generator = torch.Generator().manual_seed(0)
    truth = torch.stack([torch.randn(40, generator=generator), torch.full((40,), 0.7)], dim=1)
    draws = torch.stack(
        [truth[:, :1] + torch.randn(40, 64, generator=generator), torch.randn(40, 64, generator=generator)], 2
    )
    draws[..., 0] += torch.randn(40, 1, generator=generator)
    found = calibration_of_draws(draws, truth, None, NAMES)
    assert (
        found.sbc.verdicts[1].startswith("not tested") and "A" not in found.verdict.split(":")[0] and not found.refuted
    )


def test_smallest_deviations_are_those_seen_in_four_of_five_repeats():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(100, 2, generator=generator)
    found = calibration_of_draws(torch.randn(100, 64, 2, generator=generator), truth, None, NAMES)
    seen = [verdict(100, seed, shift=found.detectable_bias) for seed in range(100)]
    assert 65 <= sum("biased" in text for text in seen) <= 95
    seen = [verdict(100, seed, scale=1 / found.detectable_scale) for seed in range(100)]
    assert 65 <= sum("over-confident" in text for text in seen) <= 95


def test_a_fitted_posterior_is_judged_also_after_loading(posteriors, tmp_path):
    posterior = posteriors("default")
    found = calibration(posterior)
    assert found.energy == pytest.approx(posterior.record.score, rel=0.15)
    ratio, low, high = found.energy_ratio
    assert low < ratio < high < 1
    assert "times that of the uncorrected posterior" in found.summary() and "30 held-out pairs" in found.summary()
    again = calibration(fmcpe.load(posterior.save(tmp_path / "a.fmcpe")))
    assert str(again) == repr(again) == found.summary()
    with pytest.raises(ValueError, match=r"recipe=.default."):
        calibration(posteriors("joint"))


@pytest.mark.parametrize("level", [0, 1, 2.0, -0.1, float("nan"), "0.05", True])
@pytest.mark.parametrize("test", [calibration, suspects, misspecification])
def test_levels_are_probabilities(posteriors, test, level):
    with pytest.raises(
        ValueError, match=rf"Expected a level between 0 and 1, got .*Try {test.__name__}\(posterior, level="
    ):
        test(posteriors("default"), level=level)
