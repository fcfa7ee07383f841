"""Is this observation in range: p-values of exchangeable ones, and the answer far outside."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from conftest import CANDIDATES, PRIOR, SMALL, observe, simulate
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Stack, as_base_posterior, candidates
from fmcpe._random import seeded
from fmcpe.extrapolation import WithinRange
from fmcpe.in_range import Range
from fmcpe.spaces import ParameterSpace
from fmcpe.spread import Widening, share_needed, spreads, way_needed


@pytest.mark.parametrize(("number", "dim"), [(10, 3), (30, 12), (100, 5)])
def test_student_p_values_of_exchangeable_observations_are_valid(number, dim):
    """P(p <= a) is at most a, over 60 sets of pairs with 100 observations each, within what chance allows."""
    with seeded(0):
        p = []
        for _ in range(60):
            rows = torch.randn(number + 100, dim) @ torch.randn(dim, dim)
            p.append(Range.of(rows[:number]).p_values(rows[number:]))
    p = torch.cat(p)
    for level in (0.1, 0.05, 0.01, 0.001):
        # observations of one set share its pairs: four times the standard error of 6000 independent ones
        assert float((p <= level).double().mean()) <= level + 4 * (level / 6000) ** 0.5
    assert 0.4 < float((p <= 0.5).double().mean()) < 0.6


def test_heavy_tails_of_the_pairs_are_in_range():
    """The p-value of an observation that is no farther than k of N pairs is at least k/N, whatever the tail of distances."""
    with seeded(0):
        rows = torch.distributions.StudentT(1.5).sample((400, 4))
        near = torch.distributions.StudentT(1.5).sample((2000, 4))
    usual = Range.of(rows)
    p, share = usual.p_values(near), usual.conformal(near) - 1 / 401
    assert bool((p >= share - 1e-6).all())
    assert float((p < 1e-3).double().mean()) < 0.005


@pytest.mark.parametrize("simulated", [False, True])
def test_another_value_of_a_sensor_that_never_varied_is_out_of_range(simulated):
    """It has no variance, so no distance sees it; rounding does not count, and nothing becomes NaN."""
    with seeded(0):
        rows, near, like = (torch.cat([torch.randn(n, 3), torch.full((n, 1), 7.3)], 1) for n in (30, 50, 300))
    usual = Range.of(rows, like + 2 if simulated else None)
    moved, rounded = near.clone(), near.clone()
    moved[:, 3], rounded[:, 3] = 7.4, 7.3 * (1 + 1e-6)
    assert usual.constant == (3,)
    assert usual.p_values(moved).tolist() == [0.0] * 50
    assert torch.allclose(usual.conformal(moved), torch.tensor(1 / 31))
    assert torch.equal(usual.p_values(rounded), usual.p_values(near))
    assert float(usual.p_values(near).min()) > 1e-4
    varied = Range.of(rows, torch.cat([like[:, :3], torch.randn(300, 1)], 1))
    assert varied.constant == ()  # the simulations give its variance
    assert float(varied.p_values(moved).min()) > 0


def test_constant_summaries_survive_a_file(base, pairs, tmp_path):
    """The columns are in the manifest; a manifest of an earlier version has none, one with other columns is refused."""
    recipe = Stack([candidates.Prior(), candidates.ResidualShift()], folds=2, repeats=1)
    posterior = FMCPE(base, simulate, recipe=recipe).fit(*pairs, seed=0, show_progress_bars=False)
    inner, shared = posterior.inner, posterior.shared
    config = inner.to_config()
    assert "constant" not in config and WithinRange.from_config(config, shared).usual.constant == ()
    inner.usual.constant = (1,)
    config = json.loads(json.dumps(inner.to_config()))
    with seeded(9):
        y = observe(PRIOR.sample((2,)))
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe")).inner
    p, share, draws = loaded.p_values(y), loaded.share_of_prior(y), loaded.sample(y, 10)
    densities = loaded.log_prob(draws, y)
    assert loaded.usual.constant == (1,)
    assert p.tolist() == [0.0] * 2 and share.tolist() == [1.0] * 2
    assert bool(draws.isfinite().all()) and bool(densities.isfinite().all())
    config["constant"][0] = [99]
    with pytest.raises(ValueError, match="columns of 3 summaries"):
        WithinRange.from_config(config, shared)


@pytest.mark.parametrize("number", [2, 3, 5])
def test_simulations_complete_few_pairs(number):
    """An observation a thousand deviations away is out of range of two to five pairs; exchangeable ones are not."""
    with seeded(number):
        root = torch.randn(6, 6)
        like, near = torch.randn(300, 6) @ root, torch.randn(200, 6) @ root + 5
        usual = Range.of(torch.randn(number, 6) @ root + 5, like)
    assert float(usual.p_values(near * 1000).max()) < 1e-3
    assert float((usual.p_values(near) < 1e-3).double().mean()) < 0.02


def test_check_draws_and_warnings_call_the_same_observations_out_of_range(posteriors):
    """One observation of many, at a p-value just below 0.001: adjusted for their number it would pass."""
    posterior = posteriors("default")
    with seeded(0):
        y = observe(PRIOR.sample((100,)))
    ray = y[:1] + torch.linspace(0, 30, 3001)[:, None]
    p = posterior.inner.p_values(ray)  # those of `check`, without draws
    barely = ray[(p < 1e-3) & (p > 5e-4)][:1]
    y = torch.cat([y[posterior.check(y).pairs > 0.01], barely])
    found = posterior.check(y).out_of_range
    assert found.tolist() == [False] * (len(y) - 1) + [True]
    draws = posterior.draws(5, y, seed=0)
    assert draws.out_of_range.tolist() == found.tolist()
    assert f"1 of {len(y)} observation(s) are out of range" in draws.range_text()
    with pytest.warns(FMCPEWarning, match=f"1 of {len(y)} out of range"):
        posterior.sample_batched((5,), x=y, show_progress_bars=False)


@pytest.mark.parametrize(
    ("kind", "unit"),
    [("default", 1.0), ("synthetic_likelihood", 1e-12), ("residual_shift", 1e-12), ("fine_tuned", 1.0)],
)
def test_where_single_precision_overflows_the_answer_is_the_prior(kind, unit, base, pairs):
    """Largest numbers mark missing values in some formats; in a small unit, smaller ones overflow."""
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        method = FMCPE(in_unit(base, unit), lambda theta: unit * simulate(theta), recipe=stack_of(kind))
        posterior = method.fit(pairs[0], unit * pairs[1], seed=0, show_progress_bars=False)
    for far in ([3.4e38] * 3, [0.0, -3.4e38, 0.0], [1e32, -1e32, 1e32]):
        y = torch.tensor(far)
        with pytest.warns(FMCPEWarning, match="1 of 1 out of range"):
            draws = posterior.sample((400,), x=y, seed=0, show_progress_bars=False)
        assert bool((draws.std(0) > torch.tensor([1.0, 0.25])).all())
        found = posterior.check(y)
        assert bool(found.out_of_range) and bool(found.prior_share > 0.99)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FMCPEWarning)
            try:
                assert bool(torch.isfinite(posterior.log_prob(pairs[0][:2], x=y)).all())
            except (ValueError, NotImplementedError) as error:
                assert str(error).startswith("Expected ")


def in_unit(base, unit):
    """The base posterior of data in another unit."""
    own = as_base_posterior(base)
    return as_base_posterior(lambda x: own.sample(x / unit, 1)[:, 0], prior=PRIOR) if unit != 1 else base


def stack_of(kind):
    return replace(SMALL, candidates=(CANDIDATES[kind],)) if kind in CANDIDATES else SMALL


def test_out_of_range_the_answer_is_as_wide_as_at_a_typical_pair(posteriors):
    """Along rays out of the pairs, wherever `sample` warns: standard deviations, central 68 % and shortest 50 % intervals."""
    posterior = posteriors("default")
    with seeded(2):
        real = observe(PRIOR.sample((200,)))
        direction = torch.nn.functional.normalize(torch.randn(10, 3), dim=1)
    usual, met = _spread(posterior, real).median(0).values, 0
    usual = torch.minimum(usual, torch.tensor([1.0, 1.0, 0.6745]).repeat_interleave(2))  # the prior's
    for distance in (2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0):
        moved = real[:10] + distance * real.std(0) * direction
        far = posterior.check(moved).out_of_range
        met += int(far.sum())
        # 300 draws, and the median over other pairs
        assert bool((_spread(posterior, moved)[far] >= 0.8 * usual).all())
    assert met >= 20


def test_out_of_range_the_answer_is_never_sharper_than_inside(posteriors):
    """From ten standard deviations of the pairs to a thousand, in 20 directions; inside: the sharpest of 100 observations."""
    posterior = posteriors("default")
    with seeded(1):
        real = observe(PRIOR.sample((100,)))
        direction = torch.nn.functional.normalize(torch.randn(20, 3), dim=1)
    inside = _spread(posterior, real)
    for distance in (10.0, 100.0, 1000.0):
        moved = real[:20] + distance * real.std(0) * direction
        found = posterior.check(moved)
        assert bool((found.pairs < 0.01).all()) and bool((found.conformal == found.conformal.min()).all())
        spread = _spread(posterior, moved)[found.out_of_range]
        assert bool((spread >= inside.amin(0)).all())
    assert bool(found.out_of_range.all()) and float(found.pairs.max()) < 1e-6 and float(found.prior_share.min()) > 0.9
    assert float(spread[:, :4].min()) > 0.75  # close to the prior's, of one


def _spread(posterior, y):
    """Standard deviation, half of the central 68 % and of the shortest 50 % interval of each parameter in z, (B, 3p)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        draws = posterior.sample_batched((300,), x=y, seed=0, show_progress_bars=False)
    z = posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape)
    ordered = z.sort(0).values
    shortest = (ordered[150:] - ordered[:150]).amin(0) / 2
    return torch.cat([z.std(0), (z.quantile(0.84, dim=0) - z.quantile(0.16, dim=0)) / 2, shortest], dim=1)


def test_the_share_of_the_prior_is_the_smallest_that_is_enough():
    """A peak and the standard normal prior: the central 68 % interval is that of a mixture, solved by hand."""
    space = ParameterSpace.of(Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
    with seeded(4):
        peak, prior = 1e-3 * torch.randn(2, 4000, 1), torch.randn(4000, 1)
    prior_spreads = spreads(prior[None], space)[0]
    least = torch.tensor([0.3, 0.3, 0.5, 0.5])  # the shortest interval is left out, as in files of earlier versions
    share = share_needed(peak, prior, least, space, steps=8)
    # 2 s (1 - Φ(0.5)) = 0.32 for a peak at zero; the standard deviation alone asks for 0.09
    assert torch.allclose(share, torch.full((2,), 0.32 / (2 * 0.3085)).double(), atol=0.03)
    assert torch.allclose(
        share_needed(peak, prior, torch.tensor([0.3, 0.3, 0.0, 0.0]), space), torch.full((2,), 0.09).double(), atol=0.03
    )
    # a peak at the upper end of the central interval: the shortest 50 % interval leaves it once it has less than half the mass
    shortest = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.3, 0.3])
    assert 0.5 < float(share_needed(peak[:1], prior, shortest, space, steps=8)) < 0.85
    assert float(share_needed(prior[None], prior, 0.99 * prior_spreads, space)) == 0.0
    assert float(share_needed(peak[:1], prior, 1.1 * prior_spreads, space)) == 1.0


def test_a_widening_moves_each_parameter_as_far_as_it_needs():
    """Normal draws and a standard normal prior: s_t = s + t (1 - s), solved by hand; a wide parameter stays to the bit."""
    space = ParameterSpace.of(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    with seeded(4):
        z = torch.tensor([2.0, -1.0]) + torch.tensor([0.1, 0.6]) * torch.randn(3, 4000, 2)
        prior = torch.randn(4000, 2)
    least = torch.tensor([0.25, 0.25]).repeat(6)
    way = way_needed(z, prior, least.double(), space)
    # the shortest 50 % interval, half of which is 0.67 s, needs s_t = 0.37: t = 0.27 / 0.9
    assert torch.allclose(way[:, 0], torch.full((3,), 0.3).double(), atol=0.05) and bool((way[:, 1] == 0).all())
    widening = Widening.towards(z, prior, way.float())
    wide = widening(z)
    found = spreads(wide, space)
    assert bool((found >= least).all()) and float(found.amin(1).max()) < 0.26
    assert torch.allclose(wide.mean(1)[:, 0], torch.full((3,), 2 * 0.7), atol=0.1)
    assert torch.allclose(wide[..., 1], z[..., 1], atol=1e-5)
    assert torch.allclose(widening.inverse(wide), z, atol=1e-5)


def test_the_density_out_of_range_integrates_to_one_and_has_the_moments_of_the_draws(base):
    """At a p-value where the answer is widened and the prior has little weight; in range, nothing is widened."""
    with seeded(0):
        theta = PRIOR.sample((40,))
        y, real = observe(theta), observe(PRIOR.sample((200,)))
    recipe = Stack([candidates.SyntheticLikelihood()])
    posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
    within = posterior.inner
    within.typical = (0.6 * within.prior_spreads).tolist()  # wider than this posterior is anywhere
    with seeded(3):
        direction = torch.nn.functional.normalize(torch.randn(30, 1, 3), dim=2)
    moved = (real[:30, None] + torch.linspace(0, 30, 301)[:, None] * direction * real.std(0)).flatten(0, 1)
    p = within.p_values(moved)
    moved = moved[(p < 1e-3) & (p > 3e-4)]
    y = moved[:1]
    share, _, widening = within._at(y)
    assert float(share) < 0.1 and float(widening.scale.max()) > 1.1
    near = within._at(real[within.p_values(real) > 0.01])[2]
    assert bool((near.scale == 1).all()) and torch.equal(near.mean, near.centre)
    with seeded(1), torch.no_grad():
        z = within.sample(y, 20_000)[0]
    # by draws of wide normal distributions about them and about the prior
    parts = Independent(
        Normal(torch.stack([z.mean(0), torch.zeros(2)]), torch.stack([2 * z.std(0), 2 * torch.ones(2)])), 1
    )
    proposal = MixtureSameFamily(Categorical(torch.ones(2)), parts)
    with seeded(2), torch.no_grad():
        at = proposal.sample((100_000,))
        weight = (within.log_prob(at[None], y)[0] - proposal.log_prob(at)).exp()
    assert float(weight.mean()) == pytest.approx(1, abs=0.03)
    assert torch.allclose((weight[:, None] * at).mean(0) / weight.mean(), z.mean(0), atol=0.05)


def test_heavy_tails_are_known_from_many_pairs():
    """P-values of new observations whose distance has a Pareto tail: hardly smaller than uniform ones."""
    generator = torch.Generator().manual_seed(0)

    def rows(number):
        direction = torch.nn.functional.normalize(torch.randn(number, 3, generator=generator), dim=1)
        return direction * torch.rand(number, 1, generator=generator).pow(-1 / 3)

    new = rows(20_000)
    p = torch.stack([Range.of(rows(1000)).p_values(new) for _ in range(3)])
    assert float((p < 1e-3).float().mean()) < 2e-3
    assert float((p < 1e-5).float().mean()) < 1e-4
    assert float(Range.of(rows(1000)).p_values(torch.full((1, 3), 1e5))) < 1e-6


def test_an_outlier_among_the_pairs_does_not_widen_their_range(base):
    """One y x 1000 among 30 pairs, left out of the fit: observations x 10, 100 and 1000 are called out of range."""
    with seeded(5):
        theta = PRIOR.sample((30,))
        y, new = observe(theta), observe(PRIOR.sample((1,)))
    y[7] *= 1000
    recipe = Stack([candidates.Prior(), candidates.ResidualShift()])
    with pytest.warns(FMCPEWarning, match="leaves out"):
        posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
    assert posterior.check(torch.cat([10 * new, 100 * new, 1000 * new])).out_of_range.tolist() == [True] * 3
    assert not bool(posterior.check(new).out_of_range)


@pytest.mark.parametrize("fixed", [True, False])
def test_scores_that_are_not_those_of_the_answer_are_named(base, fixed):
    """A parameter that was never varied has the prior, also at the pairs."""
    with seeded(6):
        theta = PRIOR.sample((30,))
        theta[:, 1] = theta[:, 1].median() if fixed else theta[:, 1]
        y = observe(theta)
    recipe = Stack([candidates.Prior(), candidates.ResidualShift()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
    named = [str(each.message) for each in caught if "The prior has weight" in str(each.message)]
    assert len(named) == fixed
    assert ("The prior has weight" in posterior.summary()) == fixed


def test_the_number_of_pairs_as_far_is_counted_exactly():
    """Ties count; as in a matrix of all comparisons."""
    with seeded(0):
        distances = torch.randn(37).round(decimals=1)
        asked = torch.cat([distances, torch.randn(500), torch.tensor([-torch.inf, torch.inf])])
    usual = Range(mean=torch.zeros(1), matrix=torch.ones(1, 1), distances=distances)
    matrix = distances >= asked[:, None]
    assert torch.equal(usual._as_far(asked), matrix.sum(1))
    assert torch.equal(usual._as_far(asked).float() / 37, matrix.float().mean(1))


def test_the_base_posterior_is_asked_about_a_bounded_number_of_observations(posteriors, monkeypatch):
    within = posteriors("residual_shift").inner
    asked, sample = [], type(within.base).sample
    monkeypatch.setattr(type(within.base), "sample", lambda base, x, n: asked.append(len(x)) or sample(base, x, n))
    y = observe(PRIOR.sample((30,)))
    few = within.share_by_theta(y, 2)
    many = within.share_by_theta(y.repeat(150, 1), 2)
    assert few.shape == (30, 2) and many.shape == (4500, 2) and bool(many.isfinite().all())
    assert asked == [30, 2000, 2000, 500]
