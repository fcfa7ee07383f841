"""Baselines on the Gaussian task, where every posterior is exact: what their theory says, in three parameters and ten numbers.

RoPE's limits are in test_rope.
"""

from dataclasses import replace

import pytest
import torch

import fmcpe
from fmcpe import baselines, tasks
from fmcpe.base_posteriors.npe import FlowSize
from fmcpe.baselines import SpikeAndSlab
from fmcpe.nn.training import Training
from fmcpe.tasks.gaussian import Gaussian, _draw_matrices

QUIET = {"seed": 0, "show_progress_bars": False}
TASK = tasks.get("gaussian")
SMALL = FlowSize(hidden_features=32, num_transforms=2, num_bins=5)
BRIEF = Training(max_num_epochs=6, training_batch_size=256)


@pytest.fixture(scope="module")
def simulations():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theta = TASK.prior.sample((6000,))
        return theta, TASK.simulator(theta)


@pytest.fixture(scope="module")
def base(simulations):
    return fmcpe.train_npe(
        None, TASK.prior, simulations=simulations, flow=SMALL, max_num_epochs=6, training_batch_size=256, **QUIET
    )


@pytest.fixture(scope="module")
def simulated():
    """Two hundred simulations that nothing was trained on."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return TASK.simulator(TASK.prior.sample((200,)))


def answers(posterior, data):
    """Mean and spread of the posterior of each observation, (B, 3) each."""
    draws = posterior.sample_batched((400,), x=data, seed=0, show_progress_bars=False)
    return draws.mean(0), draws.std(0)


def exact(task, data, side):
    """The same of the exact posterior."""
    each = [task.reference_posterior(row, side) for row in data]
    return torch.stack([e.mean for e in each]).float(), each[0].cov.diagonal().sqrt().float()


def apart(a, b, std):
    """Root mean square difference of two sets of posterior means, in posterior deviations."""
    return float(((a - b) / std).square().mean().sqrt())


@pytest.mark.slow
def test_with_many_pairs_mfnpe_approaches_dpe_and_both_the_truth(base):
    y = TASK.test_set(200, 0)[1]
    mean, std = exact(TASK, y, "real")
    theta_cal, y_cal = TASK.calibration_set(1000, 0)
    cycle = Training(max_num_epochs=20, training_batch_size=100, learning_rate=1e-2, validation_fraction=0.2)
    methods = {
        "dpe": baselines.DPE(TASK.prior, flow=SMALL, training=cycle),
        "mf-npe": baselines.MFNPE(base, training=replace(cycle, keep_start=True)),
    }
    # the base posterior's own answer at y has nothing to do with the truth
    assert apart(answers(baselines.NPE(base).fit(), y)[0], mean, std) > 3
    between = {}
    for size in (50, 1000):
        found = {name: answers(m.fit(theta_cal[:size], y_cal[:size], **QUIET), y) for name, m in methods.items()}
        between[size] = apart(found["dpe"][0], found["mf-npe"][0], std)
    assert between[50] > 0.9
    assert between[1000] < 0.6
    # 800 pairs tell a linear map of ten numbers to √(11 / 800) = 0.12 deviations; a flow in 20 epochs, to four times that
    for name, (found_mean, found_std) in found.items():
        assert apart(found_mean, mean, std) < 0.6, name
        assert torch.allclose(found_std.mean(0) / std, torch.ones(3), atol=0.2), name


@pytest.mark.slow
def test_nnpe_is_wider_than_npe_by_as_much_as_the_noise_says(base, simulations, simulated):
    """With a normal spike alone, the posterior given noisy data is exact: that of a Gaussian task with more noise."""
    noise = SpikeAndSlab(slab_probability=0.0, spike=0.5)
    method = baselines.NNPE(prior=TASK.prior, simulations=simulations, noise=noise, flow=SMALL, training=BRIEF)
    mean, std = answers(method.fit(**QUIET), simulated)
    matrices = _draw_matrices(0)
    added = torch.diag((0.5 * simulations[1][:5000].std(0).double()).square())
    noisy = Gaussian(matrices=matrices | {"lik_cov": matrices["lik_cov"] + added})
    exact_mean, exact_std = exact(noisy, simulated, "simulator")
    assert bool((exact_std > 1.3 * exact(TASK, simulated, "simulator")[1]).all())
    assert apart(mean, exact_mean, exact_std) < 0.3  # 400 draws are off by 0.05
    assert torch.allclose(std.mean(0) / exact_std, torch.ones(3), atol=0.2)
    assert bool((std.mean(0) > 1.15 * answers(baselines.NPE(base).fit(), simulated)[1].mean(0)).all())


@pytest.mark.slow
def test_nnpe_with_its_default_noise_is_wider_than_npe(base, simulations, simulated):
    method = baselines.NNPE(prior=TASK.prior, simulations=simulations, flow=SMALL, training=BRIEF)
    wide, narrow = answers(method.fit(**QUIET), simulated)[1], answers(baselines.NPE(base).fit(), simulated)[1]
    assert bool((wide.mean(0) > 1.15 * narrow.mean(0)).all())
    assert float((wide > narrow).float().mean()) > 0.8  # for most observations, not for a few by much


@pytest.mark.parametrize("name", ["gaussian", "offset"])
def test_jnpe_without_pairs_is_npe(name):
    task = tasks.get(name)
    y = task.test_set(5, 0)[1]
    base = fmcpe.train_npe(task.simulator, task.prior, 1000, max_num_epochs=2, **QUIET)
    method = baselines.JNPE(task.simulator, task.prior, 1000, training=Training(max_num_epochs=2))
    expected = baselines.NPE(base).fit().sample_batched((20,), x=y, seed=0)
    assert torch.equal(method.fit(**QUIET).sample_batched((20,), x=y, seed=0), expected)
    heard = method.fit(*task.calibration_set(20, 0), **QUIET).sample_batched((20,), x=y, seed=0)
    assert not torch.equal(heard, expected)
