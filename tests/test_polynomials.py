"""Powers and their slopes, and the normals that draws are made of: against products, derivatives and scipy's densities."""

import pytest
import torch
from scipy.stats import multivariate_normal
from torch.autograd.functional import jacobian

from fmcpe.normals import Normals
from fmcpe.polynomials import Powers, count


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize(("numbers", "degree"), [(1, 3), (3, 1), (2, 2), (4, 3)])
def test_all_powers_and_their_slopes(numbers, degree):
    powers, u = Powers(numbers, degree), torch.randn(5, numbers, dtype=torch.float64)
    found = powers(u)
    assert found.shape == (5, count(numbers, degree)) and len(set(powers.terms)) == len(powers.terms)
    for column, term in enumerate(powers.terms):
        torch.testing.assert_close(found[:, column], u[:, list(term)].prod(1))
    assert all(len(a) <= len(b) for a, b in zip(powers.terms, powers.terms[1:], strict=False))
    with_constant = torch.cat([torch.ones(5, 1, dtype=u.dtype), found], dim=1)
    for row in range(5):
        exact = jacobian(lambda v: powers(v[None])[0], u[row])  # (F, p)
        torch.testing.assert_close((with_constant[row] @ powers.slopes().to(u)).T, exact)


def normals(number, dim):
    matrix = torch.randn(number, dim, dim)
    return Normals(torch.randn(number, dim), torch.linalg.cholesky(matrix @ matrix.mT + 0.3 * torch.eye(dim)))


def test_densities_are_scipys():
    some, z = normals(3, 2), torch.randn(7, 2)
    covariance = torch.linalg.inv(some.root @ some.root.mT)
    every = some.log_prob_of_all(z)
    for k in range(3):
        exact = torch.as_tensor(multivariate_normal(some.centre[k], covariance[k]).logpdf(z)).float()
        torch.testing.assert_close(every[:, k] - torch.log(torch.tensor(2 * torch.pi)), exact, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(some.log_prob(z[:3]), every[:3].diagonal(), atol=1e-4, rtol=1e-4)
    draws = some.away(torch.randn(20_000, 3, 2))
    torch.testing.assert_close(torch.cov(draws[:, 1].T), covariance[1], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("hold", [0.0, 0.5, 10.0])
def test_held_draws_keep_the_distribution(hold):
    """The law of detailed balance, pair by pair, and moments after a step; a long hold makes steps short."""
    one = normals(1, 2)
    some = Normals(one.centre.expand(40_000, -1), one.root.expand(40_000, -1, -1))
    z = some.sample()
    held = some.held(z, hold)
    moved = held.sample()
    there = some.held(moved, hold)
    ratio = some.log_prob(moved) - some.log_prob(z) + there.log_prob(z) - held.log_prob(moved)
    assert float(ratio.abs().max()) < 1e-2
    torch.testing.assert_close(moved.mean(0), one.centre[0], atol=0.05, rtol=0.0)
    torch.testing.assert_close(torch.cov(moved.T), torch.cov(z.T), atol=0.05, rtol=0.05)
    if hold == 10.0:
        assert float((moved - z).square().sum(1).mean()) < 0.5


def test_narrowed_normals_are_nowhere_wide():
    some = normals(4, 3)
    wide = torch.linalg.eigvalsh(torch.linalg.inv(some.root @ some.root.mT)).amax()
    root = some.narrowed(30.0).root
    narrow = torch.linalg.eigvalsh(torch.linalg.inv(root @ root.mT)).amax()
    assert float(narrow) < 1 / 30 < float(wide)
