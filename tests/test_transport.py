"""Semi-balanced transport: against POT, and against the conditions that define the optimum."""

import warnings

import numpy as np
import ot
import pytest
import torch

from fmcpe import FMCPEWarning
from fmcpe.baselines.semi_balanced import relative_costs, semi_balanced_rows

INF = float("inf")


@pytest.fixture(scope="module")
def cost():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = 0.5 + 1.3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    distances = (y[:, None] - x).square().sum(-1)
    return distances / distances.mean()


def test_relative_costs_are_distances_up_to_a_number_for_each_row():
    """Also for observations a million spreads away, in single precision."""
    a, b = torch.randn(5, 3) + 1000, torch.randn(7, 3) + 1000
    a[0] += 1e4
    direct = (a[:, None].double() - b.double()).square().sum(-1)
    difference = direct - relative_costs(a, b).double()
    error = difference - difference.mean(1, keepdim=True)
    assert float(error[1:].abs().max()) < 1e-2
    assert float(error[0].abs().max()) < 1e-6 * 1e4 * 3 * 10  # rounding of |a||b|, not of |a|²


@pytest.mark.parametrize(("gamma", "rho"), [(0.1, 0.1), (0.05, 0.5), (0.5, 5.0), (0.1, INF), (1.0, 0.01)])
def test_the_plan_is_that_of_pot(cost, gamma, rho):
    n, size = cost.shape
    rows = semi_balanced_rows(cost, gamma, rho, tolerance=1e-10)
    plan = ot.unbalanced.sinkhorn_unbalanced(
        np.full(n, 1 / n), np.full(size, 1 / size), cost.numpy(), gamma, (INF, rho),
        method="sinkhorn_stabilized", numItermax=100_000, stopThr=1e-13,
    )  # fmt: skip
    assert torch.allclose(rows / n, torch.as_tensor(plan), atol=1e-9)


@pytest.mark.parametrize(("gamma", "rho"), [(0.02, 0.1), (0.005, 0.05), (0.02, INF), (0.3, 0.3)])
def test_the_plan_is_optimal(cost, gamma, rho):
    """Rows exact; γ log P/(u v) + C a sum of a row part and a column part; the latter is -ρ log(column mass / v).

    POT's solver stops with a warning for the smaller γ of these.
    """
    n, size = cost.shape
    rows = semi_balanced_rows(cost, gamma, rho, tolerance=1e-10, max_iterations=100_000)
    assert torch.allclose(rows.sum(1), torch.ones(n, dtype=rows.dtype))
    mass = rows.sum(0) * size / n  # over v
    potentials = gamma * rows.clamp_min(1e-300).log() + cost
    seen = rows > 1e-250
    centred = torch.where(seen, potentials, torch.nan)
    column = centred - centred.nanmean(1, keepdim=True)
    if rho == INF:
        assert torch.allclose(mass, torch.ones_like(mass), atol=1e-6)
    else:
        expected = torch.where(seen, (-rho * mass.log()).expand_as(column), torch.nan)
        expected = expected - expected.nanmean(1, keepdim=True)
        assert torch.allclose(column[seen], expected[seen], atol=1e-6)


def test_single_precision_and_the_default_tolerance_are_enough(cost):
    for gamma, rho in ((0.1, 0.1), (0.02, 0.2), (0.005, 0.05), (0.05, INF)):
        exact = semi_balanced_rows(cost, gamma, rho, tolerance=1e-10, max_iterations=100_000)
        rough = semi_balanced_rows(cost.float(), gamma, rho)
        assert float((rough - exact).abs().sum(1).max()) < 0.02  # of a total of 1 in each row


def test_limits(cost):
    nearest = semi_balanced_rows(cost, 1e-6, 0.0)
    assert torch.equal(nearest.argmax(1), cost.argmin(1))
    assert float(nearest.amax(1).min()) > 0.99
    flat = semi_balanced_rows(cost, 1e4, 1e4)
    assert torch.allclose(flat, torch.full_like(flat, 1 / 60), rtol=1e-3)


def test_what_is_added_to_a_row_does_not_matter(cost):
    """Costs of a million γ: every entry of a row underflows unless it is normalised first."""
    far = cost + torch.linspace(0, 1e4, 40, dtype=cost.dtype)[:, None]
    assert torch.allclose(semi_balanced_rows(far, 0.01, 0.1), semi_balanced_rows(cost, 0.01, 0.1), atol=1e-6)


def test_it_says_when_it_has_not_settled(cost):
    with pytest.warns(FMCPEWarning, match=r"^Expected .+ 3 iterations, got an error of .+\. Try a larger gamma"):
        semi_balanced_rows(cost, 0.001, INF, max_iterations=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        semi_balanced_rows(cost, 0.1, 0.1)
