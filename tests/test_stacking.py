"""The default recipe: honest folds, weights against brute force, recalibration, the move to the prior out of range."""

import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch
from conftest import CANDIDATES, PRIOR, SMALL, observe, simulate, with_pairs_of

from fmcpe import FMCPE, FMCPEWarning, Stack, candidates, metrics
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Posterior, split_rows
from fmcpe.candidates.joint_flow import JointFlowed, tiled
from fmcpe.diagnostics.draws import central_credibility
from fmcpe.energy import CrossFit, Distances, effective_number
from fmcpe.in_range import Range
from fmcpe.mixture import Mixture, Recalibrated, recalibrated_without_fold, recalibration
from fmcpe.problem import build_problem, groups_of, split_pairs
from fmcpe.stacking import cross_fit, stack_weights, training_rows


def problem_of(base, seed, number=24):
    with seeded(seed):
        theta = PRIOR.sample((number,))
        return build_problem(
            as_base_posterior(base),
            CheckedSimulator(simulate, torch.Size((3,))),
            PRIOR,
            theta,
            observe(theta),
            None,
            bank=300,
        )


# ---------------------------------------------------------------------- splits


def test_repeated_parameters_stay_together():
    theta = PRIOR.sample((6,)).repeat(4, 1)
    folds = split_pairs(theta, 5, 3)
    assert folds.shape == (3, 24) and set(folds.unique().tolist()) == set(range(5))
    groups, distinct = groups_of(theta)
    assert distinct == 6
    for split in folds:
        assert all(len(split[groups == g].unique()) == 1 for g in range(6))
    assert int(split_pairs(theta[:2].repeat(5, 1), 5, 1).max()) == 1  # two distinct θ: two folds
    rows = torch.arange(24)
    training, validation = split_rows(rows, theta, 0.2)
    assert not set(groups[training].tolist()) & set(groups[validation].tolist())
    assert sorted(torch.cat([training, validation]).tolist()) == rows.tolist()


def test_members_with_fewer_rows_repeat_their_first():
    assert tiled([torch.tensor([3, 1]), torch.tensor([0, 4, 2])], 3).tolist() == [[3, 1, 3], [0, 4, 2]]


@pytest.mark.parametrize("name", ["uncorrected", *CANDIDATES])
def test_a_member_does_not_depend_on_the_pairs_it_is_scored_on(base_with_embedding, name):
    """Replace θ, y and the simulations of a fold: the members that are scored on it draw the same bits."""
    candidate = CANDIDATES.get(name, candidates.Uncorrected())
    here, there = problem_of(base_with_embedding, 0), problem_of(base_with_embedding, 1)
    there = replace(there, bank_theta=here.bank_theta, bank_x=here.bank_x, bank_seen=here.bank_seen, pool=here.pool)
    with seeded(2):
        folds = split_pairs(here.theta, 3, 1)
    inside = (folds[0] == 1).nonzero()[:, 0]
    changed = with_pairs_of(here, inside, there)
    assert not torch.equal(changed.y, here.y) and torch.equal(changed.y[folds[0] == 0], here.y[folds[0] == 0])
    asked = there.y[inside]
    draws = []
    for problem in (here, changed):
        fit = cross_fit(candidate, problem, folds, training_rows(problem, folds, True), 8, seed=3)
        member = fit.members[1] if candidate.uses_pairs else fit.members[0]
        with seeded(4):
            draws.append(member.sample(asked, 16))
    assert torch.equal(*draws)
    if candidate.uses_pairs and name != "prior":  # negative control: the other members have seen the change
        rows = training_rows(here, folds, False)
        with seeded(4):
            other = cross_fit(candidate, changed, folds, rows, 8, seed=3).members[0].sample(asked, 16)
        with seeded(4):
            same = cross_fit(candidate, here, folds, rows, 8, seed=3).members[0].sample(asked, 16)
        assert not torch.equal(other, same)


class Leaking(BasePosterior):
    """Many draws are outside the prior: how many are repeated depends on x."""

    def _draw(self, x, n):
        return (x[:, None, :2] / torch.tensor([1.0, 4.0])) + 0.5 * torch.randn(len(x), n, 2)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_joint_flow_does_not_depend_on_the_pairs_it_is_scored_on_if_the_base_posterior_leaks(fixed, monkeypatch):
    monkeypatch.setattr(Leaking, "fixed_noise", fixed)
    here, there = (problem_of(Leaking(PRIOR, torch.Size((3,))), seed, 9) for seed in (0, 1))
    folds = torch.arange(9) % 3
    changed = with_pairs_of(here, (folds == 0).nonzero()[:, 0], there)
    fits = []
    for problem in (here, changed):
        with seeded(2):
            members = candidates.JointFlow(steps=2).fit_members(
                problem, [(folds != k).nonzero()[:, 0] for k in range(3)]
            )
        fits.append([torch.cat([each.flatten() for each in member.state_dict().values()]) for member in members])
    same = [torch.equal(one, other) for one, other in zip(*fits, strict=True)]
    assert same == [True, False, False]


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_member_does_not_depend_on_outliers_of_the_fold_it_is_scored_on(base_with_embedding, name):
    """An outlier of a fold leaves the rows of all other members; the member that is scored on the fold keeps its bits."""
    problem = problem_of(base_with_embedding, 0)
    with seeded(2):
        folds = split_pairs(problem.theta, 3, 1)
    outlier = (folds[0] == 1).nonzero()[0, 0]
    rows = training_rows(problem, folds, False)
    fewer = [[each if k == 1 else each[each != outlier] for k, each in enumerate(rows[0])]]
    draws = []
    for some in (rows, fewer):
        member = cross_fit(CANDIDATES[name], problem, folds, some, 8, seed=3).members[
            -2 if CANDIDATES[name].uses_pairs else 0
        ]
        with seeded(4):
            draws.append(member.sample(problem.y[:5], 16))
    assert torch.equal(*draws)


# ---------------------------------------------------------------------- weights


class Normal(Posterior):
    """N(mean, std²), whatever y."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = torch.as_tensor(mean), torch.as_tensor(std)

    def sample(self, y, n):
        return self.mean + self.std * torch.randn(len(y), n, len(self.mean))

    def log_prob(self, z, y):
        return torch.distributions.Normal(self.mean, self.std).log_prob(z).sum(-1)

    def to_config(self):
        return {}

    @classmethod
    def from_config(cls, config, shared):
        raise NotImplementedError


def fits_of(posteriors, truth, draws=64):
    y = torch.zeros(len(truth), 1)
    return [CrossFit([p], p.sample(y, draws)[:, None], 0.0) for p in posteriors]


def test_weights_are_those_of_brute_force():
    torch.manual_seed(0)
    truth = torch.randn(40, 2)
    posteriors = [Normal([0.0, 0.0], 1.0), Normal([1.0, 0.0], 0.5), Normal([-1.0, 0.5], 2.0)]
    distances = Distances.of(fits_of(posteriors, truth), truth)
    preference = torch.tensor([0.0, 3.0, 0.0])
    w = stack_weights(distances, preference, 0.1, 40.0)
    a, d = distances.to_truth.double().mean(1), distances.between.double().mean(2)
    scale = float((a - d.diagonal() / 2).min())

    def objective(w):
        w = torch.tensor(w, dtype=torch.float64)
        return float((w @ a - 0.5 * w @ d @ w) / scale - (preference.double() @ w + 0.1 * w.log().sum()) / 40)

    grid = [i / 200 for i in range(1, 199)]
    best = min(((p, q, 1 - p - q) for p, q in itertools.product(grid, grid) if p + q < 1), key=objective)
    assert objective(w.tolist()) <= objective(best) + 1e-9
    assert torch.allclose(w, torch.tensor(best), atol=0.01)
    assert float(w.sum()) == pytest.approx(1, abs=1e-6) and bool((w > 0).all())


def test_the_score_of_a_mixture_is_its_energy_score():
    torch.manual_seed(0)
    truth = torch.randn(30, 1)
    fits = fits_of([Normal([0.0], 1.0), Normal([1.0], 0.5)], truth, 400)
    distances, w = Distances.of(fits, truth), torch.tensor([0.3, 0.7])
    mixture = Mixture([Normal([0.0], 1.0), Normal([1.0], 0.5)], w)
    draws = mixture.sample(torch.zeros(30, 1), 2000)
    direct = metrics.energy_score(draws.movedim(0, 1), truth)
    assert float(distances.scores(w).mean()) == pytest.approx(direct, abs=0.01)


def test_one_candidate_has_all_the_weight_and_the_best_wins_with_many_pairs():
    torch.manual_seed(0)
    truth = torch.randn(2000, 1)
    alone = Distances.of(fits_of([Normal([0.0], 1.0)], truth, 8), truth)
    assert stack_weights(alone, torch.zeros(1), 0.3, 2000.0).tolist() == [1.0]
    right_and_wrong = Distances.of(fits_of([Normal([0.0], 1.0), Normal([2.0], 0.3)], truth, 32), truth)
    assert float(stack_weights(right_and_wrong, torch.tensor([0.0, 1.0]), 0.05, 2000.0)[0]) > 0.99


def test_the_weight_of_a_refuted_posterior_falls_with_the_pairs():
    """ES is quadratic in a small weight: the preference leaves s β / (2 N E) to a posterior at energy distance E."""
    right, wrong = 1.1, 0.3  # mean distance of two draws; the right one's draws are as far from the truth
    distances = Distances(torch.tensor([[right], [6.0]]), torch.tensor([[right, 6.0], [6.0, wrong]])[..., None])
    energy, score = 6.0 - 0.5 * (right + wrong), 0.5 * right
    for pairs in (20.0, 200.0):
        w = float(stack_weights(distances, torch.tensor([0.0, 1.0]), 1e-9, pairs)[1])
        assert w == pytest.approx(score / (2 * pairs * energy), rel=1e-3)


def test_pairs_that_count_for_nothing_do_not_count():
    torch.manual_seed(0)
    truth = torch.cat([torch.zeros(20, 1), torch.full((20, 1), 5.0)])
    distances = Distances.of(fits_of([Normal([0.0], 1.0), Normal([5.0], 1.0)], truth), truth)
    importance = torch.cat([torch.full((20,), 2.0), torch.zeros(20)])
    assert float(stack_weights(distances, torch.zeros(2), 0.1, 40.0, importance)[0]) > 0.95
    assert 0.4 < float(stack_weights(distances, torch.zeros(2), 0.1, 40.0)[0]) < 0.6


def test_an_ensemble_counts_as_the_mixture_of_its_members():
    """Two of four members have not seen a pair: the spread of all four is what two draws of the deployed mixture have."""
    torch.manual_seed(0)
    means = [-3.0, -1.0, 1.0, 3.0]
    members = [Normal([m], 0.5) for m in means]
    y = torch.zeros(400, 1)
    draws = torch.stack(
        [
            torch.cat([m.sample(y[:1], 200) for m in (members[i % 4], members[(i + 1 + i // 4 % 3) % 4])])
            for i in range(400)
        ]
    )
    fit = CrossFit(members, draws, 0.0)
    between = float(Distances.of([fit], torch.zeros(400, 1)).between.mean())
    mixture = Mixture(members, torch.ones(4)).sample(y[:1], 4000)[0]
    expected = float(torch.cdist(mixture, mixture).mean())
    assert between == pytest.approx(expected, rel=0.05)


# ---------------------------------------------------------------------- mixture, recalibration, range


def test_a_mixture_draws_by_its_weights_and_has_its_density():
    mixture = Mixture([Normal([-4.0], 0.5), Normal([4.0], 0.5)], torch.tensor([0.25, 0.75]))
    draws = mixture.sample(torch.zeros(2, 1), 1000)
    assert draws.shape == (2, 1000, 1)
    assert float((draws > 0).float().mean()) == pytest.approx(0.75, abs=2e-3)  # systematic resampling
    one_by_one = torch.stack([mixture.sample(torch.zeros(1, 1), 1)[0, 0] > 0 for _ in range(400)]).float().mean()
    assert float(one_by_one) == pytest.approx(0.75, abs=0.1)
    z = torch.linspace(-8, 8, 2001)[None, :, None]
    assert float(mixture.log_prob(z, torch.zeros(1, 1)).exp().sum()) * 16 / 2000 == pytest.approx(1, abs=1e-3)


def test_single_draws_of_many_rows_come_from_all_members():
    """One draw for each observation, as joint metrics use them, is a sample of the whole mixture."""
    mixture = Mixture([Normal([-4.0], 0.5), Normal([4.0], 0.5)], torch.tensor([0.25, 0.75]))
    for n in (1, 3):
        each = (mixture.sample(torch.zeros(2000, 1), n) > 0).float().mean(0)[:, 0]
        assert each.tolist() == pytest.approx([0.75] * n, abs=4 * (0.25 * 0.75 / 2000) ** 0.5 + 1 / 128)


def test_repeats_of_one_setting_count_once_in_held_out_recalibration():
    torch.manual_seed(0)
    truth, draws, folds = torch.randn(20, 2), 0.4 * torch.randn(20, 64, 2), torch.arange(20)[None] % 4
    once = recalibrated_without_fold(draws, truth, folds, torch.arange(20), 5.0)
    each = torch.arange(20).repeat(3)
    thrice = recalibrated_without_fold(draws[each], truth[each], folds[:, each], each, 5.0)
    assert torch.allclose(thrice[:20], once, atol=1e-6)
    apart = recalibrated_without_fold(draws[each], truth[each], folds[:, each], torch.arange(60), 5.0)
    assert float(apart.std()) > 1.05 * float(once.std())  # shrunk less to the draws, which are too narrow


@pytest.mark.parametrize("width", [0.3, 1.0, 2.5])
def test_recalibration_finds_the_spread_that_is_wrong(width):
    torch.manual_seed(0)
    truth = torch.randn(4000, 1)
    draws = width * torch.randn(4000, 60, 1)
    assert float(recalibration(draws, truth, 4000, 1.0)) == pytest.approx(1 / width, rel=0.1)
    assert abs(math.log(float(recalibration(draws, truth, 3, 1.0)))) <= abs(math.log(1 / width)) + 1e-6
    shrunk = float(recalibration(draws, truth, 1e-3, 1.0))
    assert shrunk == pytest.approx(1, abs=0.06)


def test_a_recalibrated_posterior_has_the_density_of_its_draws():
    torch.manual_seed(0)
    wider = Recalibrated(Normal([2.0, -1.0], 0.5), torch.tensor([2.0, 0.5]))
    draws = wider.sample(torch.zeros(1, 1), 20_000)[0]
    assert torch.allclose(draws.std(0), torch.tensor([1.0, 0.25]), rtol=0.03)
    assert torch.allclose(draws.mean(0), torch.tensor([2.0, -1.0]), atol=0.03)
    z = torch.randn(1, 50, 2) + torch.tensor([2.0, -1.0])
    exact = torch.distributions.Normal(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.25])).log_prob(z).sum(-1)
    assert float((wider.log_prob(z, torch.zeros(1, 1)) - exact).abs().median()) < 0.3


def test_observations_like_the_pairs_are_in_range_and_others_are_not():
    torch.manual_seed(0)
    mixing = torch.randn(5, 5)
    usual = Range.of(torch.randn(60, 5) @ mixing)
    like, unlike = usual.p_values(torch.randn(2000, 5) @ mixing), usual.p_values(20 * torch.randn(200, 5) @ mixing)
    assert float((like < 0.05).float().mean()) < 0.12 and float(like.median()) > 0.3
    assert float(unlike.max()) < 1e-2 and float(unlike.median()) < 1e-4


def test_p_values_of_exchangeable_observations_are_uniform():
    """Conformal ones for any number of pairs: P(p <= a) is at most a, and at least a - 1/(N + 1)."""
    torch.manual_seed(0)
    found = []
    for _ in range(60):
        rows = torch.randn(19 + 50, 3) @ torch.diag(torch.tensor([1.0, 5.0, 0.2])) + 10
        found.append(Range.of(rows[:19]).conformal(rows[19:]))
    found = torch.cat(found)
    assert float(found.min()) >= 1 / 20 - 1e-6
    for level in (0.1, 0.25, 0.5):
        assert float((found <= level + 1e-6).float().mean()) == pytest.approx(level, abs=0.05)


# ---------------------------------------------------------------------- the whole


def test_observations_unlike_all_pairs_are_named(posteriors):
    posterior = posteriors("default")
    torch.manual_seed(3)
    like, unlike = observe(PRIOR.sample((20,))), torch.full((2, 3), 1e3)
    found = posterior.check(torch.cat([like, unlike]))
    assert found.out_of_range.tolist() == [False] * 20 + [True] * 2
    assert float(found.conformal[-1]) == pytest.approx(1 / 31) and float(found.prior_share[-1]) > 0.95
    assert bool((found.simulations[-2:] < 1e-3).all()) and float(found.simulations[:20].median()) > 1e-3
    assert "out of range" in str(found)
    for call in (
        lambda: posterior.sample((5,), x=unlike[0]),
        lambda: posterior.sample_batched((5,), x=torch.cat([like, unlike])),
        lambda: posterior.log_prob([[0.1, 0.5]], x=unlike[0]),
    ):
        with pytest.warns(FMCPEWarning, match="of [0-9]+ out of range \\(p < 0.001; about") as caught:
            call()
        assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.sample_batched((5,), x=like)
    with pytest.raises(NotImplementedError, match="default recipe"):
        posteriors("joint").check(like)


def test_far_from_all_pairs_the_answer_is_the_prior(posteriors):
    posterior = posteriors("default")
    near, far = observe(torch.tensor([[0.3, 0.5]])), torch.full((1, 3), 1e3)
    spread = [posterior.space.to_z_safely(posterior.sample((400,), x=y[0], seed=0)).std(0) for y in (near, far)]
    assert bool((spread[0] < 0.7).all())
    assert bool((spread[1] > 0.85).all())
    assert float(posterior.inner.share_of_prior(far)) > 0.95 and float(posterior.inner.share_of_prior(near)) < 0.05


def test_a_parameter_that_was_never_varied_gives_no_sharp_answer(base):
    """All pairs have one gain, so nothing shows what other gains look like; unless the gain stays there."""
    torch.manual_seed(0)
    theta = PRIOR.sample((30,))
    theta[:, 1] = 0.5
    few = replace(SMALL, candidates=(candidates.Uncorrected(), candidates.FineTuned(steps=60)))
    test = PRIOR.sample((200,))
    fixed = test.clone()
    fixed[:, 1] = 0.5 + 0.01 * (torch.rand(200) - 0.5)
    target = torch.distributions.Independent(
        torch.distributions.Uniform(torch.tensor([-2.0, 0.495]), torch.tensor([2.0, 0.505])), 1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        wide = FMCPE(base, simulate, recipe=few).fit(theta, observe(theta), seed=0)
        narrow = FMCPE(base, simulate, target_prior=target, recipe=few).fit(theta, observe(theta), seed=0)
    inner = wide.inner.inner.sample(observe(test), 100)[..., 1]  # what the pairs alone would have us believe
    assert float(inner.std(1).median()) < 0.5
    draws = wide.inner.sample(observe(test), 100)
    covered = coverage(draws, wide.space.to_z(test))
    assert float(covered.min()) > 0.9 - 3 * (0.09 / 200) ** 0.5 - 0.05  # 100 draws have coarse quantiles
    assert float(wide.inner.share_by_theta(observe(test))[:, 1].median()) > 0.5
    assert float(narrow.inner.share_by_theta(observe(fixed)).max()) < 0.05


def coverage(draws, truth, level=0.9):
    low, high = draws.quantile((1 - level) / 2, dim=1), draws.quantile((1 + level) / 2, dim=1)
    return ((truth >= low) & (truth <= high)).float().mean(0)


def test_pairs_over_the_whole_prior_reach_everywhere(posteriors):
    torch.manual_seed(0)
    assert float(posteriors("default").inner.share_by_theta(observe(PRIOR.sample((200,)))).mean()) < 0.01


def test_weights_and_summary_say_what_carries_the_answer(posteriors):
    posterior = posteriors("default")
    assert sum(posterior.weights.values()) == pytest.approx(1, abs=1e-5)
    assert list(posterior.weights.values()) == sorted(posterior.weights.values(), reverse=True)
    assert set(posterior.weights) == {"uncorrected", *CANDIDATES}
    text = posterior.summary()
    for words in ("cross-validated energy score", "approximately held out", "80 % interval holds", *CANDIDATES):
        assert words in text, words


def test_what_cannot_be_fitted_is_skipped_and_says_why(pairs):
    """A plain function has no density estimator, and one θ leaves nothing to hold out."""

    def draw(x):
        return torch.stack([x[:, 0].clamp(-1.9, 1.9), torch.rand(len(x))], dim=1)

    posterior = FMCPE(draw, simulate, PRIOR, recipe=SMALL).fit(*pairs, seed=0, show_progress_bars=False)
    assert "density estimator" in posterior.record.skipped["fine_tuned"]
    theta = pairs[0][:1].repeat(12, 1)
    with pytest.warns(FMCPEWarning, match="in all pairs"):
        alone = FMCPE(draw, simulate, PRIOR, recipe=SMALL).fit(theta, observe(theta), seed=0, show_progress_bars=False)
    assert set(alone.weights) == {"prior", "uncorrected"}
    assert "same θ" in alone.record.skipped["residual_shift"]


class Diverged(candidates.Prior):
    """Its draws of the second parameter are NaN."""

    name = "diverged"

    def fit_members(self, problem, subsets):
        return [Normal([0.0, torch.nan], 1.0) for _ in subsets]


def test_a_candidate_whose_draws_have_nan_is_skipped_and_says_why(base, pairs):
    def fit(*listed):
        return FMCPE(base, simulate, recipe=Stack(listed)).fit(*pairs, seed=0, show_progress_bars=False)

    posterior = fit(candidates.Uncorrected(), Diverged())
    assert posterior.weights == {"uncorrected": 1.0}
    assert "diverged             not fitted: its draws for held-out pairs have NaN" in posterior.summary()
    with pytest.raises(ValueError, match=r"got none \(diverged: its draws for held-out pairs have NaN\)"):
        fit(Diverged())


def test_paired_simulations_are_enough(base, pairs):
    x = simulate(pairs[0])
    posterior = FMCPE(base, recipe=SMALL).fit(*pairs, x, seed=0, show_progress_bars=False)
    assert posterior.sample((5,), x=pairs[1][0]).shape == (5, 2)
    with pytest.raises(ValueError, match="x=simulations_at_theta"):
        FMCPE(base, recipe="paper").fit(*pairs, seed=0)


def test_a_target_prior_is_used(base, pairs):
    target = torch.distributions.Independent(
        torch.distributions.Uniform(torch.tensor([0.0, 0.4]), torch.tensor([0.5, 0.6])), 1
    )
    recipe = replace(SMALL, candidates=(candidates.Prior(),))
    posterior = FMCPE(base, simulate, target_prior=target, recipe=recipe).fit(*pairs, seed=0, show_progress_bars=False)
    draws = posterior.sample((200,), x=pairs[1][0], seed=0)
    assert bool((posterior.space.to_z_safely(draws).isfinite()).all())
    assert float(draws[:, 0].median()) == pytest.approx(0.25, abs=0.15)
    with pytest.raises(ValueError, match="2 parameter"):
        FMCPE(
            base,
            simulate,
            target_prior=torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(3), torch.ones(3)), 1),
        )


def test_pairs_that_do_not_span_the_prior_are_named(base):
    theta = PRIOR.sample((20,))
    theta[:, 1] = 0.3 + 0.05 * torch.rand(20)
    with pytest.warns(FMCPEWarning, match="All pairs have gain between 0.3"):
        FMCPE(base, simulate, recipe=SMALL, names=("offset", "gain")).fit(theta, observe(theta), seed=0)
    theta[:, 1] = torch.tensor([0.1, 0.5, 0.9])[torch.arange(20) % 3]
    with pytest.warns(FMCPEWarning, match="one of 3 values of gain, from 0.1 to 0.9"):
        FMCPE(base, simulate, recipe=SMALL, names=("offset", "gain")).fit(theta, observe(theta), seed=0)
    with pytest.raises(ValueError, match="2 different names"):
        FMCPE(base, simulate, names=("offset",))


@pytest.mark.parametrize("wrong", [{"folds": 1}, {"candidates": (candidates.Prior(), candidates.Prior())}])
def test_wrong_stacks_are_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        Stack(**wrong)


def test_fits_repeat(base, pairs):
    first, second = (
        FMCPE(base, simulate, recipe=SMALL).fit(*pairs, seed=5, show_progress_bars=False) for _ in range(2)
    )
    assert torch.equal(first.sample((20,), x=pairs[1][0], seed=0), second.sample((20,), x=pairs[1][0], seed=0))
    assert first.weights == second.weights


def test_weights_of_pairs_are_checked(base, pairs):
    method = FMCPE(base, simulate, recipe=replace(SMALL, candidates=(candidates.Prior(), candidates.Uncorrected())))
    wrongs = {"weights of shape": torch.ones(3), "not negative": -torch.ones(30), "not all zero": torch.zeros(30)}
    for said, wrong in wrongs.items():
        with pytest.raises(ValueError, match=said):
            method.fit(*pairs, weights=wrong, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        assert method.fit(*pairs, weights=torch.rand(30), seed=0).weights


def test_flows_of_an_ensemble_are_one_batch_of_networks(posteriors, pairs):
    """Densities are those of the members one by one, and so are draws, in distribution."""
    posterior = posteriors("joint_flow")
    mixture = next(module for module in posterior.inner.modules() if isinstance(module, Mixture))
    y, z = pairs[1][:2], posterior.space.to_z(pairs[0][:10]).expand(2, -1, -1)
    apart = torch.stack([member.log_prob(z, y) for member in mixture.members])
    together = torch.stack(JointFlowed.log_prob_together(mixture.members, z, y))
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)
    with seeded(0):
        one = [member.sample(y, 4000) for member in mixture.members]
    with seeded(1):
        all_of_them = JointFlowed.sample_together(mixture.members, y, [4000, 3000])
    assert [draws.shape[1] for draws in all_of_them] == [4000, 3000]
    for a, b in zip(one, all_of_them, strict=True):
        for moment in (torch.mean, torch.std):
            torch.testing.assert_close(moment(a, dim=1), moment(b, dim=1), atol=0.08, rtol=0.05)


def test_the_score_of_one_candidate_does_not_depend_on_how_many_draws_it_is_scored_by():
    """A draw's distance to itself would make the spread too small, and mixtures look better than they are."""
    torch.manual_seed(0)
    truth = torch.randn(4000, 2)
    scores = []
    for size in (4, 64):
        fit = CrossFit([None], torch.randn(4000, 1, size, 2), 0.0)
        scores.append(float(Distances.of([fit], truth).scores(torch.ones(1)).mean()))
    # E|Z - z| = E|Z - Z'| = sqrt(pi) for standard normals in two dimensions, and half of it is the score
    assert scores == pytest.approx([math.pi**0.5 / 2] * 2, rel=0.03)


def test_held_out_draws_are_distinct_where_no_pair_took_part(base):
    """With draws that repeat themselves, scores would be too large and coverage too small."""
    with seeded(0):
        theta = PRIOR.sample((20,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = Stack([candidates.Prior(), candidates.Uncorrected()])
        posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, simulate(theta), seed=0, show_progress_bars=False)
    for draws in (posterior.held_out.z, posterior.held_out.before):
        assert draws.shape[:2] == (20, 64) and all(len(each.unique(dim=0)) == 64 for each in draws)


# ---------------------------------------------------------------------- weights of pairs


def test_pairs_of_weight_zero_do_not_enter_the_recalibration():
    torch.manual_seed(0)
    truth, draws = torch.randn(80, 2), torch.randn(80, 64, 2)
    draws[:40] *= 3.0
    weights = torch.cat([torch.full((40,), 2.0), torch.zeros(40)])
    assert effective_number(80.0, weights) == pytest.approx(40.0)
    assert torch.equal(
        recalibration(draws, truth, 40.0, 5.0, weights), recalibration(draws[:40], truth[:40], 40.0, 5.0)
    )
    assert float(recalibration(draws, truth, 40.0, 5.0, weights).max()) < 0.6


def test_the_summary_of_weighted_pairs_is_of_those_that_count(base):
    """Doubling a pair's weight counts it twice: coverage, error and scores are weighted means over the pairs."""
    with seeded(0):
        theta = PRIOR.sample((30,))
    y, weights = observe(theta), torch.cat([torch.ones(15), torch.full((15,), 3.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = FMCPE(base, simulate, recipe=SMALL).fit(theta, y, weights=weights, seed=0, show_progress_bars=False)
    record, held_out = posterior.record, posterior.held_out
    assert record.effective == pytest.approx(24.0) and "worth 24.0" in posterior.summary()
    draws = posterior.space.to_theta(held_out.z.flatten(0, 1)).reshape(held_out.z.shape)
    inside = (central_credibility(draws.movedim(1, 0), theta) <= 0.9).float()
    errors = (draws.median(1).values - theta).abs()
    for i, line in enumerate(record.parameters):
        assert line.coverage[1] == pytest.approx(float((weights @ inside[:, i]) / weights.sum()), abs=1e-5)
        each = errors[:, i].repeat_interleave(weights.int()).sort().values
        assert line.error == pytest.approx(float(each[(len(each) - 1) // 2]), rel=1e-5)


def test_a_few_pairs_that_carry_all_weight_are_warned_of(base):
    with seeded(0):
        theta = PRIOR.sample((30,))
    weights = torch.cat([torch.full((4,), 100.0), torch.ones(26)])
    with pytest.warns(FMCPEWarning, match="30 pairs that count as 4"):
        FMCPE(base, simulate, recipe=SMALL).fit(
            theta, observe(theta), weights=weights, seed=0, show_progress_bars=False
        )


def test_a_parameter_that_the_data_do_not_show_is_named(base):
    """Data that carry the first parameter only: the fit says so of the second, and not of the first."""
    with seeded(0):
        theta = PRIOR.sample((60,))
        other = PRIOR.sample((60,))
    seen = torch.cat([theta[:, :1], other[:, 1:]], dim=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FMCPE(base, simulate, recipe=SMALL, names=("offset", "gain")).fit(
            theta, observe(seen), seed=0, show_progress_bars=False
        )
    said = [str(each.message) for each in caught if "not predicted significantly" in str(each.message)]
    assert len(said) == 1 and "Held-out values of gain" in said[0]
