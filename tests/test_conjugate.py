"""Bayesian regression in closed form, and Bayes' rule on top of it, against exact answers."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import f, genpareto
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT

from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates.emulator import Emulator, Features
from fmcpe.candidates.synthetic_likelihood import SyntheticLikelihood, _Target
from fmcpe.metrics import energy_score
from fmcpe.nn.conjugate import Prior, fit_conjugate
from fmcpe.nn.directions import Directions
from fmcpe.nn.importance import TMixture, pareto_k, systematic, tempered
from fmcpe.problem import build_problem
from fmcpe.spaces import ParameterSpace


def linear_pairs(number, dim=2, size=4, noise=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(dim, size, generator=generator)
    theta = torch.randn(number, dim, generator=generator)
    return matrix, theta, theta @ matrix + 1.0 + noise * torch.randn(number, size, generator=generator)


def test_with_many_pairs_the_regression_is_least_squares():
    matrix, theta, y = linear_pairs(5000)
    fit = fit_conjugate(theta, y, torch.ones(2)).regression
    mean, factor = fit.predict(torch.eye(2))
    back = mean @ torch.linalg.inv(fit.whitening) + fit.target_mean
    torch.testing.assert_close(back, matrix + 1.0, atol=0.03, rtol=0)
    assert torch.allclose(factor, torch.ones(2), atol=2e-3)
    residual = fit.whiten(y) - fit.predict(theta)[0]
    assert torch.allclose(torch.cov(residual.T), torch.eye(4), atol=0.08)


def test_the_evidence_knows_which_features_made_the_data():
    _, theta, y = linear_pairs(60, 1, 1, 0.5)
    quadratic = torch.cat([theta, theta.square()], dim=1)
    order = torch.tensor([1, 2])
    bent = y + 2 * theta.square()
    assert fit_conjugate(quadratic, bent, order).evidence > fit_conjugate(theta, bent, torch.ones(1)).evidence + 5
    assert fit_conjugate(theta, y, torch.ones(1)).evidence > fit_conjugate(quadratic, y, order).evidence - 1


def test_the_predictive_distribution_is_calibrated_with_few_pairs():
    """The 90 % ellipsoid of Student's t, over 200 regressions on sixteen pairs: within four binomial standard errors."""
    inside = 0
    for seed in range(200):
        _, theta, y = linear_pairs(17, 3, 6, 0.5, seed)
        fit = fit_conjugate(theta[:16], y[:16], torch.ones(3)).regression
        mean, factor = fit.predict(theta[16:])
        distance = float((fit.whiten(y[16:]) - mean).square().sum() / factor[0])
        inside += distance / 6 < f.ppf(0.9, 6, float(fit.freedom))
    assert abs(inside / 200 - 0.9) < 4 * math.sqrt(0.09 / 200)


@pytest.fixture(scope="module")
def gaussian():
    """Many pairs of a linear Gaussian process, a normal prior: Bayes' rule has a closed form."""
    prior = Independent(Normal(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5])), 1)
    matrix = torch.tensor([[1.0, 0.3, -0.5], [0.2, 1.5, 0.4]])
    noise = 0.4

    def real(theta):
        return theta @ matrix + noise * torch.randn(len(theta), 3)

    with seeded(0):
        theta = prior.sample((3000,))
        base = as_base_posterior(lambda x: prior.sample((len(x),)), prior)
        problem = build_problem(base, None, prior, theta, real(theta), None)
        posterior = SyntheticLikelihood().fit(problem, torch.arange(3000))
    y = torch.tensor([[1.5, -2.0, -1.0]])
    precision = torch.diag(torch.tensor([0.25, 4.0])) + matrix @ matrix.T / noise**2
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (torch.tensor([0.25, 4.0]) * torch.tensor([1.0, -2.0]) + matrix @ y[0] / noise**2)
    return posterior, problem.space, y, MultivariateNormal(mean, covariance)


def test_draws_of_the_synthetic_likelihood_are_those_of_bayes_rule(gaussian):
    posterior, space, y, exact = gaussian
    with seeded(1):
        draws = space.to_theta(posterior.sample(y, 20_000)[0])
    assert float(((draws.mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.1
    assert torch.allclose(torch.cov(draws.T), exact.covariance_matrix, rtol=0.12, atol=2e-3)
    weights = _Target([posterior], y).weighted(2000)[1].softmax(1)
    assert float(1 / weights.square().sum()) > 0.3 * 2000  # effective sample size


def test_its_density_is_that_of_bayes_rule(gaussian):
    posterior, space, y, exact = gaussian
    theta = exact.sample((200,))
    density = posterior.log_prob(space.to_z(theta)[None], y)[0] + space.log_abs_det(theta)
    assert float((density - exact.log_prob(theta)).abs().median()) < 0.08


def test_two_modes_have_their_shares():
    """Data are θ²: both signs are as likely, and a tilted prior weights them."""
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    with seeded(0):
        theta = prior.sample((400,))
        y = theta.square() + 0.05 * torch.randn(400, 1)
        base = as_base_posterior(lambda x: prior.sample((len(x),)), prior)
        problem = build_problem(base, None, prior, theta, y, None)
        posterior = SyntheticLikelihood().fit(problem, torch.arange(400))
        draws = posterior.sample(torch.ones(50, 1), 400)
    share = (draws > 0).float().mean((1, 2))
    assert float(share.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(share.min()) > 0.2
    assert float((draws.abs() - 1).abs().median()) < 0.15


def test_directions_keep_short_vectors_and_reduce_long_ones():
    torch.manual_seed(0)
    y = torch.randn(50, 6) * torch.tensor([1.0, 10, 100, 1, 1, 1])
    short = Directions.of(y, 24)
    assert short.matrix.shape == (6, 6)
    assert torch.allclose(short(y).std(0), torch.ones(6), atol=1e-3)
    series = torch.sin(torch.linspace(0, 6, 100) * (1 + torch.rand(50, 1)))
    long = Directions.of(series, 24)
    assert long.matrix.shape == (100, 24)
    left = series - series.mean(0) - (long(series) @ torch.linalg.pinv(long.matrix))
    assert float(left.square().mean()) < 1e-3


def test_features_are_polynomials_of_physical_or_unconstrained_parameters():
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    space = ParameterSpace.of(prior)
    pool = space.to_z(prior.sample((2000,)))
    for physical in (True, False):
        features = Features(space, pool, 2, physical)
        assert features(pool).shape == (2000, 5)
        assert features.order.tolist() == [1, 1, 2, 2, 2]
        assert torch.allclose(features(pool).std(0), torch.ones(5), atol=1e-3)


def test_systematic_resampling_is_fair():
    torch.manual_seed(0)
    weights = torch.tensor([[0.1, 0.2, 0.7]]).expand(500, -1)
    index = systematic(weights, 10)
    share = torch.stack([(index == k).float().mean() for k in range(3)])
    assert torch.allclose(share, torch.tensor([0.1, 0.2, 0.7]), atol=5e-3)
    assert bool(((index == 2).sum(1) == 7).all())


def test_the_t_density_is_that_of_torch():
    _, theta, y = linear_pairs(30, 1, 1)
    fit = fit_conjugate(theta, y, torch.ones(1)).regression
    mean, factor = fit.predict(theta)
    seen = fit.whiten(y)
    ours = fit.log_likelihood((seen - mean).square().sum(-1), factor)
    exact = StudentT(fit.freedom, mean[:, 0], factor.sqrt()).log_prob(seen[:, 0])
    assert torch.allclose(ours - ours.mean(), exact - exact.mean(), atol=1e-4)


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9])
def test_the_tail_of_importance_weights_is_found(shape):
    """Weights that are Pareto with a known shape: the estimate is close on average, and separates good from bad."""
    draws = genpareto.rvs(shape, size=(200, 2000), random_state=0)
    estimate = pareto_k(torch.as_tensor(draws).log())
    assert float(estimate.mean()) == pytest.approx(shape, abs=0.1)


def test_the_proposal_has_the_density_of_its_draws():
    torch.manual_seed(0)
    centre = torch.tensor([[[0.0, 0.0], [3.0, -1.0]]])
    root = torch.linalg.cholesky(torch.tensor([[[[4.0, 1.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 9.0]]]]))
    mixture = TMixture(centre, root)
    u = torch.linspace(-30, 30, 1201)
    grid = torch.cartesian_prod(u, u)[None]
    density = mixture.log_prob(grid).exp()[0]
    assert float(density.sum() * (u[1] - u[0]) ** 2) == pytest.approx(1, abs=0.01)
    draws = mixture.sample(20_000)[0]
    assert float((draws[:, 0] > 1.5).float().mean()) == pytest.approx(
        float(density[grid[0, :, 0] > 1.5].sum() * 0.0025), abs=0.02
    )


def test_a_prior_in_other_units_gives_the_same_regression():
    """Targets T R + φ B_0 with the prior (B_0, R): the predictive density of T, and its evidence up to the Jacobian."""
    _, theta, y = linear_pairs(12, 2, 3)
    generator = torch.Generator().manual_seed(1)
    features = torch.cat([theta, theta.square(), theta.pow(3)], dim=1)
    order = torch.tensor([1, 1, 2, 2, 3, 3])
    mean = torch.randn(6, 3, generator=generator).double()
    root = torch.linalg.cholesky(torch.eye(3) + 0.5).T.double() @ torch.diag(torch.tensor([0.1, 1.0, 7.0])).double()
    changed = (y.double() @ root + features.double() @ mean).float()
    ours = fit_conjugate(features, changed, order, Prior(mean, root, (-5, 0)), degree=2)
    plain = fit_conjugate(features[:, :4], y, order[:4])
    (m, factor), (m0, factor0) = ours.regression.predict(features), plain.regression.predict(features[:, :4])
    torch.testing.assert_close(factor, factor0)
    left = (ours.regression.whiten(changed) - m).square().sum(-1)
    torch.testing.assert_close(left, (plain.regression.whiten(y) - m0).square().sum(-1), rtol=1e-3, atol=1e-4)
    jacobian = (len(y) - 1) * float(torch.linalg.slogdet(root)[1])
    assert ours.evidence == pytest.approx(plain.evidence - jacobian, abs=1e-3)


def test_few_pairs_follow_the_prior_mean_and_many_refute_a_wrong_one():
    _, theta, _ = linear_pairs(4000, 1, 1)
    features, order = torch.cat([theta, theta.square()], dim=1), torch.tensor([1, 2])
    y = 2 * theta + theta.square() + 0.1 * torch.randn(4000, 1, generator=torch.Generator().manual_seed(2))
    right, wrong = (
        Prior(torch.tensor([[a], [b]]).double(), 0.1 * torch.eye(1).double(), (-2, 3)) for a, b in ((2, 1), (-1, 0))
    )
    far = torch.tensor([[3.0, 9.0]])

    def predicted(number, prior):
        fit = fit_conjugate(features[:number], y[:number], order, prior).regression
        return float(fit.predict(far)[0] @ torch.linalg.inv(fit.whitening) + fit.target_mean)

    assert predicted(3, right) == pytest.approx(15, abs=0.5)
    assert predicted(4000, wrong) == pytest.approx(15, abs=0.1)


class Curved:
    """A simulator that bends, and a process whose sensor has an offset and a gain."""

    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)

    @staticmethod
    def simulate(theta):
        a, b = theta.T[..., None]
        t = torch.linspace(0, 1, 6)
        return torch.exp(0.5 * a * t) + b * t.square() + 0.2 * a * b * (1 - t) + 0.05 * torch.randn(len(theta), 6)

    def problem(self, number, simulator=True):
        theta = self.prior.sample((number,))
        base = as_base_posterior(lambda x: self.prior.sample((len(x),)), self.prior)
        checked = CheckedSimulator(self.simulate, torch.Size([6])) if simulator else None
        y = 0.3 + 1.2 * self.simulate(theta)
        return build_problem(base, checked, self.prior, theta, y, None)


def test_the_emulator_is_the_mean_of_the_simulator():
    with seeded(0):
        problem = Curved().problem(10)
        emulator = Emulator.of(problem, 24)
        z = problem.pool[:200]
        many = Curved.simulate(problem.space.to_theta(z).repeat_interleave(200, 0)).unflatten(0, (200, 200)).mean(1)
    directions = Directions.of(problem.y, 24)
    prior = emulator.prior(directions)
    wanted, got = directions(many), emulator.features(z) @ prior.mean.float()
    error = (wanted - wanted.mean(0)) - (got - got.mean(0))
    assert float(error.std()) < 0.05 * float(wanted.std())
    noise = directions.matrix.T @ directions.matrix * 0.05**2
    torch.testing.assert_close((prior.root.T @ prior.root).float(), noise, rtol=0.3, atol=0.1 * float(noise.max()))


@pytest.mark.parametrize("seed", range(3))
def test_with_few_pairs_the_simulator_is_worth_many(seed):
    """Energy score on new pairs, with and without the simulator as the prior mean of the regression."""
    with seeded(seed):
        problem, test = Curved().problem(10), Curved().problem(200)
        alone = replace(problem, bank_theta=None, bank_x=None)
        fits = [SyntheticLikelihood().fit(each, torch.arange(10)) for each in (problem, alone)]
        scores = [energy_score(fit.sample(test.y, 64).movedim(1, 0), test.z) for fit in fits]
    assert scores[0] < 0.8 * scores[1]


def test_the_emulator_of_one_parameter_keeps_a_degree_that_numbers_resolve():
    """A wiggly mean of one parameter: more degrees would always fit better, until their Gram matrix is singular."""
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    with seeded(0):
        theta = prior.sample((10,))
        base = as_base_posterior(lambda x: prior.sample((len(x),)), prior)
        checked = CheckedSimulator(lambda t: torch.sin(9 * t) + 1e-4 * torch.randn_like(t), torch.Size([1]))
        problem = build_problem(base, checked, prior, theta, theta.sin(), None)
        assert Emulator.of(problem, 24).features.degree <= 8


def test_tempered_weights_are_numbers_where_few_draws_or_none_have_a_density():
    log_weights = torch.full((3, 100), -torch.inf)
    log_weights[1, :5], log_weights[2] = torch.arange(5.0), -torch.arange(100.0)
    weights = tempered(log_weights)
    assert torch.allclose(weights.sum(1), torch.ones(3)) and bool((weights[1, :5] > 0.01).all())
    assert float(weights[2, 0] / weights[2, 31]) == pytest.approx(math.exp(3), rel=1e-3)


def test_normalisers_hold_where_laplace_approximations_do_not():
    """Eight parameters, data one deviation off in each number: against 30 times the draws. Members err independently."""
    prior = Independent(Normal(torch.zeros(8), torch.ones(8)), 1)
    with seeded(5):
        matrix, theta = torch.randn(8, 10), prior.sample((30,))
        y = theta @ matrix + 0.3 * torch.randn(30, 10)
        base = as_base_posterior(lambda x: prior.sample((len(x),)), prior)
        problem = build_problem(base, None, prior, theta, y, None)
        members = SyntheticLikelihood().fit_members(problem, [torch.arange(30) != j for j in range(4)])
    off = (y.mean(0) + y.std(0) * torch.tensor([1.0, -1.0] * 5))[None]
    errors = []
    for member in members:
        target = _Target([member], off)
        with seeded(9), torch.no_grad():
            log_weights = target.weighted(30 * 8 * member.proposals)[1]
        exact = log_weights.logsumexp(1) - math.log(log_weights.shape[1])
        errors.append(float(target.log_evidence() - exact))
    errors = torch.tensor(errors)
    assert abs(float(errors.mean())) < 0.5, errors  # by Laplace approximations alone -2.1
    assert float(errors.std()) > 0.02
