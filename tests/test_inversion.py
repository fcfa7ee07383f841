"""Real data regressed on θ, and Bayes' rule: against exact posteriors, grids and the laws that draws and densities obey."""

import math

import pytest
import torch
from conftest import PRIOR, simulate
from sbi.utils import BoxUniform
from scipy.stats import kstest, multivariate_t
from torch.distributions import Independent, MultivariateNormal, Normal

import fmcpe
from fmcpe import FMCPE, metrics
from fmcpe.diagnostics import central_coverage
from fmcpe.drawing import kth_largest
from fmcpe.evidence import Evidence
from fmcpe.forward import Size, coordinates, fit_forward
from fmcpe.inversion import InvertedProposal, draw_pool
from fmcpe.proposal import PriorProposal
from fmcpe.sizes import choose_size, log_gains
from fmcpe.starts import Starts
from fmcpe.surface import PriorPool, Surface

GAUSSIAN = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
MATRIX = torch.tensor([[1.0, 0.5, -0.3, 0.0], [0.2, -1.0, 0.4, 0.8]])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def chosen(theta, data, where, pool, prior=GAUSSIAN):
    folds = torch.arange(len(theta)) % min(len(theta), 10 if len(theta) <= 100 else 5)
    return choose_size(theta, data, where, PriorPool(prior, pool), folds)


def fit(theta, y, prior, size=None):
    pool = draw_pool(prior, y.device)
    where = coordinates(y, pool)
    data = where.reduce(y)
    size = size or chosen(theta, data, where, pool, prior)[0]
    return InvertedProposal(fit_forward(theta, data, where, size), PriorProposal(prior, y.shape[1:]), pool)


def draws(proposal, y, number):
    """(number, B, p)."""
    x = proposal.summarise(y).repeat_interleave(number, dim=0)
    return proposal.sample(x).unflatten(0, (len(y), number)).movedim(1, 0)


def linear(number, noise):
    theta = GAUSSIAN.sample((number,))
    return theta, 3.0 + theta @ MATRIX + noise * torch.randn(number, 4)


def exact(y, noise):
    precision = torch.eye(2) + MATRIX @ MATRIX.T / noise**2
    mean = torch.linalg.solve(precision, MATRIX @ (y - 3.0) / noise**2)
    return MultivariateNormal(mean, precision_matrix=precision)


@pytest.mark.parametrize("noise", [0.5, 0.02])
def test_many_pairs_of_a_linear_process_give_the_exact_posterior(noise):
    """With noise of 0.02 hardly one of the pool's draws is any good: the steps have to find the posterior."""
    proposal = fit(*linear(4000, noise), GAUSSIAN)
    _, y = linear(5, noise)
    found = draws(proposal, y, 1000)
    for i in range(5):
        assert metrics.c2st(exact(y[i], noise).sample((1000,)), found[:, i]) < 0.56


def test_draws_follow_the_density_and_it_integrates_to_one():
    prior = BoxUniform(torch.zeros(1), torch.ones(1))
    theta = prior.sample((200,))
    y = torch.cat([theta.square(), theta.sin()], dim=1) + 0.05 * torch.randn(200, 2)
    proposal = fit(theta, y, prior)
    grid = (torch.arange(4000) + 0.5)[:, None] / 4000
    for point in (0.05, 0.5, 0.98):
        x = proposal.summarise(torch.tensor([[point**2, math.sin(point)]]))
        density = proposal.log_prob(grid, x)[:, 0].exp()
        assert float(density.mean()) == pytest.approx(1.0, abs=0.06)
        steps = density.cumsum(0) / density.sum()
        drawn = proposal.sample(x.expand(2000, -1))[:, 0]
        ranks = steps[(drawn * 4000).long().clamp(0, 3999)]
        assert kstest(ranks.numpy(), "uniform").pvalue > 0.001
        assert bool(((drawn > 0) & (drawn < 1)).all())
    assert float(proposal.log_prob(torch.tensor([[1.5]]), x)) == -torch.inf


def test_the_density_of_a_sharp_posterior_in_two_dimensions_is_the_exact_one():
    proposal = fit(*linear(4000, 0.02), GAUSSIAN)
    _, y = linear(1, 0.02)
    truth = exact(y[0], 0.02)
    theta = truth.sample((50,))
    off = proposal.log_prob(theta, proposal.summarise(y))[:, 0] - truth.log_prob(theta)
    assert float(off.abs().mean()) < 0.35
    proposal.forward.whitening.mul_(3.0)  # a posterior that is too sure has another density
    proposal = proposal.to("cpu")  # which looks at the regression again
    off = proposal.log_prob(theta, proposal.summarise(y))[:, 0] - truth.log_prob(theta)
    assert float(off.abs().mean()) > 1.0


def test_draws_of_a_posterior_far_narrower_than_the_pool_is_fine():
    """Fifty pairs, hardly any noise, bounds: every draw is where the density is, and as wide."""
    prior = BoxUniform(torch.zeros(2), torch.ones(2))

    def real(theta):
        return theta @ (4 * MATRIX) + 0.02 * torch.randn(len(theta), 4)

    theta, truth = prior.sample((50,)), torch.tensor([[0.3, 0.6]])
    proposal = fit(theta, real(theta), prior)
    x = proposal.summarise(real(truth))
    steps = torch.linspace(-0.06, 0.06, 241)
    grid = truth + torch.cartesian_prod(steps, steps)
    density = proposal.log_prob(grid, x)[:, 0].double().exp()
    assert float(density.sum() * (steps[1] - steps[0]) ** 2) == pytest.approx(1.0, abs=0.05)
    weight = (density / density.sum())[:, None]
    mean = (weight * grid).sum(0)
    deviation = (weight * (grid - mean).square()).sum(0).sqrt()
    drawn = proposal.sample(x.expand(2000, -1))
    assert float(((drawn - mean).abs() / deviation).max()) < 6
    torch.testing.assert_close(drawn.std(0) / deviation.float(), torch.ones(2), atol=0.1, rtol=0)


def test_draws_lie_all_along_a_bent_ridge():
    """Three colours times one brightness a: without noise, a has a density of a^-3 between the brightest colour and 1."""
    prior = BoxUniform(torch.full((4,), 0.05), torch.ones(4))
    theta = prior.sample((400,))
    y = theta[:, :3] * theta[:, 3:] + 0.005 * torch.randn(400, 3)
    proposal = fit(theta, y, prior)
    drawn = proposal.sample(proposal.summarise(torch.tensor([[0.3, 0.2, 0.25]])).expand(2000, -1))
    total = (0.3**-2 - 1) / 2
    mean, square = (1 / 0.3 - 1) / total, -math.log(0.3) / total
    assert float(drawn[:, 3].mean()) == pytest.approx(mean, abs=0.06)
    assert float(drawn[:, 3].std()) == pytest.approx((square - mean**2) ** 0.5, rel=0.25)


def test_draws_of_one_call_are_as_far_apart_as_draws_of_several():
    """Draws that share where they start would look surer of themselves than the posterior is."""
    prior = BoxUniform(torch.full((4,), 0.05), torch.ones(4))
    theta = prior.sample((400,))
    proposal = fit(theta, theta[:, :3] * theta[:, 3:] + 0.002 * torch.randn(400, 3), prior)
    y = 0.1 + 0.3 * torch.rand(150, 3)
    calls = torch.stack([draws(proposal, y, 8) for _ in range(4)])  # (4, 8, 150, p)
    within = torch.stack([(calls[:, i] - calls[:, j]).norm(dim=-1).mean() for i in range(8) for j in range(i)]).mean()
    between = torch.stack([(calls[i] - calls[j]).norm(dim=-1).mean() for i in range(4) for j in range(i)]).mean()
    assert 0.85 < float(within / between) < 1.05  # 0.63 where each draw brings a start of its own


def test_both_modes_are_found():
    prior = BoxUniform(-torch.ones(1), torch.ones(1))
    theta = prior.sample((300,))
    y = torch.cat([theta.square(), theta.square()], dim=1) + 0.02 * torch.randn(300, 2)
    proposal = fit(theta, y, prior)
    assert proposal.forward.size.degree >= 2
    # shares of modes are those of the pool's few draws that count, which is within 0.1 of the truth
    found = draws(proposal, torch.full((1, 2), 0.49), 4000)[:, 0, 0]
    torch.testing.assert_close(found.abs().mean(), torch.tensor(0.7), atol=0.02, rtol=0)
    assert 0.4 < float((found > 0).float().mean()) < 0.6


def test_directions_with_little_noise_are_not_shrunk():
    """What tells θ is a small difference of two loud numbers: a penalty that looks at squares alone throws it away."""
    noise = torch.linalg.cholesky(torch.tensor([[25.0, 24.999], [24.999, 25.0]]))
    distances = []
    for seed in range(3):
        torch.manual_seed(seed)
        theta = torch.randn(60, 1)
        y = torch.cat([theta, -0.2 * theta], dim=1) + torch.randn(60, 2) @ noise.T
        proposal = fit(theta, y, Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
        slope = torch.tensor([1.0, -0.2])
        weighted = torch.cholesky_solve(slope[:, None], noise)[:, 0]
        variance = 1 / (1 + slope @ weighted)
        observed = torch.tensor([[4.0, 3.2]])
        found = draws(proposal, observed, 2000)[:, 0, 0]
        distances.append(abs(float(found.mean() - variance * weighted @ observed[0])) / float(variance.sqrt()))
        assert float(found.std() / variance.sqrt()) == pytest.approx(1.0, abs=0.35)
    assert sum(distances) / 3 < 0.6


def test_what_the_simulator_shows_is_a_feature():
    """Reality mixes the products that the simulator shows; 16 pairs cannot find them among all powers of θ."""
    prior = BoxUniform(torch.zeros(4), torch.ones(4))
    simulated = prior.sample((2000,))

    def products(theta):
        return theta[:, :3] * theta[:, 3:]

    theta = prior.sample((16,))
    mixing = torch.tensor([[1.0, 0.2, 0.1], [0.3, 0.8, 0.0], [0.0, 0.1, 1.2]])
    y = torch.cat([products(theta) @ mixing, theta[:, 3:]], dim=1) + 0.02 * torch.randn(16, 4)
    pool = draw_pool(prior, y.device)
    where = coordinates(y, pool, (simulated, products(simulated)))
    assert where.shown is not None and where.shown.shape[1] == 3
    folds, data = torch.arange(16) % 8, where.reduce(y)
    powers = choose_size(theta, data, where, PriorPool(prior, pool[:1000]), folds)
    shown = choose_size(theta, data, where, PriorPool(prior, pool[:1000]), folds, shown=3)
    assert shown[1] > powers[1] + 0.5
    proposal = InvertedProposal(fit_forward(theta, data, where, shown[0]), PriorProposal(prior, y.shape[1:]), pool)
    truth = prior.sample((200,))
    observed = torch.cat([products(truth) @ mixing, truth[:, 3:]], dim=1) + 0.02 * torch.randn(200, 4)
    found = draws(proposal, observed, 60)
    assert metrics.energy_score(found, truth) < 0.5 * metrics.energy_score(prior.sample((60, 200)), truth)
    # a simulator that goes straight with θ, or is all noise, shows nothing that θ does not
    for x in (simulated @ torch.randn(4, 5), torch.randn(2000, 5)):
        assert coordinates(y, pool, (simulated, x)).shown is None


def test_shares_of_two_ways_in_draws_and_density():
    theta, y = linear(40, 0.3)
    alone = fit(theta, y, GAUSSIAN)
    shared = InvertedProposal(alone.forward, alone.base, alone.pool, share=0.25)  # the rest is the prior
    observed = torch.tensor([[6.0, 2.0, 3.5, 5.0]])
    x = shared.summarise(observed)
    near = exact(observed[0], 0.3).mean
    found = shared.sample(x.expand(8000, -1))
    inside = ((found - near).norm(dim=1) < 1.0).float().mean()
    by_prior = ((GAUSSIAN.sample((8000,)) - near).norm(dim=1) < 1.0).float().mean()
    assert float(inside) == pytest.approx(0.25 + 0.75 * float(by_prior), abs=0.02)
    mixed = shared.log_prob(found[:50], x)[:, 0].exp()
    parts = 0.25 * alone.log_prob(found[:50], x)[:, 0].exp() + 0.75 * GAUSSIAN.log_prob(found[:50]).exp()
    torch.testing.assert_close(mixed, parts, rtol=1e-3, atol=1e-6)


def test_half_of_the_draws_are_from_shifted_data(posteriors):
    outer = posteriors("shared").corrector.proposal
    inner = outer.base
    shifted = (1 - outer.share) * (1 - inner.share)
    assert (shifted, outer.share, (1 - outer.share) * inner.share) == pytest.approx((0.5, 0.25, 0.25))


def test_units_of_simulations_do_not_matter():
    """A number in pascal does not hide one that bends."""
    prior = BoxUniform(torch.zeros(2), torch.ones(2))
    theta = prior.sample((2000,))
    x = torch.stack([theta[:, 0], theta.prod(1)], dim=1) + 0.01 * torch.randn(2000, 2)
    found = [coordinates(x[:20], theta, (theta, x * torch.tensor([unit, 1.0]))).shown for unit in (1.0, 1e5)]
    torch.testing.assert_close(found[0].abs(), found[1].abs(), atol=1e-3, rtol=1e-3)
    assert coordinates(x[:20], theta, (theta, torch.ones(2000, 2))).shown is None  # a simulator that does nothing


def test_as_many_terms_as_the_pairs_ask_for():
    theta = PRIOR.sample((200,))
    straight = simulate(theta)
    pool = draw_pool(PRIOR, theta.device)
    bent = straight + 0.5 * torch.stack([theta[:, 0] ** 2, theta[:, 0] * theta[:, 1], theta[:, 1] ** 2], dim=1)
    sizes = []
    for y in (straight, bent):
        where = coordinates(y, pool)
        sizes.append(chosen(theta, where.reduce(y), where, pool, PRIOR)[0])
    assert sizes[0].degree == 1 and sizes[1].degree >= 2


def test_few_pairs_that_know_little_of_the_noise_are_not_too_sure():
    """Twelve pairs of six numbers each do not know how these go together. As if they did, 0.75 would lie in the middle 80 %."""
    inside = []
    for _ in range(100):
        matrix, mixing = torch.randn(2, 6), torch.randn(6, 6)
        theta = GAUSSIAN.sample((32,))
        y = 2 * theta @ matrix + torch.randn(32, 6) @ mixing
        proposal = fit(theta[:12], y[:12], GAUSSIAN, Size(1, 6))
        inside.append(central_coverage(draws(proposal, y[12:], 50), theta[12:], 0.8))
    covered = torch.stack(inside).mean(0)
    assert bool((covered > 0.8).all()) and bool((covered < 0.95).all()), covered


def test_the_likelihood_is_the_t_distribution_of_a_regression_whose_noise_is_unknown():
    theta, y = linear(40, 0.5)
    proposal = fit(theta, y, GAUSSIAN, Size(1, 4))
    forward, freedom = proposal.forward, 40 + 1 - 3.0  # an intercept and two slopes; a pair beforehand
    assert float(forward.freedom) == pytest.approx(freedom, abs=0.05)
    seen, (mean, factor) = forward.see(y[:1]), forward.expect(theta[:20])
    found = forward.row_by_row((mean, factor), seen)
    df = freedom + 1 - 4
    expected = [
        multivariate_t(m, float(f) * freedom / df * torch.eye(4).numpy(), df=df).logpdf(seen[0].numpy())
        for m, f in zip(mean.detach().numpy(), factor, strict=True)
    ]
    torch.testing.assert_close(found - found[0], (torch.tensor(expected) - expected[0]).float(), atol=0.02, rtol=1e-3)


def test_the_variance_is_widened_by_a_factor():
    theta, y = linear(30, 0.5)
    pool = draw_pool(GAUSSIAN, y.device)
    where = coordinates(y, pool)
    plain = fit_forward(theta, where.reduce(y), where, Size(1, 3))
    wide = fit_forward(theta, where.reduce(y), where, Size(1, 3, widening=2.2))
    torch.testing.assert_close(wide.expect(pool)[1], 2.2 * plain.expect(pool)[1])
    torch.testing.assert_close(wide.expecting()(pool)[1], wide.expect(pool)[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_smallest_of_the_largest(k):
    values = torch.randn(50, 20)
    torch.testing.assert_close(kth_largest(values, k), values.sort(dim=1, descending=True).values[:, k - 1 : k])


def test_the_pool_is_finer_where_there_are_more_parameters():
    sizes = [len(draw_pool(BoxUniform(-torch.ones(p), torch.ones(p)), torch.device("cpu"))) for p in (1, 3, 4, 6)]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3]


@pytest.mark.parametrize("noise", [1.0, 0.01])
def test_the_gain_is_what_the_data_say_of_the_parameters(noise):
    """In nats: the information of a linear process with a known noise, and none in shuffled pairs.

    With the smaller noise it is more than could be told by draws of the prior, of which hardly one has any likelihood.
    """
    theta, y = linear(1000, noise)
    pool = draw_pool(GAUSSIAN, y.device)
    where = coordinates(y, pool)
    exactly = 0.5 * float(torch.logdet(torch.eye(4) + MATRIX.T @ MATRIX / noise**2))
    # of 300 pairs, three standard errors
    assert chosen(theta, where.reduce(y), where, pool)[1] == pytest.approx(exactly, abs=0.25)
    assert chosen(theta.roll(1, 0), where.reduce(y), where, pool)[1] < 0.02


@pytest.mark.parametrize("noise", [1.0, 0.1, 0.01])
def test_the_gain_of_each_pair_is_that_of_the_exact_posterior(noise):
    pairs, (theta, y) = linear(4000, noise), linear(200, noise)
    pool = draw_pool(GAUSSIAN, y.device)
    where = coordinates(pairs[1], pool)
    forward = fit_forward(pairs[0], where.reduce(pairs[1]), where, Size(1, 4))
    surface = Surface(forward, PriorPool(GAUSSIAN, pool[:2048]))
    seen, steps = forward.see_reduced(where.reduce(y), where), torch.randn(3, 16, 200, 2)
    found = log_gains(surface, surface.space.to_z_safely(theta), seen, steps, (1.0, 4.0))
    truth = torch.stack([exact(y[i], noise).log_prob(theta[i]) for i in range(200)]) - GAUSSIAN.log_prob(theta)
    off = found[:, 0] - truth
    assert abs(float(off.mean())) < 0.06 and float(off.std()) < 0.25
    wider = torch.stack([exact(y[i], 2 * noise).log_prob(theta[i]) for i in range(200)]) - GAUSSIAN.log_prob(theta)
    assert abs(float((found[:, 1] - wider).mean())) < 0.06


def test_one_matrix_expects_what_the_regression_does():
    theta, y = linear(30, 0.5)
    for size in (Size(1, 4), Size(3, 2)):
        forward = fit(theta, y, GAUSSIAN, size).forward
        for found, expected in zip(forward.expecting()(theta), forward.expect(theta), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_what_lies_behind_larger_directions_is_found_and_nothing_is_not_searched(monkeypatch):
    """Fourteen drifts, larger than the signal, hide it from a middling number of directions."""
    prior = BoxUniform(-torch.ones(1), torch.ones(1))
    theta, pool, drifts = prior.sample((120,)), draw_pool(prior, torch.device("cpu")), torch.randn(15, 64)
    asked = []
    monkeypatch.setattr("fmcpe.sizes.fit_forward", lambda *args: asked.append(args[3]) or fit_forward(*args))
    for signal in (1.0, 0.0):
        y = 3 * torch.randn(120, 14) @ drifts[1:] + signal * theta * drifts[:1] + 0.1 * torch.randn(120, 64)
        where = coordinates(y, pool)
        asked.clear()
        size, gain = chosen(theta, where.reduce(y), where, pool[:1024], prior)
        if signal:
            assert size.directions == 24 and gain > 1
        else:
            assert gain < 0.02 and {each.directions for each in asked} == {12, 24}


def test_few_pairs_are_not_believed_too_much():
    """Intervals of 90 % over many sets of 15 pairs: what a regression does not know of itself is in the posterior."""
    held = []
    for _ in range(20):
        proposal = fit(*linear(15, 0.5), GAUSSIAN, Size(1, 4))
        theta, y = linear(40, 0.5)
        held.append(central_coverage(draws(proposal, y, 100), theta, 0.9))
    assert 0.82 < float(torch.stack(held).mean()) < 0.97
    proposal.forward.ridge.gram_inverse.zero_()  # without leverage and tails it would be surer
    sure = [float(proposal.forward.expect(theta)[1].mean())]
    assert sure[0] < 1.2


def test_images_are_reduced_once_and_seen_in_few_directions():
    prior = BoxUniform(torch.zeros(2), torch.ones(2))
    shapes = torch.randn(2, 20, 20)

    def photograph(number):
        theta = prior.sample((number,))
        return theta, torch.einsum("np,pij->nij", theta, shapes) + 0.1 * torch.randn(number, 20, 20)

    theta, y = photograph(60)
    proposal = fit(theta, y, prior)
    test_theta, test_y = photograph(100)
    found = draws(proposal, test_y, 50)
    assert proposal.forward.directions.shape[0] == 400
    assert float((found.mean(0) - test_theta).square().mean().sqrt()) < 0.05


# ---------------------------------------------------------------------- in the default recipe


def observe(theta):
    """A sensor with a gain, a bend and a leak that the simulator knows nothing of."""
    clean = simulate(theta)
    return 3.0 * clean + 0.6 * torch.stack([theta[:, 0] ** 2, theta[:, 0] * theta[:, 1], theta[:, 1] ** 2], 1) - 4.0


@pytest.fixture(scope="module")
def corrected(base):
    torch.manual_seed(1)
    theta = PRIOR.sample((150,))
    return FMCPE(base, simulate).fit(theta, observe(theta), seed=0, show_progress_bars=False)


def test_it_is_kept_where_it_is_best_and_says_so(corrected):
    assert corrected.stages.startswith("inverted")
    assert "Bayes' rule" in corrected.summary()
    assert corrected.history["evidence_inverted"][0] < corrected.history["evidence_moved"][0]


def test_a_saved_one_draws_and_scores_the_same(corrected, tmp_path):
    again = fmcpe.load(corrected.save(tmp_path / "run.fmcpe"))
    y = observe(PRIOR.sample((3,)))
    same = {"seed": 3, "show_progress_bars": False}
    torch.testing.assert_close(
        again.sample_batched((20,), x=y, **same), corrected.sample_batched((20,), x=y, **same), atol=1e-4, rtol=1e-4
    )
    theta = corrected.sample((5,), x=y[0], **same)
    torch.testing.assert_close(again.log_prob(theta, x=y[0]), corrected.log_prob(theta, x=y[0]), atol=1e-3, rtol=1e-3)


def test_its_density_is_that_of_its_draws(corrected):
    """The mean of p over draws from a known normal q, divided by q, is one."""
    y = observe(PRIOR.sample((1,)))[0]
    drawn = corrected.sample((2000,), x=y, seed=0, show_progress_bars=False)
    q = MultivariateNormal(drawn.mean(0), 2 * torch.cov(drawn.T))
    theta = q.sample((4000,))
    weights = (corrected.log_prob(theta, x=y) - q.log_prob(theta)).exp()
    assert float(weights.mean()) == pytest.approx(1.0, abs=0.1)


def test_two_unequal_modes_have_the_shares_that_the_density_gives_them():
    """θ0² and a little of θ0 are seen: where the pool is coarse, draws once had shares of their own (0.2 in place of 0.01)."""
    prior = BoxUniform(-3 * torch.ones(2), 3 * torch.ones(2))

    def process(theta):
        return torch.stack([theta[:, 0] ** 2, 0.05 * theta[:, 0], theta[:, 1]], dim=1) + 0.05 * torch.randn(
            len(theta), 3
        )

    theta = prior.sample((300,))
    proposal = fit(theta, process(theta), prior, Size(2, 3))
    y = process(torch.tensor([[1.5, 0.0], [1.0, 2.0], [-0.7, 1.0]]))
    axis = torch.linspace(-2.995, 2.995, 600)
    grid = torch.cartesian_prod(axis, axis)
    log_density = proposal.log_prob(grid, proposal.summarise(y))
    exact = (log_density.softmax(0) * (grid[:, :1] < 0)).sum(0)
    many = (draws(proposal, y, 2000)[..., 0] < 0).float().mean(0)
    torch.testing.assert_close(many, exact, atol=0.04, rtol=0)
    # one draw for each of many observations, none of which is looked at closely
    rows = proposal.summarise(y).repeat(1500, 1)
    few = (proposal.sample(rows).unflatten(0, (1500, 3))[..., 0] < 0).float().mean(0)
    torch.testing.assert_close(few, exact, atol=0.15, rtol=0)


def test_as_many_draws_as_are_asked_for_whatever_the_block():
    theta, y = linear(200, 0.5)
    proposal = fit(theta, y, GAUSSIAN)
    seen = proposal.summarise(y[:2])
    for counts in ([2500, 2500], [1999, 3], [1, 1], [4500, 1]):
        found = proposal.sample(seen.repeat_interleave(torch.tensor(counts), dim=0))
        for rows, observed in zip(found.split(counts), y[:2], strict=True):
            if len(rows) > 1000:
                torch.testing.assert_close(rows.mean(0), exact(observed, 0.5).mean, atol=0.15, rtol=0)
                torch.testing.assert_close(rows.std(0), exact(observed, 0.5).stddev, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(("widening", "wider"), [(1 / 64, True), (1.0, False)])
def test_a_regression_that_is_too_sure_is_made_wider(base, monkeypatch, widening, wider):
    """By left-out draws, whatever chose its size; one that is as sure as it should be stays as it is."""
    theta = PRIOR.sample((60,))
    monkeypatch.setattr("fmcpe.starts.choose_size", lambda *_, **__: (Size(1, 3, widening), 2.0))
    posterior = FMCPE(base, simulate).fit(theta, observe(theta), seed=0, show_progress_bars=False)
    assert posterior.stages == "inverted"
    kept = posterior.corrector.proposal.forward.size.widening
    assert kept == widening if not wider else 1 / 4 <= kept <= 4
    truth = PRIOR.sample((300,))
    drawn = posterior.sample_batched((100,), x=observe(truth), seed=0, show_progress_bars=False)
    assert float(central_coverage(drawn, truth, 0.8).min()) > 0.68


@pytest.mark.parametrize(
    ("pairs", "scores", "kept"),
    [
        (100, {1: 0.0, 4: 0.05, 16: 0.5}, 4),  # worse by half a standard error, then by five
        (100, {1: 0.0, 4: 0.05, 16: 0.09, 64: 0.4}, 16),  # each compared with the best, not with the last
        (100, {1: 0.0, 4: 0.2}, 1),
        (10, {1: 0.0, 4: 0.05}, 1),  # of ten pairs nearly everything is within a standard error
        (10, {1: 0.0, 4: -0.05, 16: 0.1}, 4),
    ],
)
def test_in_doubt_regressions_are_the_less_sure(monkeypatch, pairs, scores, kept):
    noise = torch.randn(pairs)
    noise = (noise - noise.mean()) / noise.std() * 0.1 * pairs**0.5  # a standard error of 0.1 for each step
    starts = object.__new__(Starts)
    starts._sizes, starts.distinct = [Size(1, 3)], pairs
    monkeypatch.setattr(Starts, "_left_out_draws", lambda self, _: self._sizes[0].widening)
    monkeypatch.setattr(Starts, "evidence", lambda self, wide: Evidence(scores[wide] + math.log(wide, 4) * noise))
    assert starts._as_wide_as_they_should_be(1) == kept
    assert starts._sizes[0].widening == kept


def test_no_regression_is_so_wide_that_it_hides_what_is_known_of_one_parameter(monkeypatch):
    noise = torch.randn(80)
    noise = noise - noise.mean()

    def evidence(starts, wide):  # jointly in doubt, and so is the first parameter, but not the second
        worse = math.log(wide, 4)
        return Evidence(worse * (0.01 + noise), worse * torch.stack([0.01 + noise, 0.01 + 0.001 * noise], dim=1))

    starts = object.__new__(Starts)
    starts._sizes, starts.distinct = [Size(1, 3)], 80
    monkeypatch.setattr(Starts, "_left_out_draws", lambda self, _: self._sizes[0].widening)
    monkeypatch.setattr(Starts, "evidence", evidence)
    assert starts._as_wide_as_they_should_be(1) == 1


def test_the_base_posterior_is_asked_about_data_only_where_flows_follow(base_with_embedding, pairs, monkeypatch):
    """Which is most of the work, for images."""
    posterior = FMCPE(base_with_embedding, simulate).fit(*pairs, seed=0, show_progress_bars=False)
    inverted = posterior.corrector.proposal
    assert posterior.stages == "inverted" and not inverted.asks_base
    monkeypatch.setattr(inverted.base, "summarise", None)
    assert posterior.sample((5,), x=pairs[1][0], show_progress_bars=False).shape == (5, 2)


def test_rounded_data_that_repeat_themselves_are_drawn_together(monkeypatch):
    """Runs of equal observations, unequally long, are not drawn one by one; each keeps its own posterior."""
    theta, y = linear(300, 0.5)
    proposal, asked = fit(theta, y, GAUSSIAN), []
    inner = InvertedProposal._draw_z
    monkeypatch.setattr(InvertedProposal, "_draw_z", lambda self, each, n: asked.append(n) or inner(self, each, n))
    seen = proposal.summarise(y[:40]).repeat_interleave(torch.arange(40) % 3 + 1, dim=0)
    assert proposal.sample(seen).shape == (len(seen), 2)
    assert sorted(asked) == [1, 2, 3]
    counts = torch.tensor([1500, 3, 1500])
    found = proposal.sample(proposal.summarise(y[:3]).repeat_interleave(counts, dim=0)).split(counts.tolist())
    for rows, observed in ((found[0], y[0]), (found[2], y[2])):
        torch.testing.assert_close(rows.mean(0), exact(observed, 0.5).mean, atol=0.15, rtol=0)


@pytest.mark.parametrize("noise", [1e-2, 1e-4])
def test_the_density_of_a_very_sharp_posterior_is_not_rounded_away(noise):
    theta, y = linear(40, noise)
    proposal = fit(theta, y, GAUSSIAN, Size(1, 4))
    drawn = draws(proposal, y[:1], 200)[:, 0]
    forward, seen = proposal.forward, proposal.forward.see(y[:1])
    found = proposal.log_prob(drawn, proposal.summarise(y[:1]))[:, 0]
    truth = forward.row_by_row(forward.expect(drawn), seen) + GAUSSIAN.log_prob(drawn)  # but for a constant
    assert float((found - truth).std()) < 0.05


def test_parameters_that_depend_on_their_own_z_alone_are_found_to_do_so():
    mixed = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    for prior in (GAUSSIAN, BoxUniform(-torch.ones(4), torch.ones(4)), mixed):
        pool = PriorPool(prior, prior.sample((500,)))
        assert pool.one_by_one
        z, slope = pool.z[:9], torch.randn(9, pool.space.dim, 3)
        theta = pool.space.to_theta(z)
        whole = pool.theta_by_z(z, theta) @ slope
        torch.testing.assert_close(pool.slopes_along_z(z, theta, slope), whole, atol=2e-2, rtol=2e-2)
