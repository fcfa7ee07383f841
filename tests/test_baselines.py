"""Each baseline does what its theory says, on problems with exact posteriors; RoPE is in test_rope."""

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
from fmcpe import baselines, tasks
from fmcpe.base_posteriors import npe
from fmcpe.baselines import SpikeAndSlab
from fmcpe.bench.methods import METHODS
from fmcpe.bench.plan import ROBUST
from fmcpe.nn.training import Training

Y = torch.tensor([1.0, 0.5, 1.2])
QUIET = {"seed": 0, "show_progress_bars": False}


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
    assert posterior.record.num_pairs == 10
    losses = posterior.record.history["validation_loss"]
    assert losses.index(min(losses)) >= len(losses) - 1 - baselines.dpe.FEW_PAIRS.stop_after_epochs


def test_mfnpe_starts_from_the_base_and_leaves_it_alone(base, pairs):
    before = [weight.clone() for weight in base.posterior_estimator.parameters()]
    tuned = baselines.MFNPE(base).fit(*pairs, **QUIET)
    assert all(torch.equal(a, b) for a, b in zip(before, base.posterior_estimator.parameters(), strict=True))
    losses = tuned.record.history["validation_loss"]
    assert min(losses) < tuned.record.history["start_loss"][0]
    # a rate too high for anything but harm: the start is kept
    wild = Training(2, 100, 50.0, 0.2, 5, 1e9, one_cycle=False, keep_start=True)
    kept = baselines.MFNPE(base, training=wild).fit(*pairs, **QUIET)
    assert torch.equal(kept.sample((5,), x=Y, seed=0), baselines.NPE(base).fit().sample((5,), x=Y, seed=0))


def test_mfnpe_tunes_the_embedding_too(base_with_embedding, pairs):
    tuned = baselines.MFNPE(base_with_embedding).fit(*pairs, **QUIET).inner.base.estimator
    before = dict(base_with_embedding.posterior_estimator.embedding_net.named_parameters())
    moved = [not torch.equal(value, before[name]) for name, value in tuned.embedding_net.named_parameters()]
    assert moved and all(moved)


def test_jnpe_never_distorts_its_pairs(monkeypatch):
    """What is distorted in training is simulated: pairs are marked by a value that no simulation has."""
    distorted = []
    monkeypatch.setattr(npe, "distort", lambda x, level, scale: distorted.append((x[:, 0] > 50, level[:, 0])) or x)
    theta = PRIOR.sample((40,))
    net = torch.nn.Linear(3, 2)
    brief = Training(max_num_epochs=2)
    baselines.JNPE(simulate, PRIOR, 400, net, training=brief).fit(theta, simulate(theta) + 100.0, **QUIET)
    real, level = (torch.cat(part) for part in zip(*distorted, strict=True))
    assert real.any() and (level[real] == 0).all()
    assert (level[~real] > 0).float().mean() > 0.5


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
    assert torch.equal(fmcpe.load(path).sample((50,), x=Y, seed=0), draws)  # the file describes the estimator
    assert torch.equal(fmcpe.load(path, posterior=foreign).sample((50,), x=Y, seed=0), draws)
    assert not torch.equal(baselines.NPE(foreign).fit().sample((50,), x=Y, seed=0), draws)
    other = fmcpe.train_npe(simulate, PRIOR, 200, max_num_epochs=1, **QUIET)
    with pytest.raises(ValueError, match="another network"):
        fmcpe.load(path, posterior=other)


def test_mfnpe_refuses_what_cannot_be_trained():
    with pytest.raises(TypeError, match=r"^Expected an sbi DirectPosterior.+, got a function\. Train one .*train_npe"):
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
    with pytest.raises(ValueError, match=r"^Expected .+, got slab_probability=1\.5\. Try slab_probability=0\.1"):
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


def test_jnpe_without_pairs_is_npe_with_an_embedding_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))
    base = fmcpe.train_npe(simulate, PRIOR, 1000, net, seed=3, max_num_epochs=2, show_progress_bars=False)
    method = baselines.JNPE(simulate, PRIOR, 1000, net, training=Training(max_num_epochs=2))
    joint = method.fit(seed=3, show_progress_bars=False)
    assert torch.equal(joint.sample((50,), x=Y, seed=0), baselines.NPE(base).fit().sample((50,), x=Y, seed=0))


def test_jnpe_without_pairs_is_npe(pairs):
    short = {"max_num_epochs": 2, "seed": 3, "show_progress_bars": False}
    npe = baselines.NPE(fmcpe.train_npe(simulate, PRIOR, 1000, **short)).fit()
    method = baselines.JNPE(simulate, PRIOR, 1000, training=Training(max_num_epochs=2))
    draws = npe.sample((50,), x=Y, seed=0)
    for none in ((), (torch.zeros(0, 2), torch.zeros(0, 3))):
        joint = method.fit(*none, seed=3, show_progress_bars=False)
        assert torch.equal(joint.sample((50,), x=Y, seed=0), draws)
        assert joint.record.num_pairs == 0
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
    monkeypatch.setattr("fmcpe.base_posteriors.npe.SimulationsOnDemand.max_bytes", 100)
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


@pytest.mark.parametrize("cls", [baselines.NNPE, baselines.NPERS, baselines.JNPE])
def test_simulation_trained_methods_say_what_they_need(cls):
    with pytest.raises(ValueError, match=r"^Expected the prior .+, got prior=None\. Call \w+\(simulator, prior\)"):
        cls(simulate)
    with pytest.raises(ValueError, match="simulations="):
        cls(prior=PRIOR).fit(**{"y": torch.zeros(5, 3)} if cls is baselines.NPERS else {})


@pytest.mark.parametrize("kind", ["dpe", "mf-npe", "rope", "frisbi", "rnpe", "rsnl", "nnpe", "npe-rs", "j-npe"])
def test_seeded_fits_repeat_and_leave_the_generators_alone(base_with_embedding, pairs, kind):
    brief = Training(max_num_epochs=2, one_cycle=False)
    method = {
        "dpe": lambda: baselines.DPE(PRIOR, training=brief),
        "mf-npe": lambda: baselines.MFNPE(base_with_embedding, training=brief),
        "rope": lambda: baselines.RoPE(base_with_embedding, simulate, num_simulations=100, training=brief),
        "frisbi": lambda: baselines.FRISBI(base_with_embedding, simulate, num_simulations=100, training=brief),
        "rnpe": lambda: baselines.RNPE(base_with_embedding, simulate, num_simulations=200),
        "rsnl": lambda: baselines.RSNL(base_with_embedding, simulate, num_simulations=200, training=brief),
        "nnpe": lambda: baselines.NNPE(simulate, PRIOR, 200, training=brief),
        "npe-rs": lambda: baselines.NPERS(simulate, PRIOR, 200, training=brief),
        "j-npe": lambda: baselines.JNPE(simulate, PRIOR, 200, training=brief),
    }[kind]()
    torch.manual_seed(7)
    np.random.seed(7)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    draws = [method.fit(*pairs, seed=s, show_progress_bars=False).sample((20,), x=Y, seed=0) for s in (3, 3, 4)]
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("cls", ["dpe", "mf-npe", "rope", "frisbi", "j-npe"])
def test_wrong_pairs_are_refused(base, cls):
    method = {
        "dpe": lambda: baselines.DPE(PRIOR),
        "mf-npe": lambda: baselines.MFNPE(base),
        "rope": lambda: baselines.RoPE(base, simulate, num_simulations=100),
        "frisbi": lambda: baselines.FRISBI(base, simulate, num_simulations=100),
        "j-npe": lambda: baselines.JNPE(simulate, PRIOR, 200, training=SHORT),
    }[cls]()
    theta = PRIOR.sample((12,))
    for wrong_theta, wrong_y in (
        (theta[:5], observe(theta)),
        (theta + 100, observe(theta)),
        (theta[:1], observe(theta[:1])),
        (theta, torch.full((12, 3), float("nan"))),
    ):
        with pytest.raises(ValueError, match=r"^Expected .+, got .+\. [A-Z]"):
            method.fit(wrong_theta, wrong_y, **QUIET)


@pytest.mark.parametrize("cls", ["dpe", "mf-npe", "rope", "frisbi", "j-npe"])
@pytest.mark.parametrize("missing", ["theta", "y"])
def test_half_of_the_pairs_is_refused(base, pairs, cls, missing):
    def simulator(theta):
        raise AssertionError("simulated before the pairs were looked at")

    method = {
        "dpe": lambda: baselines.DPE(PRIOR),
        "mf-npe": lambda: baselines.MFNPE(base),
        "rope": lambda: baselines.RoPE(base, simulator),
        "frisbi": lambda: baselines.FRISBI(base, simulator),
        "j-npe": lambda: baselines.JNPE(simulator, PRIOR),
    }[cls]()
    given = {"theta": pairs[0], "y": pairs[1]} | {missing: None}
    with pytest.raises(ValueError, match=rf"^Expected calibration pairs.+got no {missing}\. .+fit\(theta, y\)"):
        method.fit(**given, **QUIET)


def test_jnpe_refuses_pairs_without_rows_on_one_side(pairs):
    method = baselines.JNPE(simulate, PRIOR, 200, training=SHORT)
    for theta, y in ((torch.zeros(0, 2), pairs[1]), (pairs[0], torch.zeros(0, 3))):
        with pytest.raises(ValueError, match="one row of y per row of theta"):
            method.fit(theta, y, **QUIET)


def test_every_method_of_the_benchmarks_has_its_name():
    stages = ["sequential", "x-only", "theta-only"]
    ablations = ["fmcpe", "fmcpe-paper", *(f"fmcpe-paper-{name}" for name in stages)]
    assert list(METHODS) == ["npe", "npe-randomised", "dpe", "mf-npe", "rope", "nnpe", "j-npe", *ROBUST, *ablations]
    task = tasks.get("offset")
    base = fmcpe.train_npe(task.simulator, task.prior, 500, max_num_epochs=1, **QUIET)
    theta = task.prior.sample((400,))
    simulations = theta, task.simulator(theta)
    pairs, made = task.calibration_set(12, 0), {name: METHODS[name](base, task, simulations) for name in METHODS}
    assert all(callable(method.fit) for method in made.values())
    for name in ("npe", "rope", "frisbi", "rnpe", "rsnl"):  # the others train for a while, and have tests of their own
        assert made[name].fit(*pairs, **QUIET).sample((3,), x=torch.zeros(1)).shape == (3, 1)
    assert made["rope"].simulations[1].shape == (400, 1)
    assert made["nnpe"].simulations is made["npe-rs"].simulations is made["j-npe"].simulations is simulations
    # simulations have a prior of their own: nothing may be simulated from the other one
    shifted = tasks.get("gaussian-prior", delta=50.0)
    pool = METHODS["rope"](lambda x: x[:, :3], shifted, None).simulations[0]
    assert float((pool.mean(0) - shifted.simulation_prior.mean).abs().max()) < 1.0
    for name in stages:
        assert METHODS[f"fmcpe-paper-{name}"](base, task, None).recipe.stages == name
    assert METHODS["fmcpe-paper"](base, task, None).recipe == fmcpe.Paper()
