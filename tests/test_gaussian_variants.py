"""`gaussian-prior` and `gaussian-ci`: what is shared, paired simulations, and Gaussians cut to a box."""

from __future__ import annotations

import math

import pytest
import torch

from fmcpe import tasks
from fmcpe.tasks.truncated_gaussian import TruncatedGaussian


def test_gaussian_prior_is_the_gaussian_task_with_other_simulations():
    task, plain = tasks.get("gaussian-prior"), tasks.get("gaussian")
    assert torch.equal(task.prior.loc, plain.prior.loc)
    assert torch.allclose(task.simulation_prior.loc, plain.prior.loc + 2)
    assert torch.allclose(task.simulation_prior.covariance_matrix, 3 * plain.prior.covariance_matrix, rtol=1e-4)
    _, y = plain.test_set(1, seed=0)
    means = [t.reference_posterior(y, side=side).mean for side in ("real", "simulator") for t in (task, plain)]
    assert torch.equal(means[0], means[1])
    assert not torch.allclose(means[2], means[3], atol=1e-2)


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_gaussian_ci_pairs_come_with_their_simulations(alpha):
    task = tasks.get("gaussian-ci", alpha=alpha)
    theta, y, x = task.calibration_set(300, seed=1, paired=True)
    assert all(torch.equal(a, b) for a, b in zip((theta, y), task.calibration_set(300, seed=1), strict=True))
    noise = y.double() - x.double() @ task._C.T - alpha * theta.double() @ task._D.T
    assert float(noise.std()) == pytest.approx(0.3, rel=0.05)
    assert float((x.double() - theta.double() @ task._A.T).std()) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("centre", [(0.5, 0.2), (0.9, -1.4), (6.0, -9.0)], ids=["inside", "edge", "far"])
@pytest.mark.parametrize("sampler", ["the one it chooses", "Gibbs"])
def test_truncated_gaussian_against_a_grid(centre, sampler, monkeypatch):
    """It rejects near the box and runs Gibbs chains far from it, where they have an easy time; so also near it."""
    if sampler == "Gibbs":
        monkeypatch.setattr("fmcpe.tasks.truncated_gaussian._MIN_ACCEPTED", 1.1)
    cov, corner = torch.tensor([[0.5, 0.48], [0.48, 0.6]], dtype=torch.float64), torch.ones(2)
    reference = TruncatedGaussian(torch.tensor(centre).double(), cov, -corner, corner)
    assert (reference.acceptance < 0.01) == (centre[0] == 6.0)
    axis = (torch.arange(1000, dtype=torch.float64) + 0.5) / 500 - 1
    grid = torch.cartesian_prod(axis, axis)
    density = reference.log_prob(grid).double().exp() / 500**2
    assert float(density.sum()) == pytest.approx(1, abs=5e-3)
    density /= density.sum()
    draws = reference.sample((20_000,), seed=0).double()
    for moment in (lambda t: t, torch.square, lambda t: t[:, :1] * t[:, 1:]):
        expected = density @ moment(grid)
        scale = (density @ (moment(grid) - expected) ** 2).sqrt()
        assert ((moment(draws).mean(0) - expected).abs() < 5 / math.sqrt(20_000) * scale).all()
    assert torch.isneginf(reference.log_prob(torch.tensor([[1.1, 0.0]]))).all()
