"""Before and after on the same pairs: numbers of known posteriors, bounded draws, pairs that were seen."""

import warnings

import pytest
import torch
from conftest import PRIOR, observe
from sbi.inference import NPE

import fmcpe
from fmcpe.diagnostics import Comparison, compare
from fmcpe.diagnostics.compare import compare_draws


def held_out(n=60):
    torch.manual_seed(7)
    theta = PRIOR.sample((n,))
    return theta, observe(theta)


def test_numbers_of_known_draws():
    """θ ~ N(μ_j, 1): after is the exact posterior, before is shifted by 2 and half as wide."""
    torch.manual_seed(0)
    mean = 3 * torch.randn(400, 1)
    theta, noise = mean + torch.randn(400, 1), torch.randn(2, 1000, 400, 1)
    found = compare_draws(mean + 2 + 0.5 * noise[0], mean + noise[1], theta, ("a",), lambda t: t)
    before, after = found.before[0], found.after[0]
    assert before.bias == pytest.approx(2, abs=0.15) and after.bias == pytest.approx(0, abs=0.15)
    assert before.width == pytest.approx(0.5 * 2 * 1.645, rel=0.03) and after.width == pytest.approx(3.29, rel=0.03)
    assert after.error == pytest.approx(0.674, abs=0.08)
    # binomial: 0.9 ± 2.6 standard errors of 400 pairs
    assert abs(after.coverage_90 - 0.9) < 0.04 and before.coverage_90 < 0.2
    # E|X - Y| of N(0, 1) is 2/√π, so the exact score is 1/√π
    assert found.energy[1] == pytest.approx(torch.pi**-0.5, abs=0.05)
    ratio, low, high = found.energy_ratio
    assert low < ratio < high < 0.6
    assert ratio == pytest.approx(found.energy[1] / found.energy[0])


def test_one_call(base, posteriors):
    posterior = posteriors("default")
    found = compare(base, posterior, *held_out(), num_samples=200)
    assert isinstance(found, Comparison) and found.seen == 0 and found.leakage == 0
    text = found.summary()
    assert all(name in text for name in posterior.names) and "on 60 pairs" in text
    assert found.energy[1] < found.energy[0]
    assert [len(each) for each in found.draws] == [200, 200]
    figures = found.figures()
    assert set(figures) == {"estimates", "coverage", "ranks"}
    for figure in figures.values():
        figure.canvas.draw()
    frame = found.to_dataframe()
    assert list(frame["posterior"]) == ["before", "after"] * 2
    assert str(found) == repr(found) == text


def test_pairs_of_the_fit_are_named(base, posteriors, pairs):
    with pytest.warns(fmcpe.FMCPEWarning, match="30 of 30"):
        found = compare(base, posteriors("default"), *pairs, num_samples=50)
    assert found.seen == 30 and "too good" in found.summary()


def test_a_base_posterior_far_out_of_distribution_ends(posteriors, tmp_path, monkeypatch):
    """Nearly all mass lies outside the prior, and sbi's rejection sampler would not return."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    theta = PRIOR.sample((500,))
    trainer = NPE(PRIOR, density_estimator="maf", show_progress_bars=False)
    x = torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1) / 1000  # trained in other units
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.append_simulations(theta, x).train(max_num_epochs=10)
    found = compare(trainer.build_posterior(), posteriors("default"), *held_out(20), num_samples=50)
    assert found.leakage > 0.5 and "outside the prior" in found.summary()
    assert bool(PRIOR.support.check(found.draws[0].flatten(0, 1).float()).all())


def test_arguments_in_the_wrong_order_are_recognised(base, posteriors):
    with pytest.raises(TypeError, match=r"They look swapped: call compare\(base, posterior"):
        compare(posteriors("default"), base, *held_out())
    with pytest.raises(TypeError, match=r"Call compare\(base, posterior"):
        compare(base, base, *held_out())
