"""Posterior predictive checks: exact ranks where the simulator is right, small p-values where it is not."""

import numpy as np
import pytest
import torch
from conftest import PRIOR, observe, simulate

import fmcpe
from fmcpe.diagnostics import PredictiveCheck
from fmcpe.diagnostics.predictive import _p_value

Y = torch.tensor([1.0, 0.5, 1.2])


def test_the_p_value_is_uniform_for_exchangeable_points():
    """Correlated Gaussians, y drawn as the simulations are: 400 p-values pass a Kolmogorov-Smirnov test."""
    torch.manual_seed(0)
    mix = torch.randn(4, 4)
    p = [_p_value(draws[1:], draws[0]) for draws in (torch.randn(400, 60, 4) @ mix)]
    distance = np.abs(np.sort(p) - (np.arange(400) + 0.5) / 400).max()
    assert distance < 1.63 / 400**0.5 + 1 / 60
    far = torch.randn(60, 4) @ mix
    assert _p_value(far, 10 * torch.ones(4)) == pytest.approx(1 / 61)


def test_simulations_at_draws(posteriors):
    posterior = posteriors("default")
    check = posterior.predictive(x=Y, num_samples=200, seed=3)
    assert isinstance(check, PredictiveCheck)
    assert check.theta.shape == (200, 2) and check.x.shape == (200, 3) and check.ranks.shape == (3,)
    assert bool(PRIOR.support.check(check.theta).all())
    expected = torch.stack([check.theta[:, 0], 4 * check.theta[:, 1], check.theta.sum(1)], dim=1)
    assert float((check.x - expected).abs().mean()) < 0.3  # noise of 0.3
    again = posterior.predictive(x=Y, num_samples=200, seed=3)
    assert torch.equal(check.x, again.x) and check.p_value == again.p_value
    assert torch.allclose(check.ranks, (check.x < Y).double().mean(0))
    assert "p = " in check.summary()
    assert str(check) == repr(check) == check.summary()


def test_a_wrong_simulator_shows(posteriors):
    """The real process has other gains and an offset: simulations at the corrected θ are unlike y, at many observations."""
    torch.manual_seed(0)
    theta = PRIOR.sample((20,))
    y = observe(theta)
    wrong = [posteriors("default").predictive(x=each, num_samples=100).p_value for each in y]
    right = [posteriors("default").predictive(x=each, simulator=observe, num_samples=100).p_value for each in y]
    assert np.median(wrong) < 0.5 * np.median(right)
    assert np.median(right) > 0.15


def test_a_file_does_not_contain_the_simulator(posteriors, tmp_path):
    loaded = fmcpe.load(posteriors("default").save(tmp_path / "run.fmcpe"))
    with pytest.raises(ValueError, match="simulator=my_simulator"):
        loaded.predictive(x=Y)
    given = loaded.predictive(x=Y, simulator=simulate, num_samples=50)
    assert torch.equal(given.x, posteriors("default").predictive(x=Y, num_samples=50).x)
    with pytest.raises(ValueError, match="num_samples"):
        loaded.predictive(x=Y, simulator=simulate, num_samples=3)


@pytest.mark.parametrize(
    ("shape", "panels"), [((4,), 6), ((40,), 1), ((2, 50), 2), ((16, 16), 3), ((16, 16, 3), 3), ((3, 16, 16), 3)]
)
def test_a_picture_for_every_shape(shape, panels):
    torch.manual_seed(0)
    x, y = torch.randn(50, *shape), torch.randn(shape)
    check = PredictiveCheck(torch.zeros(50, 1), x, y, (x < y).double().mean(0), _p_value(x, y), ("a",))
    figure = check.plot()
    shown = [axes for axes in figure.get_axes() if axes.get_label() != "<colorbar>"]
    assert len(shown) == panels
    figure.canvas.draw()
    assert check.residuals().shape == shape
