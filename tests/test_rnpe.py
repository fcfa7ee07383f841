"""RNPE against the exact posterior of a contaminated Gaussian model, where every integral has one dimension."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.distributions import Independent, Normal

import fmcpe
from fmcpe import as_base_posterior, baselines
from fmcpe.baselines.scale_mixtures import cauchy_levels, laplace_levels, sweep, with_diagonal

D, EPS = 4, 0.3
UNIT = math.sqrt(1 + EPS**2)
"""Standard deviation of a summary over simulations."""

Y = torch.tensor([[0.5, 0.6, 0.4, 3.0], [0.0, 0.2, -0.1, 0.1], [1.0, 1.2, 0.9, -40.0], [0.3, 0.5, -1000.0, 1e5]])
CONTAMINATED = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]]).bool()


def replicates(theta):
    """Four independent measurements of one θ."""
    return theta + EPS * torch.randn(len(theta), D)


@pytest.fixture(scope="module")
def conjugate():
    """θ ~ N(0, 1), x_d ~ N(θ, 0.3²), with the exact posterior as base."""
    prior, gain = Independent(Normal(torch.zeros(1), torch.ones(1)), 1), 1 / (EPS**2 + D)
    std = math.sqrt(1 / (1 + D / EPS**2))

    def mean(x):
        return gain * x.sum(1, keepdim=True)

    def log_prob(theta, x):
        return Normal(mean(x), std).log_prob(theta).sum(-1)

    return as_base_posterior(lambda x: mean(x) + std * torch.randn(len(x), 1), prior, log_prob)


@pytest.fixture(scope="module")
def method(conjugate):
    """Of so many simulations that their mean and covariance are known."""
    method = baselines.RNPE(conjugate, replicates, num_simulations=20_000)
    method.fit(seed=0)
    return method


def exact(y):
    """Mean and deviation of θ, and the probabilities of the slab: given θ, summaries are independent."""
    theta = np.linspace(-5, 5, 5001)
    log_density, share = stats.norm.logpdf(theta), []
    for each in y.tolist():
        spike = 0.5 * stats.norm.pdf(each - theta, scale=math.hypot(EPS, 0.01 * UNIT))
        slab = 0.5 * special.voigt_profile(each - theta, EPS, 0.25 * UNIT)
        log_density = log_density + np.log(spike + slab)
        share.append(slab / (spike + slab))
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float(density @ theta)
    return mean, math.sqrt(density @ (theta - mean) ** 2), torch.tensor([float(density @ each) for each in share])


def test_it_recovers_the_exact_posterior_and_finds_the_contaminated_summaries(method):
    draws = method._fitted.sample_batched((2000,), x=Y, seed=0, show_progress_bars=False)[..., 0]
    found = method.misspecification_probability(Y, 2000)
    assert found.shape == (4, D)
    for b, y in enumerate(Y):
        mean, std, share = exact(y)
        # 2000 draws of 250 chains, of which two successive ones are correlated; 20 000 simulations give p(x) to 1 %
        assert float(draws[:, b].mean()) == pytest.approx(mean, abs=0.12 * std)
        assert float(draws[:, b].std()) == pytest.approx(std, rel=0.1)
        assert torch.allclose(found[b], share.float(), atol=0.04)
    assert bool((found[CONTAMINATED] > 0.95).all())
    assert bool((found[~CONTAMINATED] < 0.5).all())  # 1/2 is the prior; the exact values are between 0.37 and 0.43


def test_the_uncorrected_posterior_follows_the_contamination(method, conjugate):
    """What is gained: the error of RNPE at a summary that is far off is a tenth of that of the base posterior."""
    torch.manual_seed(0)
    theta = conjugate.prior.sample((200,))
    y = replicates(theta)
    y[:, 0] += 8.0
    errors = {
        name: float((p.sample_batched((50,), x=y, seed=0, show_progress_bars=False).mean(0) - theta).square().mean())
        for name, p in (("npe", baselines.NPE(conjugate).fit(y=y)), ("rnpe", method._fitted))
    }
    assert errors["rnpe"] < errors["npe"] / 10


def test_in_the_summary_space_of_an_embedding(base_with_embedding):
    """Two features of the network, and the level of domain randomisation, which never varies."""
    from conftest import PRIOR, simulate

    method = baselines.RNPE(base_with_embedding, simulate, num_simulations=1000)
    method.fit(seed=0)
    torch.manual_seed(0)
    y = simulate(PRIOR.sample((40,)))
    clean, off = method.misspecification_probability(y), method.misspecification_probability(y + 50.0)
    assert clean.shape == off.shape == (40, 3)
    assert bool(clean[:, 2].isnan().all()) and not bool(clean[:, :2].isnan().any())
    assert float(off[:, :2].amax(1).mean()) > 0.95
    assert float(clean[:, :2].mean()) < 0.6


def test_grids_of_variances_are_the_distributions_they_stand_for():
    t = np.logspace(-2, 3, 60)
    for (variances, log_weights), cdf in (
        (cauchy_levels(0.25), stats.cauchy(scale=0.25).cdf),
        (laplace_levels(), stats.laplace().cdf),
    ):
        mixed = log_weights.exp().numpy() @ stats.norm.cdf(t / variances.sqrt().numpy()[:, None])
        assert float(log_weights.exp().sum()) == pytest.approx(1.0, abs=1e-9)
        assert np.abs(mixed - cdf(t)).max() < 1e-3


def test_a_sweep_leaves_the_enumerated_conditional_invariant():
    """Two summaries and three levels: nine states, whose probabilities are enumerated."""
    torch.manual_seed(0)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    levels = torch.tensor([1e-4, 0.3, 20.0], dtype=torch.float64)
    prior, s = torch.tensor([0.5, 0.3, 0.2]).double().log(), torch.tensor([0.4, 2.5], dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    normal = torch.distributions.MultivariateNormal(torch.zeros(2).double(), with_diagonal(covariance, levels[pairs]))
    expected = (normal.log_prob(s) + prior[pairs].sum(1)).softmax(0)
    index = torch.zeros(20_000, 2, dtype=torch.long)
    for _ in range(25):
        precision = torch.linalg.inv(with_diagonal(covariance, levels[index]))
        kept = precision.clone()
        residual = s.expand(len(index), 2)
        index, above = sweep(precision, residual, index, levels.expand(1, 2, 3), prior)
        # P was updated along with the variances
        assert torch.allclose(precision, torch.linalg.inv(with_diagonal(covariance, levels[index])), rtol=1e-6)
        assert not torch.equal(precision, kept)
    found = torch.bincount(3 * index[:, 0] + index[:, 1], minlength=9) / len(index)
    # 4.5 deviations of a share of 20 000 independent chains
    assert bool(((found - expected).abs() < 4.5 * (expected * (1 - expected) / 20_000).sqrt() + 1e-4).all())
    first = torch.stack([expected.view(3, 3)[0].sum(), expected.view(3, 3)[:, 0].sum()])
    assert torch.allclose(above.mean(0), 1 - first, atol=0.02)


def test_it_needs_no_pairs_and_says_what_it_needs(conjugate, base_with_embedding):
    method = baselines.RNPE(conjugate, replicates, num_simulations=200)
    with pytest.raises(RuntimeError, match=r"^Expected a fitted RNPE, got one before fit\. Call fit\(\) first"):
        method.misspecification_probability(Y)
    assert method.fit(seed=0).record.num_pairs == 0
    with pytest.raises(ValueError, match="Expected a batch of observations"):
        method.misspecification_probability(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="simulator or simulations"):
        baselines.RNPE(conjugate).fit()
    with pytest.raises(ValueError, match=r"got 0\. Try max_components=16"):
        baselines.RNPE(conjugate, replicates, max_components=0)
    wide = as_base_posterior(lambda x: x[:, :1], conjugate.prior)
    with pytest.raises(
        ValueError, match=r"^Expected summaries of at most 64 numbers for RNPE, got 65\. Train .+embedding"
    ):
        baselines.RNPE(wide, lambda theta: theta + torch.randn(len(theta), 65), num_simulations=200).fit()
    with pytest.raises(ValueError, match=r"^Expected summaries that vary between simulations for RNPE, got 0\."):
        baselines.RNPE(wide, lambda theta: torch.ones(len(theta), 3), num_simulations=200).fit()


def test_it_is_saved_without_a_function_as_base(method, conjugate, tmp_path):
    posterior = method._fitted
    with pytest.warns(fmcpe.FMCPEWarning):
        path = posterior.save(tmp_path / "run.fmcpe")
    loaded = fmcpe.load(path, posterior=conjugate)
    assert torch.equal(loaded.sample_batched((5,), x=Y, seed=0), posterior.sample_batched((5,), x=Y, seed=0))
    assert torch.equal(loaded.inner.misspecification_probability(Y, 50).isnan(), torch.zeros(4, D).bool())
