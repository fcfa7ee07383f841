"""Each baseline does what its theory says, on problems with exact posteriors. What all posteriors share is in test_contract."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import PRIOR, SHORT, observe, simulate
from sbi import inference
from scipy import stats
from torch import nn

import fmcpe
from fmcpe import as_proposal, baselines, tasks
from fmcpe.baselines import SpikeAndSlab
from fmcpe.bench.methods import METHODS
from fmcpe.training import Training
from fmcpe.transport import semi_balanced_rows

Y = torch.tensor([1.0, 0.5, 1.2])
QUIET = {"seed": 0, "show_progress_bars": False}


def exact_base(task):
    """The simulator's posterior of the offset task in closed form, as a base posterior with a density."""
    at_zero = task.reference_posterior(torch.zeros(1), "simulator")
    slope = float(task.reference_posterior(torch.ones(1), "simulator").mean - at_zero.mean)
    loc, std = float(at_zero.mean), float(at_zero.cov.sqrt())

    def log_prob(theta, x):
        return torch.distributions.Normal(loc + slope * x, std).log_prob(theta).sum(-1)

    return as_proposal(lambda x: loc + slope * x + std * torch.randn_like(x), task.prior, log_prob), slope, std


# ------------------------------------------------------------------ RoPE


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
    base = as_proposal(lambda s: s + torch.randn_like(s) @ root.T, task.prior)

    def reduced(theta):
        return offset + task.simulator(theta) @ gain

    torch.manual_seed(0)
    theta = task.prior.sample((350,))
    y = reduced(theta)

    def answer(**settings):
        posterior = baselines.RoPE(base, reduced, **settings).fit(theta[:50], y[:50], **QUIET)
        draws = posterior.sample_batched((500,), x=y[50:], seed=0, show_progress_bars=False)
        return draws.mean(0) - y[50:], draws.std(0).mean(0)

    std, prior_std = at_zero.cov.diagonal().sqrt().float(), task.prior.stddev
    few, many = (answer(gamma=1e-5, rho=0.0, num_simulations=k) for k in (625, 5000))
    errors = [(error / std).square().mean(0) - 1 / 500 for error, _ in (few, many)]  # less that of a mean of 500 draws
    # each mean square of 300 observations is known to some 10 %, their ratio's root to 7 %
    assert float((errors[1].sum() / errors[0].sum()).sqrt()) == pytest.approx(0.5, abs=0.12)
    assert torch.allclose(many[1] / std, torch.ones(3), atol=0.03)
    _, flat = answer(gamma=1e3, rho=1e4)
    assert torch.allclose(flat / prior_std, torch.ones(3), atol=0.04)  # 5000 simulations: 0.01


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
    chain = posterior.corrector
    batch, alone = chain.prepare(y), chain.prepare(y[:1])
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


# ------------------------------------------------------------------ MF-NPE and DPE


@pytest.mark.slow
def test_with_many_pairs_mfnpe_approaches_dpe_and_both_the_truth():
    task = tasks.get("offset")
    base = fmcpe.train_npe(task.simulator, task.prior, 3000, max_num_epochs=6, **QUIET)
    pairs, (_, y) = task.calibration_set(1000, 0), task.test_set(200, 0)
    brief = replace(baselines.dpe.FEW_PAIRS, learning_rate=2e-3, max_num_epochs=60)
    exact = [task.reference_posterior(row) for row in y]
    mean, std = torch.stack([e.mean for e in exact]), float(exact[0].cov.sqrt())

    def answer(posterior):
        draws = posterior.sample_batched((400,), x=y, seed=0, show_progress_bars=False)
        return draws.mean(0), draws.std(0)

    answers = {
        "base": answer(baselines.NPE(base).fit()),
        "dpe": answer(baselines.DPE(task.prior, training=brief).fit(*pairs, **QUIET)),
        "mf-npe": answer(baselines.MFNPE(base, training=brief).fit(*pairs, **QUIET)),
    }

    def apart(a, b):
        return float(((a - b) / std).square().mean().sqrt())

    # 800 training pairs tell a mean function of a dozen effective numbers to √(12 / 800) = 0.12 deviations; 400 draws, 0.05
    assert apart(answers["base"][0], mean) > 2.5  # λ / 1.09, and a deviation is 0.29: 3.2
    assert apart(answers["dpe"][0], mean) < 0.3
    assert apart(answers["mf-npe"][0], mean) < 0.3
    assert apart(answers["mf-npe"][0], answers["dpe"][0]) < 0.3 * math.sqrt(2)
    for name in ("dpe", "mf-npe"):
        assert float(answers[name][1].mean()) == pytest.approx(std, rel=0.15)


@pytest.mark.parametrize("name", ["gaussian", "pendulum"])
def test_dpe_works_with_ten_pairs(name):
    task = tasks.get(name)
    posterior = baselines.DPE(task.prior, task.embedding_net()).fit(*task.calibration_set(10, 0), **QUIET)
    draws = posterior.sample_batched((50,), x=task.test_set(20, 0)[1], seed=0)
    assert bool(task.prior.support.check(draws).all())
    assert posterior.num_pairs == 10
    losses = posterior.history["validation_loss"]
    assert losses.index(min(losses)) >= len(losses) - 1 - baselines.dpe.FEW_PAIRS.stop_after_epochs


def test_mfnpe_starts_from_the_base_and_leaves_it_alone(base, pairs):
    before = [weight.clone() for weight in base.posterior_estimator.parameters()]
    tuned = baselines.MFNPE(base).fit(*pairs, **QUIET)
    assert all(torch.equal(a, b) for a, b in zip(before, base.posterior_estimator.parameters(), strict=True))
    losses = tuned.history["validation_loss"]
    assert min(losses) < tuned.history["start_loss"][0]
    # a rate too high for anything but harm: the start is kept
    wild = Training(2, 100, 50.0, 0.2, 5, 1e9, one_cycle=False, keep_start=True)
    kept = baselines.MFNPE(base, training=wild).fit(*pairs, **QUIET)
    assert torch.equal(kept.sample((5,), x=Y, seed=0), baselines.NPE(base).fit().sample((5,), x=Y, seed=0))


def test_mfnpe_takes_sbis_own_posteriors_and_files_keep_what_was_learned(pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # sbi's trainer writes logs where it stands
    torch.manual_seed(0)
    theta = PRIOR.sample((1000,))
    trainer = inference.NPE(PRIOR, density_estimator="maf", show_progress_bars=False)
    trainer.append_simulations(theta, simulate(theta)).train(max_num_epochs=5)
    foreign = trainer.build_posterior()
    tuned = baselines.MFNPE(foreign).fit(*pairs, **QUIET)
    draws = tuned.sample((50,), x=Y, seed=0)
    assert not torch.equal(draws, baselines.NPE(foreign).fit().sample((50,), x=Y, seed=0))
    path = tuned.save(tmp_path / "run.fmcpe")
    with pytest.raises(ValueError, match="posterior="):
        fmcpe.load(path)
    assert torch.equal(fmcpe.load(path, posterior=foreign).sample((50,), x=Y, seed=0), draws)
    assert not torch.equal(baselines.NPE(foreign).fit().sample((50,), x=Y, seed=0), draws)
    other = fmcpe.train_npe(simulate, PRIOR, 200, max_num_epochs=1, **QUIET)
    with pytest.raises(ValueError, match="unlike the one"):
        fmcpe.load(path, posterior=other)


def test_mfnpe_refuses_what_cannot_be_trained():
    with pytest.raises(TypeError, match="train_npe"):
        baselines.MFNPE(lambda x: x[:, :2], PRIOR)


# ------------------------------------------------------------------ NNPE and J-NPE


def test_spike_and_slab_has_the_law_it_says():
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 10.0])
    noise = SpikeAndSlab(0.3, 0.05, 0.5)(torch.zeros(100_000, 2), scale) / scale
    for t in (0.01, 0.05, 0.2, 1.0, 5.0):
        expected = 0.7 * math.erfc(t / 0.05 / math.sqrt(2)) + 0.3 * (1 - 2 / math.pi * math.atan(t / 0.5))
        found = (noise.abs() > t).float().mean(0)
        assert float((found - expected).abs().max()) < 4.5 * math.sqrt(expected * (1 - expected) / 1e5)
    assert float(noise.abs().max()) <= 100.0
    with pytest.raises(ValueError, match="slab_probability"):
        SpikeAndSlab(1.5)


@pytest.mark.slow
def test_nnpe_is_wider_than_npe_by_as_much_as_the_noise_says():
    """The posterior given noisy data, by quadrature, against draws of NNPE."""
    task = tasks.get("offset", lam=0.0)
    noise = SpikeAndSlab(0.5, 0.01, 0.25)
    training = Training(max_num_epochs=10)
    posterior = baselines.NNPE(task.simulator, task.prior, 10_000, noise=noise, training=training).fit(**QUIET)
    theta, spread = torch.linspace(-5, 5, 2001), math.sqrt(1.09)
    x = torch.linspace(-8, 8, 4001)[:, None]
    for y in (-1.5, 0.0, 1.0):
        spike, slab = stats.norm.pdf(y - x, scale=0.01 * spread), stats.cauchy.pdf(y - x, scale=0.25 * spread)
        likelihood = torch.as_tensor(0.5 * spike + 0.5 * slab) * stats.norm.pdf(x - theta, scale=0.3)
        density = likelihood.sum(0) * torch.exp(-theta.double().square() / 2)
        density = density / density.sum()
        mean = float((density * theta).sum())
        std = float((density * (theta - mean).square()).sum().sqrt())
        assert std > 1.2 * 0.3 / spread  # that of NPE
        draws = posterior.sample((4000,), x=torch.tensor([y]), seed=0)
        assert float(draws.mean()) == pytest.approx(mean, abs=0.2 * std)
        assert float(draws.std()) == pytest.approx(std, rel=0.1)


def test_jnpe_without_pairs_is_npe(pairs):
    short = {"max_num_epochs": 2, "seed": 3, "show_progress_bars": False}
    npe = baselines.NPE(fmcpe.train_npe(simulate, PRIOR, 1000, **short)).fit()
    method = baselines.JNPE(simulate, PRIOR, 1000, training=Training(max_num_epochs=2))
    draws = npe.sample((50,), x=Y, seed=0)
    for none in ((), (torch.zeros(0, 2), torch.zeros(0, 3))):
        joint = method.fit(*none, seed=3, show_progress_bars=False)
        assert torch.equal(joint.sample((50,), x=Y, seed=0), draws)
        assert joint.num_pairs == 0
    assert not torch.equal(method.fit(*pairs, seed=3, show_progress_bars=False).sample((50,), x=Y, seed=0), draws)


def test_jnpe_hears_pairs_by_their_weight():
    """Pairs say one thing and as many simulations another: the posterior at y follows the weight."""
    task = tasks.get("offset", lam=3.0)
    theta, y = task.calibration_set(300, 0)
    torch.manual_seed(0)
    parameters = task.prior.sample((1500,))
    given = {
        "simulations": (parameters, task.simulator(parameters)),
        "training": Training(max_num_epochs=12, training_batch_size=200),
    }
    value = {}
    for weight in (1.0, 100.0):
        posterior = baselines.JNPE(prior=task.prior, pair_weight=weight, **given).fit(theta, y, **QUIET)
        draws = posterior.sample_batched((50,), x=y, seed=0, show_progress_bars=False)
        value[weight] = float((draws - theta).square().mean())
    # alone at y, the pairs' posterior has variance 2 * 0.083; what simulations say there is off by λ / 1.09
    assert value[100.0] < value[1.0]
    assert value[100.0] < 0.5


def test_simulations_on_demand_serve_both(pairs, monkeypatch):
    """Simulations that do not fit into memory are run again for each minibatch, pairs among them or not."""
    monkeypatch.setattr("fmcpe.npe._MAX_BYTES", 100)
    calls = []

    def counted(theta):
        calls.append(len(theta))
        return simulate(theta)

    quick = Training(max_num_epochs=2)
    for method in (baselines.JNPE, baselines.NNPE):
        calls.clear()
        posterior = method(counted, PRIOR, 1000, training=quick).fit(*pairs, **QUIET)
        assert len(calls) > 5
        assert posterior.sample((5,), x=Y).shape == (5, 2)


# ------------------------------------------------------------------ doors and names


@pytest.mark.parametrize("cls", [baselines.NNPE, baselines.JNPE])
def test_simulation_trained_methods_say_what_they_need(cls):
    with pytest.raises(ValueError, match="prior"):
        cls(simulate)
    with pytest.raises(ValueError, match="simulations="):
        cls(prior=PRIOR).fit()


@pytest.mark.parametrize("option", [{"gamma": 0.0}, {"rho": -1.0}, {"num_targets": 0}])
def test_rope_refuses_settings_that_make_no_sense(base, option):
    with pytest.raises(ValueError, match="expected"):
        baselines.RoPE(base, simulate, **option)


@pytest.mark.parametrize("cls", ["dpe", "mf-npe", "rope", "j-npe"])
def test_wrong_pairs_are_refused(base, cls):
    method = {
        "dpe": lambda: baselines.DPE(PRIOR),
        "mf-npe": lambda: baselines.MFNPE(base),
        "rope": lambda: baselines.RoPE(base, simulate, num_simulations=100),
        "j-npe": lambda: baselines.JNPE(simulate, PRIOR, 200, training=SHORT),
    }[cls]()
    theta = PRIOR.sample((12,))
    for wrong_theta, wrong_y in (
        (theta[:5], observe(theta)),
        (theta + 100, observe(theta)),
        (theta[:1], observe(theta[:1])),
        (theta, torch.full((12, 3), float("nan"))),
    ):
        with pytest.raises(ValueError, match=r"expected|at least"):
            method.fit(wrong_theta, wrong_y, **QUIET)


def test_every_method_of_the_benchmarks_has_its_name():
    ablations = ["fmcpe", "fmcpe-sequential", "fmcpe-x-only", "fmcpe-theta-only", "fmcpe-paper"]
    assert list(METHODS) == ["npe", "dpe", "mf-npe", "rope", "nnpe", "j-npe", *ablations]
    task = tasks.get("offset")
    base = fmcpe.train_npe(task.simulator, task.prior, 500, max_num_epochs=1, **QUIET)
    theta = task.prior.sample((400,))
    simulations = theta, task.simulator(theta)
    pairs, made = task.calibration_set(12, 0), {name: METHODS[name](base, task, simulations) for name in METHODS}
    assert all(callable(method.fit) for method in made.values())
    for name in ("npe", "rope"):  # the others train for a while, and have tests of their own
        assert made[name].fit(*pairs, **QUIET).sample((3,), x=torch.zeros(1)).shape == (3, 1)
    assert made["rope"].simulations[1].shape == (400, 1)
    assert made["nnpe"].simulations is made["j-npe"].simulations is simulations
    # simulations have a prior of their own: nothing may be simulated from the other one
    shifted = tasks.get("gaussian-prior", delta=50.0)
    pool = METHODS["rope"](lambda x: x[:, :3], shifted, None).simulations[0]
    assert float((pool.mean(0) - shifted.simulation_prior.mean).abs().max()) < 1.0
    for stages in ("sequential", "x-only", "theta-only"):
        assert METHODS[f"fmcpe-{stages}"](base, task, None).stages == stages
    assert METHODS["fmcpe-paper"](base, task, None).recipe == fmcpe.Recipe.paper()
