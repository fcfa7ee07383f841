"""The pendulum's reference posterior against importance sampling, at the corners of its prior, and when it is poor."""

from __future__ import annotations

import math

import pytest
import torch

from fmcpe import tasks
from fmcpe._errors import FMCPEWarning
from fmcpe._random import derive, seeded

SIDES = ("real", "simulator")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("truth", [(0.4, 1.0), (2.0, 2.5)])
def test_pendulum_reference_against_importance_sampling(side, truth):
    """With large noise the prior is a fair proposal: weigh its draws by the likelihood as the model is written."""
    task = tasks.get("pendulum", amplitude_range=(0.5, 3.0), noise_std=2.0)
    n = 100_000
    with seeded(derive(2, side, str(truth))):
        y = task.observe(torch.tensor([truth]))[0]
        theta, phase = task.prior.sample((n,)), 2 * math.pi * torch.rand(n, 1)
        alpha = torch.rand(n, 1) if side == "real" else torch.zeros(n, 1)
    residual = torch.exp(-alpha * task.times) * theta[:, 1:] * torch.cos(theta[:, :1] * task.times + phase) - y
    weights = torch.softmax(-(residual.double() ** 2).sum(1) / (2 * task.noise_std**2), 0)
    draws = task.reference_posterior(y, side=side).sample((20_000,), seed=0).double()
    error = 5 * math.sqrt(float((weights**2).sum()) + 1 / 20_000)
    for moment in (lambda t: t, torch.square, lambda t: t[:, :1] * t[:, 1:], torch.log):
        expected = weights @ moment(theta.double())
        scale = (weights @ (moment(theta.double()) - expected) ** 2).sqrt()
        assert ((moment(draws).mean(0) - expected).abs() < error * scale).all()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("omega", [0.0, 0.02, 3.0])
@pytest.mark.parametrize("amplitude", [0.5, 10.0])
@pytest.mark.parametrize("damping", [0.0, 1.0])
def test_pendulum_reference_at_the_corners(side, omega, amplitude, damping):
    """The truth of a corner is inside the draws, and the weights are healthy."""
    task = tasks.get("pendulum")
    decay = torch.exp(-damping * task.times) if side == "real" else 1.0
    with seeded(derive(0, str(omega), str(amplitude), str(damping))):
        y = decay * amplitude * torch.cos(omega * task.times + 1.0) + 0.1 * torch.randn(200)
    reference = task.reference_posterior(y, side=side)
    draws = reference.sample((1000,), seed=0)
    assert reference.ess > 0.2
    assert task.prior.support.check(draws).all()
    low, high = draws.amin(0), draws.amax(0)
    middle, reach = (low + high) / 2, 0.7 * (high - low)
    assert ((torch.tensor([omega, amplitude]) - middle).abs() <= reach).all()


def test_pendulum_reference_owns_up_to_poor_weights_and_to_no_density(monkeypatch):
    monkeypatch.setattr("fmcpe.tasks.pendulum_reference._MAX_CELLS", 1)
    task = tasks.get("pendulum")
    _, y = task.test_set(1, seed=0)
    with pytest.warns(FMCPEWarning, match="effective sample size"):
        reference = task.reference_posterior(y)
    with pytest.raises(NotImplementedError, match="sample"):
        reference.log_prob(task.prior.sample((2,)))
