"""Kernel densities in plots: reflected at the prior's bounds, with no mass outside."""

import numpy as np
import pytest
import torch
from sbi.utils import BoxUniform, MultipleIndependent
from scipy import stats
from torch.distributions import Exponential, Independent, LogNormal, MultivariateNormal, Normal

from fmcpe.diagnostics import plots
from fmcpe.diagnostics.density import as_bounds, bounds_of, reflected_kde

INF = float("inf")


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (BoxUniform(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])), [(-2, 2), (0, 1)]),
        (MultivariateNormal(torch.zeros(2), torch.eye(2)), [(-INF, INF)] * 2),
        (Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1), [(0, INF)] * 2),
        (
            MultipleIndependent([Normal(torch.zeros(1), torch.ones(1)), Exponential(torch.ones(1))]),
            [(-INF, INF), (0, INF)],
        ),
    ],
)
def test_bounds_of_priors(prior, expected):
    assert bounds_of(prior) == expected


def test_mass_stays_inside_and_does_not_bend_at_the_bound():
    """Uniform draws on [0, 1]: no mass outside, all of it inside, and a flat density at the bound."""
    draws = np.random.default_rng(0).uniform(size=(2000, 1))
    density = reflected_kde(draws, [(0.0, 1.0)])
    grid = np.linspace(-0.5, 1.5, 4001)
    values, width = density(grid), grid[1] - grid[0]
    outside = (grid < 0) | (grid > 1)
    assert values[outside].sum() == 0
    assert abs(values.sum() * width - 1) < 0.01
    assert abs(values[np.argmin(np.abs(grid - 0.001))] - 1) < 0.15
    # the plain one puts a tenth of the mass of this bandwidth outside, and halves at the bound
    plain = stats.gaussian_kde(draws.T)(grid)
    assert plain[outside].sum() * width > 0.03 and plain[np.argmin(np.abs(grid))] < 0.6


def test_two_parameters_and_one_sided_bounds():
    generator = np.random.default_rng(1)
    draws = np.stack([generator.exponential(size=500), generator.uniform(size=500)], axis=1)
    density = reflected_kde(draws, [(0.0, INF), (0.0, 1.0)])
    a, b = np.meshgrid(-2 + 0.1 * (np.arange(140) + 0.5), -0.5 + 0.05 * (np.arange(40) + 0.5))
    values = density(np.stack([a.ravel(), b.ravel()]))
    inside = ((a >= 0) & (b >= 0) & (b <= 1)).ravel()
    assert values[~inside].sum() == 0
    assert abs(values.sum() * 0.1 * 0.05 - 1) < 0.03


def test_corner_draws_nothing_outside_the_prior():
    torch.manual_seed(0)
    prior = BoxUniform(torch.zeros(2), torch.tensor([1.0, 3.0]))
    figure = plots.corner({"a": prior.sample((500,)), "b": 0.3 * prior.sample((500,))}, names=("u", "v"), bounds=prior)
    low, high = np.zeros(2), np.array([1.0, 3.0])
    grid = figure.get_axes()
    lines = [line.get_xdata() for k in (0, 3) for line in grid[k].get_lines()]
    assert all(low[0] - 1e-9 <= x.min() and x.max() <= high[0] + 1e-9 for x in lines[:2])
    vertices = np.concatenate([path.vertices for c in grid[2].collections for path in c.get_paths() if len(path)])
    assert (vertices >= low - 1e-6).all() and (vertices <= high + 1e-6).all()
    free = plots.corner({"a": prior.sample((500,))})
    assert free.get_axes()[0].get_lines()[0].get_xdata().min() < 0


def test_bounds_are_checked():
    assert as_bounds(None, 2) == [(-INF, INF)] * 2
    assert as_bounds([(0, None), (None, 1)], 2) == [(0, INF), (-INF, 1)]
    with pytest.raises(ValueError, match="bounds=prior"):
        as_bounds([(0, 1)], 2)
    with pytest.raises(ValueError, match="bounds=prior"):
        as_bounds([(1, 0)], 1)
