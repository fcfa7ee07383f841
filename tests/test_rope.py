"""RoPE on problems with exact posteriors: its limits, its density, its batches, its files."""

import math

import numpy as np
import pytest
import torch
from conftest import PRIOR, simulate
from scipy import stats
from torch import nn

import fmcpe
from fmcpe import as_base_posterior, baselines, tasks
from fmcpe.baselines.semi_balanced import semi_balanced_rows

Y = torch.tensor([1.0, 0.5, 1.2])
QUIET = {"seed": 0, "show_progress_bars": False}


def exact_base(task):
    """The simulator's posterior of the offset task in closed form, as a base posterior with a density."""
    at_zero = task.reference_posterior(torch.zeros(1), "simulator")
    slope = float(task.reference_posterior(torch.ones(1), "simulator").mean - at_zero.mean)
    loc, std = float(at_zero.mean), float(at_zero.cov.sqrt())

    def log_prob(theta, x):
        return torch.distributions.Normal(loc + slope * x, std).log_prob(theta).sum(-1)

    return as_base_posterior(lambda x: loc + slope * x + std * torch.randn_like(x), task.prior, log_prob), slope, std


@pytest.fixture(scope="module")
def well_specified():
    """The offset task without an offset: raw x is a perfect embedding, and the simulator is right."""
    task = tasks.get("offset", lam=0.0)
    base, slope, std = exact_base(task)
    return task, base, slope, std, task.calibration_set(50, 0), task.test_set(200, 0)[1]


def test_rope_without_entropy_is_the_right_posterior(well_specified):
    task, base, slope, std, pairs, y = well_specified
    posterior = baselines.RoPE(base, task.simulator, gamma=1e-4, rho=1e-3).fit(*pairs, **QUIET)
    draws = posterior.sample_batched((500,), x=y, seed=0, show_progress_bars=False)
    # the mean of 500 draws is off by 0.036 of a posterior deviation on average; as much again is left for the distance to
    # simulations, of which there are 5000
    assert float((draws.mean(0) - slope * y).abs().mean()) < 2 * 0.036 * std
    assert float(draws.std(0).mean()) == pytest.approx(std, rel=0.05)


def test_rope_with_much_entropy_is_the_prior(well_specified):
    task, base, _, _, pairs, y = well_specified
    posterior = baselines.RoPE(base, task.simulator, gamma=1e3, rho=1e4).fit(*pairs, **QUIET)
    draws = posterior.sample_batched((500,), x=y[:50], seed=0, show_progress_bars=False)[..., 0]
    # each of 50 observations: draws through a pool of 5000; 4.5 deviations are passed once in 3000 runs of 50
    assert float(draws.mean(0).abs().max()) < 4.5 * math.sqrt(1 / 500 + 1 / 5000)
    assert float(draws.std(0).mean()) == pytest.approx(1.0, rel=0.04)
    grid = torch.linspace(-2, 2, 9)[:, None]
    assert torch.allclose(posterior.log_prob(grid, x=y[0]), task.prior.log_prob(grid), atol=0.15)


def test_rope_has_both_limits_on_the_gaussian_task():
    """Data reduced to E[θ|x], a perfect embedding of three numbers, on both sides the same.

    Without entropy the answer is the posterior at the nearest of K simulations: eight times as many halve the error. With much
    of it, it is the prior.
    """
    task = tasks.get("gaussian")
    at_zero = task.reference_posterior(torch.zeros(10), "simulator")
    offset, root = at_zero.mean.float(), torch.linalg.cholesky(at_zero.cov).float()
    gain = torch.stack([task.reference_posterior(e, "simulator").mean.float() - offset for e in torch.eye(10)])
    base = as_base_posterior(lambda s: s + torch.randn_like(s) @ root.T, task.prior)

    def reduced(theta):
        return offset + task.simulator(theta) @ gain

    torch.manual_seed(0)
    theta = task.prior.sample((350,))
    y = reduced(theta)

    def answer(**settings):
        posterior = baselines.RoPE(base, reduced, **settings).fit(theta[:50], y[:50], **QUIET)
        draws = posterior.sample_batched((500,), x=y[50:], seed=0, show_progress_bars=False)
        return draws.mean(0), draws.std(0).mean(0)

    std, prior_std = at_zero.cov.diagonal().sqrt().float(), task.prior.stddev
    few, many = (answer(gamma=1e-5, rho=0.0, num_simulations=k) for k in (625, 5000))
    # less the error of a mean of 500 draws
    errors = [((mean - y[50:]) / std).square().mean(0) - 1 / 500 for mean, _ in (few, many)]
    # each mean square of 300 observations is known to some 10 %, their ratio's root to 7 %
    assert float((errors[1].sum() / errors[0].sum()).sqrt()) == pytest.approx(0.5, abs=0.12)
    assert torch.allclose(many[1] / std, torch.ones(3), atol=0.03)
    centre, flat = answer(gamma=1e3, rho=1e4)
    assert torch.allclose(flat / prior_std, torch.ones(3), atol=0.04)  # 5000 simulations: 0.01
    # 900 means of 500 draws through one pool of 5000: five deviations are passed once in 2000 runs
    assert float(((centre - task.prior.mean) / prior_std).abs().max()) < 5 * math.sqrt(1 / 500 + 1 / 5000)


def test_ropes_density_is_that_of_its_draws(well_specified):
    task, base, _, _, pairs, y = well_specified
    posterior = baselines.RoPE(base, task.simulator, gamma=0.05, rho=0.1, num_simulations=300).fit(*pairs, **QUIET)
    grid = torch.linspace(-6, 6, 1201)[:, None]
    alone = posterior.log_prob(grid, x=y[0]).exp() * 0.01
    assert float(alone.sum()) == pytest.approx(1.0, abs=1e-3)
    draws = posterior.sample((20_000,), x=y[0], seed=0)[:, 0]
    cumulative = np.concatenate([[0.0], alone.cumsum(0).numpy()])
    edges = np.concatenate([[-6.005], grid[:, 0].numpy() + 0.005])
    # a false alarm once in 10 000 seeds
    assert stats.kstest(draws.numpy(), lambda t: np.interp(t, edges, cumulative)).pvalue > 1e-4
    batch = posterior.log_prob_batched(grid[:, None].expand(-1, 3, -1), x=y[:3])
    assert torch.allclose((batch.exp() * 0.01).sum(0), torch.ones(3), atol=1e-3)


def test_rope_is_transductive_and_joins_the_calibration_set(well_specified):
    task, base, _, _, pairs, y = well_specified
    posterior = baselines.RoPE(base, task.simulator, gamma=0.05, rho=1.0, num_simulations=300).fit(*pairs, **QUIET)
    chain = posterior.inner
    batch, alone = chain.plan(y), chain.plan(y[:1])
    assert torch.allclose(batch.sum(1), torch.ones(200), atol=1e-5)
    assert not torch.allclose(batch[:1], alone, atol=1e-4)
    pool = chain.pool / chain.pool.std()
    cost = (torch.cat([y[:1], pairs[1]]) / chain.pool.std() - pool[:, 0]).square()
    by_hand = semi_balanced_rows(cost, 0.05 * 2, 1.0 * 2)  # the mean of |x_k - x_l|² of standardised x is 2
    assert torch.allclose(by_hand[:1], alone, atol=1e-3)
    cut = posterior.sample_batched((3,), x=y, seed=0, max_sampling_batch_size=7, show_progress_bars=False)
    assert cut.shape == (3, 200, 1)


def test_rope_learns_the_offset_through_its_embedding():
    """The embedding learns that y lies λ below x: the bias of the base posterior, 0.92 λ, goes."""
    task = tasks.get("offset")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 2))
    base = fmcpe.train_npe(task.simulator, task.prior, 4000, net, max_num_epochs=6, **QUIET)
    before = [weight.clone() for weight in base.posterior_estimator.parameters()]
    theta, y = task.test_set(300, 0)
    posterior = baselines.RoPE(base, task.simulator, gamma=0.002, rho=0.02).fit(*task.calibration_set(100, 0), **QUIET)

    def bias(p):
        return float((p.sample_batched((50,), x=y, seed=0, show_progress_bars=False).mean(0) - theta).mean())

    assert abs(bias(baselines.NPE(base).fit())) > 0.7
    # the offset is known from 80 pairs to 0.3 / √80 = 0.03, and the test set's own mean to 0.3 / √300 = 0.02
    assert abs(bias(posterior)) < 0.15
    after = list(base.posterior_estimator.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rope_around_a_function_is_saved_without_it(well_specified, tmp_path):
    task, base, *_, pairs, y = well_specified
    posterior = baselines.RoPE(base, task.simulator, num_simulations=200).fit(*pairs, **QUIET)
    path = posterior.save(tmp_path / "run.fmcpe")
    with pytest.raises(ValueError, match="posterior="):
        fmcpe.load(path)
    loaded = fmcpe.load(path, posterior=base)
    assert torch.equal(loaded.sample_batched((5,), x=y, seed=0), posterior.sample_batched((5,), x=y, seed=0))


def test_rope_without_a_simulator(well_specified, base_with_embedding, pairs):
    task, base, *_, calibration, y = well_specified
    theta = task.prior.sample((300,))
    posterior = baselines.RoPE(base, simulations=(theta, task.simulator(theta))).fit(*calibration, **QUIET)
    assert posterior.sample((5,), x=y[0]).shape == (5, 1)
    pool = PRIOR.sample((300,))
    method = baselines.RoPE(base_with_embedding, simulations=(pool, simulate(pool)))
    with pytest.raises(ValueError, match="x=simulations_at_theta"):
        method.fit(*pairs, **QUIET)
    assert method.fit(*pairs, x=simulate(pairs[0]), **QUIET).sample((5,), x=Y).shape == (5, 2)


class Constant(nn.Linear):
    """Says the same of everything."""

    def forward(self, x):
        return 0.0 * super().forward(x) + 1.0


def test_rope_says_when_its_features_tell_nothing_apart(pairs):
    base = fmcpe.train_npe(simulate, PRIOR, 200, Constant(3, 2), max_num_epochs=1, **QUIET)
    with pytest.raises(
        ValueError, match=r"^Expected .+, got the same embedding of x for all 100 simulations.+embedding_net"
    ):
        baselines.RoPE(base, simulate, num_simulations=100).fit(*pairs, **QUIET)
    guess = as_base_posterior(lambda x: PRIOR.sample((len(x),)), PRIOR)
    with pytest.raises(ValueError, match=r"got the same raw data for all 100 simulations.+simulator depends on theta"):
        baselines.RoPE(guess, lambda theta: torch.ones(len(theta), 3), num_simulations=100).fit(*pairs, **QUIET)


@pytest.mark.parametrize("option", [{"gamma": 0.0}, {"rho": -1.0}, {"num_targets": 0}])
def test_rope_refuses_settings_that_make_no_sense(base, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"^Expected .+, got ({name}=)?{value}\. Try {name}="):
        baselines.RoPE(base, simulate, **option)
