"""Scores of draws against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fmcpe import metrics

NORMAL = torch.distributions.Normal(0.0, 1.0)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_energy_score_is_the_crps_of_a_gaussian() -> None:
    theta = torch.tensor([[0.0], [1.0], [-2.5]])
    z = theta / 2.0
    crps = 2.0 * (z * (2 * NORMAL.cdf(z) - 1) + 2 * NORMAL.log_prob(z).exp() - math.pi**-0.5)
    values = metrics.energy_score(2.0 * normal(0, 4000, 3, 1), theta, reduce=False)
    assert torch.allclose(values, crps[:, 0].double(), atol=0.06)
    assert metrics.energy_score(2.0 * normal(0, 4000, 3, 1), theta) == pytest.approx(float(values.mean()))


def test_energy_score_does_not_depend_on_the_number_of_draws() -> None:
    theta = normal(0, 40_000, 1)
    few, many = (
        metrics.energy_score(normal(1, 2, 40_000, 1), theta),
        metrics.energy_score(normal(2, 20, 40_000, 1), theta),
    )
    exact = math.pi**-0.5  # E|X - θ| - ½E|X - X'| with everything standard normal: half of 2/√π
    assert few == pytest.approx(exact, abs=0.015)
    assert many == pytest.approx(exact, abs=0.015)


def test_energy_score_is_best_for_the_truth_and_survives_a_large_offset() -> None:
    theta = normal(0, 500, 2)
    scores = [metrics.energy_score(width * normal(1, 200, 500, 2), theta) for width in (0.5, 1.0, 2.0)]
    assert scores[1] == min(scores)
    far = metrics.energy_score(1e6 + normal(1, 200, 500, 2), 1e6 + theta)
    assert far == pytest.approx(scores[1], abs=1e-6)


def test_scores_in_blocks_are_the_same() -> None:
    samples, theta = normal(0, 30, 7, 2), normal(1, 7, 2)
    whole = metrics.energy_score(samples, theta)
    assert metrics.energy_score(samples, theta, max_entries=1) == pytest.approx(whole, rel=1e-12)
    whole = metrics.mmd2(theta.numpy(), samples[0].numpy())
    assert metrics.mmd2(theta, samples[0], max_entries=1) == pytest.approx(whole, rel=1e-12)


def test_mse_sums_over_parameters_and_averages_the_rest() -> None:
    samples = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]])
    assert metrics.mse(samples, torch.zeros(1, 2)) == pytest.approx((5 + 9) / 2)
