"""RSNL on the contaminated normal of its paper, and its sampler against an enumerated posterior."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

import fmcpe
from fmcpe import baselines
from fmcpe.baselines.rsnl import Adjusted
from fmcpe.baselines.scale_mixtures import laplace_levels, with_diagonal

PRIOR = Independent(Normal(torch.zeros(1), 10 * torch.ones(1)), 1)
QUIET = {"seed": 0, "show_progress_bars": False}


def summarise(data):
    """Mean and variance of 100 numbers."""
    return torch.stack([data.mean(1), data.var(1)], dim=1)


def simulate(theta):
    return summarise(theta + torch.randn(len(theta), 100))


def observe(theta):
    """One number in five has a standard deviation of 2.5: no θ of the simulator gives such a variance."""
    std = torch.where(torch.rand(len(theta), 100) < 0.8, 1.0, 2.5)
    return summarise(theta + std * torch.randn(len(theta), 100))


@pytest.fixture(scope="module")
def base():
    return fmcpe.train_npe(simulate, PRIOR, 4000, max_num_epochs=8, **QUIET)


@pytest.fixture(scope="module")
def method(base):
    method = baselines.RSNL(base, simulate, num_simulations=5000)
    method.fit(**QUIET)
    return method


def scores(posterior, y, theta):
    """Root mean square error of the mean, mean deviation, and coverage of central 90 % intervals."""
    draws = posterior.sample_batched((200,), x=y, seed=0, show_progress_bars=False)
    low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
    inside = float(((theta > low) & (theta < high)).float().mean())
    return float((draws.mean(0) - theta).square().mean().sqrt()), float(draws.std(0).mean()), inside


def test_theta_stays_near_the_truth_where_npe_is_far_off(base, method):
    torch.manual_seed(0)
    theta = 3 * torch.randn(200, 1)
    y = observe(theta)
    error, std, inside = scores(method._fitted, y, theta)
    error_npe, _, inside_npe = scores(baselines.NPE(base).fit(), y, theta)
    # the mean of 100 such numbers has a deviation of √(0.8 + 0.2 · 2.5²) / 10 = 0.143; 200 observations tell it to 5 %
    assert error == pytest.approx(0.143, rel=0.25)
    assert error_npe > 3 * error
    # the model's noise of the mean is 0.1: intervals that are right for it hold the truth in P(|N(0, 0.143²)| < 0.165) = 0.75
    assert inside > 0.65
    assert inside_npe < inside - 0.15
    assert std < 0.143
    # without contamination, nothing is lost but a tenth of the width
    error, std, inside = scores(method._fitted, simulate(theta), theta)
    assert error == pytest.approx(0.1, rel=0.2)
    assert std == pytest.approx(0.1, rel=0.2)
    assert inside > 0.84


def test_adjustments_concentrate_on_the_variance(method):
    torch.manual_seed(1)
    theta = 3 * torch.randn(50, 1)
    unit = torch.tensor([math.sqrt(100.0 + 0.01), math.sqrt(2 / 99)])  # deviations over the prior
    contaminated, clean = observe(theta), simulate(theta)
    found = method.adjustments(contaminated, 100)
    assert found.shape == (100, 50, 2)
    gamma = found.mean((0, 1))
    missing = float((contaminated[:, 1].mean() - 1) / unit[1])  # of the variance, which is 1 under the simulator
    assert missing > 5
    assert missing - 1.5 < float(gamma[1]) < missing + 0.5  # shrunk by the Laplace prior
    assert abs(float(gamma[0])) < 0.01  # a tenth in units of the mean
    assert float(method.adjustments(clean, 100)[..., 1].abs().mean()) < 0.6


def test_draws_of_theta_and_of_adjustments_are_those_of_the_enumerated_posterior(method, monkeypatch):
    """All pairs of levels times a grid of θ, for a prior scale that is fixed."""
    inner, scale = method._fitted.inner, torch.tensor([[0.02, 1.0]], dtype=torch.float64).square()
    monkeypatch.setattr(Adjusted, "_shrunk", lambda self, s, means, variances: scale.expand(len(s), -1))
    y = torch.tensor([[2.0, 1.6]])
    levels, log_weights = laplace_levels()
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    variances, weights = scale * levels[pairs], log_weights[pairs].sum(1)
    z = torch.linspace(0.0, 0.4, 801, dtype=torch.float64)[:, None]  # the posterior is about 0.2 ± 0.02
    mean, covariance = inner.likelihood.moments(z)
    residual, s = inner.summaries(y) - mean, torch.zeros(801, 2, dtype=torch.float64)
    density, shift = torch.zeros(801, dtype=torch.float64), s.clone()
    for v, w in zip(variances, weights, strict=True):
        total = with_diagonal(covariance, v.expand(801, 2))
        each = torch.distributions.MultivariateNormal(torch.zeros(2).double(), total).log_prob(residual)
        each = (each + w - 0.5 * z[:, 0].square()).exp()
        density += each
        shift += each[:, None] * v * torch.linalg.solve(total, residual[..., None])[..., 0]
    gamma, density = shift.sum(0) / density.sum(), density / density.sum()
    exact_mean = float(density @ z[:, 0])
    exact_std = math.sqrt(float(density @ (z[:, 0] - exact_mean).square()))
    torch.manual_seed(0)
    draws, found = inner._draws(y, 4000)
    # 4000 draws of 64 chains, three sweeps apart
    assert float(draws.mean()) == pytest.approx(exact_mean, abs=0.1 * exact_std)
    assert float(draws.std()) == pytest.approx(exact_std, rel=0.08)
    assert torch.allclose(found.mean((0, 1)), gamma, atol=0.08)
    grid = method._fitted.space.to_theta(z.float())
    kernel = method._fitted.log_prob(grid, x=y[0]).exp()
    assert float(torch.trapezoid(kernel, grid[:, 0])) == pytest.approx(1.0, abs=0.01)


def test_one_observation_does_not_depend_on_the_batch(method):
    torch.manual_seed(0)
    y = observe(torch.zeros(5, 1))
    theta = torch.linspace(-0.5, 0.5, 11)[:, None]
    alone = method._fitted.log_prob(theta, x=y[0])
    batch = method._fitted.log_prob_batched(theta[:, None].expand(-1, 5, -1), x=y)[:, 0]
    assert torch.allclose(alone, batch, atol=1e-4)


def test_in_the_summary_space_of_an_embedding(base_with_embedding):
    from conftest import PRIOR as BOX
    from conftest import simulate as three

    method = baselines.RSNL(base_with_embedding, three, num_simulations=1000)
    posterior = method.fit(**QUIET)
    torch.manual_seed(0)
    theta = BOX.sample((40,))
    draws = posterior.sample_batched((50,), x=three(theta), seed=0, show_progress_bars=False)
    assert bool(BOX.support.check(draws).all())
    assert float((draws.mean(0) - theta).square().mean().sqrt()) < 0.3  # the prior's deviation is 1.15 and 0.29
    gamma = method.adjustments(three(theta), 20)
    assert gamma.shape == (20, 40, 3)
    assert bool(gamma[..., 2].isnan().all()) and not bool(gamma[..., :2].isnan().any())


def test_it_needs_no_pairs_and_says_what_it_needs(base):
    method = baselines.RSNL(base, simulate, num_simulations=200)
    with pytest.raises(RuntimeError, match=r"^Expected a fitted RSNL, got one before fit\. Call fit\(\) first"):
        method.adjustments(torch.zeros(2, 2))
    assert method.fit(**QUIET).record.num_pairs == 0
    with pytest.raises(ValueError, match="Expected a batch of observations"):
        method.adjustments(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="simulator or simulations"):
        baselines.RSNL(base).fit()
    with pytest.raises(ValueError, match=r"got shrinkage=0\.0\. Try shrinkage=0\.3"):
        baselines.RSNL(base, simulate, shrinkage=0.0)
