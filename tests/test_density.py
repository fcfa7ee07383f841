"""log_prob against truth: integrals, exact Gaussian posteriors, histograms of draws."""

import math

import pytest
import torch
from conftest import CANDIDATES, KINDS, PRIOR
from torch import nn
from torch.distributions import MultivariateNormal

from fmcpe import tasks
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates.base import Remembered, Shared, Transported, _components
from fmcpe.candidates.joint_flow import JointFlowed
from fmcpe.flows.solvers import Solver
from fmcpe.posterior import CorrectedPosterior
from fmcpe.record import Record
from fmcpe.search import cross_entropy_search
from fmcpe.spaces import ParameterSpace, Standardiser

Y = torch.tensor([1.0, 0.5, 1.2])


def grid(n):
    """Midpoints of an n by n grid over the prior's box, and the area of a cell."""
    u = (torch.arange(n) + 0.5) / n
    a, b = torch.meshgrid(-2 + 4 * u, u, indexing="ij")
    return torch.stack([a.flatten(), b.flatten()], dim=1), 4 / n**2


@pytest.mark.parametrize("kind", [*KINDS])
def test_density_integrates_to_one(posteriors, kind):
    theta, cell = grid(40)
    log_prob = posteriors(kind).log_prob(theta, x=Y)
    assert float(log_prob.exp().sum() * cell) == pytest.approx(1, abs=0.03)


# "npe" is the candidate `Uncorrected`.
# The draws of x̃ of "x-only" are those of "joint"; `test_mixture_over_x_is_a_mean_of_densities` has its density.
@pytest.mark.parametrize(
    "kind", ["joint", pytest.param("x-only", marks=pytest.mark.nightly), "theta-only", "default", "npe", *CANDIDATES]
)
def test_density_is_that_of_the_draws(posteriors, kind, monkeypatch):
    """Probability of each quadrant about the median, by draws and by the integral of the density."""
    posterior = posteriors(kind)
    more_components(posterior, monkeypatch)
    draws = posterior.sample((10_000,), x=Y, seed=0)
    middle = draws.median(0).values
    theta, cell = grid(40)
    mass = posterior.log_prob(theta, x=Y).exp() * cell
    above = (0.5 + (theta - middle) / torch.tensor([4 / 40, 1 / 40])).clamp(0, 1)  # share of each cell
    for right in (True, False):
        for up in (True, False):
            drawn = (((draws[:, 0] > middle[0]) == right) & ((draws[:, 1] > middle[1]) == up)).float().mean()
            shares = [share if side else 1 - share for share, side in zip(above.T, (right, up), strict=True)]
            assert float((mass * shares[0] * shares[1]).sum()) == pytest.approx(float(drawn), abs=0.03)


def more_components(posterior, monkeypatch, number=1000):
    """So many, in all members together, that the Monte-Carlo noise of a mixture over x̃ does not matter."""
    random = [m for m in posterior.inner.modules() if isinstance(m, Transported) and m.is_random]
    for module in random:
        monkeypatch.setattr(module, "components", number // len(random))
        monkeypatch.setattr(module, "_last", Remembered())


def test_members_of_a_mixture_draw_their_own_noise(posteriors):
    """Else the errors of their Monte-Carlo components would not average out."""
    member = next(m for m in posteriors("joint_flow").inner.modules() if isinstance(m, JointFlowed))
    (first, _), (second, _) = _components([member, member], Y[None])
    assert first.shape == second.shape and not torch.allclose(first, second)
    assert torch.equal(first, _components([member], Y[None])[0][0])


class AffineField(nn.Module):
    """The velocity whose flow is z -> expm(G) (z + b) - b, for every observation alike."""

    def __init__(self, generator, offset):
        super().__init__()
        self.register_buffer("generator", generator)
        self.register_buffer("offset", offset)

    def velocity(self, t, z):
        return (z + self.offset) @ self.generator.T

    def push(self, z, y, solver):
        return solver.solve(self.velocity, z.flatten(0, 1)).reshape(z.shape)

    def pull(self, z, y, solver):
        z0, log_det = solver.invert_with_logdet(self.velocity, z.flatten(0, 1))
        return z0.reshape(z.shape), log_det.reshape(z.shape[:2])


def exact_gaussian():
    """A chain whose correction is exact for one observation: base posterior and field in closed form."""
    task = tasks.get("gaussian")
    _, ys = task.test_set(1, seed=0)
    y = ys[0]
    wrong = task.reference_posterior(y, side="simulator")
    right = task.reference_posterior(y, side="real")
    torch.manual_seed(0)
    wrong_law = _law(wrong)
    right_law = _law(right)
    proposal = as_base_posterior(
        lambda x: wrong_law.sample((x.shape[0],)),
        prior=task.prior,
        log_prob=lambda theta, x: wrong_law.log_prob(theta),
    )
    space = ParameterSpace(task.prior, task.prior.sample((2000,)))
    # in z, the optimal transport from one Gaussian to the other is affine: z -> A z + c
    scale = torch.diag(1 / _slope(space))
    a, b = scale @ wrong_law.covariance_matrix @ scale, scale @ right_law.covariance_matrix @ scale
    root = _power(a, 0.5)
    linear = _power(a, -0.5) @ _power(root @ b @ root, 0.5) @ _power(a, -0.5)
    shift = space.to_z(right_law.mean[None])[0] - linear @ space.to_z(wrong_law.mean[None])[0]
    fixed_point = torch.linalg.solve(torch.eye(3) - linear, shift)
    values, vectors = torch.linalg.eigh(linear)
    field = AffineField(vectors @ torch.diag(values.log()) @ vectors.T, -fixed_point)
    identity = Standardiser(torch.zeros(2, 10))
    chain = JointFlowed(proposal, space, identity, identity, None, field, 1.0, Solver("rk4", 12))
    shared = Shared(proposal, space, task.prior, torch.zeros(0, 3))
    return CorrectedPosterior(chain, shared, (10,), Record()), y, right_law


def _law(reference):
    draws = reference.sample((3,), seed=0)
    assert draws.shape == (3, 3)
    return MultivariateNormal(reference.mean.float(), reference.cov.float())


def _slope(space):
    zero, one = space.to_theta(torch.zeros(1, 3)), space.to_theta(torch.ones(1, 3))
    return (one - zero)[0]


def _power(matrix, exponent):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp_min(1e-12) ** exponent) @ vectors.T


def test_density_agrees_with_the_exact_gaussian_posterior():
    posterior, y, exact = exact_gaussian()
    theta = exact.sample((200,))
    assert torch.allclose(posterior.log_prob(theta, x=y), exact.log_prob(theta), atol=5e-2)
    draws = posterior.sample((20_000,), x=y, seed=0)
    error = (draws.mean(0) - exact.mean) / exact.stddev
    assert float(error.abs().max()) < 0.03
    assert torch.allclose(torch.cov(draws.T), exact.covariance_matrix, rtol=0.05, atol=0.02)


def test_map_of_the_exact_gaussian_posterior_is_its_mean():
    posterior, y, exact = exact_gaussian()
    posterior.set_default_x(y)
    assert float(((posterior.map() - exact.mean) / exact.stddev).abs().max()) < 0.1


def test_mixture_over_x_is_a_mean_of_densities(posteriors):
    """The x-only density is the mean of the base posterior's own over the draws of x̃."""
    posterior = posteriors("x-only")
    theta = PRIOR.sample((6,))
    with seeded(0), torch.no_grad():
        x = posterior.inner.source(Y[None], posterior.inner.components)[0]
    each = posterior.inner.base.log_prob(theta.expand(len(x), -1, -1), x)
    assert torch.allclose(posterior.log_prob(theta, x=Y), each.exp().mean(0).log(), atol=1e-4)
    assert math.isfinite(float(each.detach().sum()))


def test_a_maximum_is_found_from_points_that_lie_in_a_plane():
    """As the best few do of a very narrow density, where rounding leaves their covariance no root."""
    start = torch.randn(200, 1).expand(-1, 3) * torch.tensor([1e-4, 1e-4, 2e-4])
    found = cross_entropy_search(lambda z: -1e8 * (z - 1e-5).square().sum(1), start, number=15, rounds=40)
    torch.testing.assert_close(found, torch.full((3,), 1e-5), atol=5e-6, rtol=0)
