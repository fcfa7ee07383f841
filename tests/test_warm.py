"""The default recipe: closed forms against algebra, fine-tuned members, evidence, and what is kept."""

import copy

import pytest
import torch
from conftest import PRIOR, simulate
from sbi.neural_nets import posterior_nn
from torch import nn

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, as_proposal, baselines, metrics, summary
from fmcpe.calibrate import calibrate, disagreement
from fmcpe.diagnostics import central_coverage
from fmcpe.evidence import Evidence, cannot_be_told_apart, choose, is_informed, left_out
from fmcpe.members import stack, unstacked
from fmcpe.recipe import Recipe
from fmcpe.refine import refine
from fmcpe.roughen import RoughnessAware, distort, draw_levels, roughness_of
from fmcpe.source import fit_move, fit_ridge, fit_step, transport_map
from fmcpe.spaces import ParameterSpace
from fmcpe.starts import Starts
from fmcpe.summary import can_be_tuned, tune


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# ---------------------------------------------------------------------- closed forms


def test_leave_one_out_is_what_leaving_out_gives():
    """The closed form against a refit with the same penalty: both give the residual of a row that was not there."""
    features, targets = torch.randn(15, 4), torch.randn(15, 2)
    fit = fit_ridge(features, targets)
    gram = torch.linalg.inv(fit.ridge.gram_inverse.double())
    centred = (features - features.mean(0)).double()
    penalty = (gram - centred.T @ centred).diagonal().mean()
    for i in range(15):
        rest = torch.arange(15) != i
        f, t = features[rest].double(), targets[rest].double()
        fc = f - f.mean(0)
        weight = torch.linalg.solve(fc.T @ fc + penalty * torch.eye(4, dtype=torch.float64), fc.T @ (t - t.mean(0)))
        predicted = (features[i].double() - f.mean(0)) @ weight + t.mean(0)
        torch.testing.assert_close(targets[i].double() - predicted, fit.residual[i].double(), atol=1e-3, rtol=1e-3)


def test_ridge_finds_a_linear_law_and_gives_up_on_noise():
    features, weight = torch.randn(200, 5), torch.randn(5, 3)
    lawful = fit_ridge(features, features @ weight + 0.01 * torch.randn(200, 3))
    torch.testing.assert_close(lawful.ridge.weight, weight, atol=0.01, rtol=0)
    assert lawful.error < 1e-3
    noise = fit_ridge(features, torch.randn(200, 3))
    assert float(noise.ridge.weight.abs().max()) < 0.15
    assert noise.error > 2.5  # three targets of unit variance


def test_leverage_grows_with_distance():
    fit = fit_ridge(torch.randn(50, 2), torch.randn(50, 1))
    near, far = fit.ridge.leverage(torch.zeros(1, 2)), fit.ridge.leverage(torch.full((1, 2), 20.0))
    assert 0.9 / 50 < float(near) < 0.1
    assert float(far) > float(near)


def test_transport_map_between_gaussians():
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    source, target = a @ a.T + 0.1 * torch.eye(3), b @ b.T + 0.1 * torch.eye(3)
    t = transport_map(source, target)
    torch.testing.assert_close(t @ source @ t.T, target, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(t, t.T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(transport_map(source, source), torch.eye(3), atol=1e-4, rtol=0)


def test_a_move_undoes_a_linear_distortion():
    """Y = M x: draws of x̃ have the mean of the simulations, and no more spread than the simulator's noise and the fit's."""
    mixing, theta = torch.randn(4, 4), torch.randn(300, 2)
    loading = torch.randn(2, 4)
    x = (theta @ loading)[:, None] + 0.1 * torch.randn(300, 8, 4)
    y = (theta @ loading) @ mixing.T
    move, left_out_x = fit_move(y, y, x, copies=20)
    moved = move.draw(y, y, copies=50).unflatten(0, (300, 50))
    assert float((moved.mean(1) - theta @ loading).abs().mean()) < 0.05
    assert float(moved.std(1).mean()) == pytest.approx(0.1, abs=0.03)
    assert left_out_x.shape == (6000, 4)
    # a real process like the simulator is left where it is
    same, _ = fit_move(x[:, 0], x[:, 0], x[:, 1:], copies=2)
    assert float((same.draw(x[:, 0], x[:, 0], 1) - x.mean(1)).square().mean()) < 0.05


def test_a_step_matches_mean_and_spread_and_is_inverted():
    features, z1 = torch.randn(400, 3), torch.zeros(400, 2)
    z1 = features[:, :2] + torch.tensor([1.0, -2.0]) + 0.5 * torch.randn(400, 2)
    z0 = features[:, None, :2] + 0.1 * torch.randn(400, 30, 2)
    step = fit_step(features, z0, z0, z1)
    rows = features.repeat_interleave(30, dim=0)
    z = step(z0.flatten(0, 1), rows)
    error = z.unflatten(0, (400, 30)) - z1[:, None]
    assert float(error.mean((0, 1)).abs().max()) < 0.05
    spread = (z.unflatten(0, (400, 30)) - z.unflatten(0, (400, 30)).mean(1, keepdim=True)).std((0, 1))
    torch.testing.assert_close(spread, torch.tensor([0.5, 0.5]), atol=0.05, rtol=0)
    torch.testing.assert_close(step.inverse(z, rows), z0.flatten(0, 1), atol=1e-4, rtol=1e-4)
    jacobian = torch.autograd.functional.jacobian(lambda v: step(v[None], rows[:1])[0], z0[0, 0])
    torch.testing.assert_close(step.log_det(), torch.linalg.slogdet(jacobian).logabsdet)


# ---------------------------------------------------------------------- roughening and fine-tuning


@pytest.mark.parametrize("shape", [(5,), (200,), (3, 50), (32, 32, 3), (3, 32, 32)])
def test_distortions_grow_with_the_level_and_vanish_at_zero(shape):
    x, size = torch.randn(400, *shape), []
    for level in (0.0, 0.3, 1.0):
        distorted = distort(x, torch.full((400, 1), level), 1.0)
        assert distorted.shape == x.shape
        size.append(float((distorted - x).square().mean()))
    assert size[0] == 0 < size[1] < size[2]
    levels = draw_levels(4000)
    assert float((levels == 0).float().mean()) == pytest.approx(0.3, abs=4 * (0.21 / 4000) ** 0.5)


def test_a_roughened_base_posterior_knows_how_rough(base_with_embedding):
    """At level 0 it is sharp; at level 1 it is wider, for the same data."""
    assert roughness_of(base_with_embedding.posterior_estimator) is not None
    theta = PRIOR.sample((100,))
    x, spread = simulate(theta), []
    for level in (0.0, 1.0):
        posterior = copy.deepcopy(base_with_embedding)
        roughness_of(posterior.posterior_estimator).level.fill_(level)
        draws = baselines.NPE(posterior).fit().sample_batched((100,), x=x, seed=0, show_progress_bars=False)
        spread.append(draws.std(0).mean(-1))
    wider = (spread[1] / spread[0]).log()
    assert float(wider.mean()) > 3 * float(wider.std()) / len(wider) ** 0.5


@pytest.fixture(params=["natively", "by themselves"])
def stacked(request, monkeypatch):
    """`stack` with zuko's flow evaluated for all members at once, and as for any other estimator."""
    if request.param == "by themselves":
        monkeypatch.setattr("fmcpe.members.natively", lambda flow: None)
    return stack


def test_members_are_evaluated_together_as_one_by_one(base_with_embedding, stacked):
    estimator = base_with_embedding.posterior_estimator
    members = stacked(estimator, 3, level=0.5)
    with torch.no_grad():
        for value in members.weights.values():
            value.add_(0.01 * torch.randn_like(value))
    theta, levels = PRIOR.sample((3, 7)), torch.rand(3, 7, 1)
    x = simulate(theta.flatten(0, 1)).unflatten(0, (3, 7))
    together = members(theta, x, levels)
    together.mean(1).sum().backward()
    for k, loss in enumerate(members.members(members.snapshot())):
        alone = unstacked(loss, estimator)
        assert float(roughness_of(alone).level) == 0.5
        with roughness_of(alone).at(levels[k]):
            expected = alone.loss(theta[k], x[k])
        torch.testing.assert_close(together[k], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(members.alone(k, theta[k], x[k], levels[k]), expected, atol=1e-5, rtol=1e-5)
        expected.mean().backward()
        last = [p.grad for p in alone.net.parameters()][-1]
        own = [w.grad[k] for name, w in members.weights.items() if ".transform" in name][-1]
        torch.testing.assert_close(own, last, atol=1e-5, rtol=1e-3)


def test_a_flow_of_another_library_is_stacked_too():
    """Sbi's default flow is not zuko's: its members are asked by themselves."""
    theta = PRIOR.sample((50,))
    estimator = posterior_nn("maf", embedding_net=nn.Linear(3, 4), hidden_features=8, num_transforms=2)(
        theta, simulate(theta)
    )
    members = stack(estimator, 2, level=0.0)
    x, levels = simulate(theta[:10]).unflatten(0, (2, 5)), torch.zeros(2, 5, 1)
    together = members(theta[:10].unflatten(0, (2, 5)), x, levels)
    expected = estimator.loss(theta[:10], x.flatten(0, 1))
    torch.testing.assert_close(together.flatten(), expected, atol=1e-4, rtol=1e-4)


def test_summaries_that_are_off_cost_what_they_are_off(base_with_embedding, stacked):
    """The first rows only, in units that the caller chose; all others, and the loss without targets, are as they were."""
    theta, x, levels = PRIOR.sample((2, 6)), torch.randn(2, 6, 3), torch.full((2, 6, 1), 0.5)
    members = stacked(base_with_embedding.posterior_estimator, 2, level=0.5, matching=3.0)
    plain = members(theta, x, levels)
    with torch.no_grad():
        alike = next(members.members(members.snapshot()))
        seen = unstacked(alike, base_with_embedding.posterior_estimator).embedding_net(x[:, :4].flatten(0, 1))
    targets = seen.unflatten(0, (2, 4)) + 2.0
    added = members(theta, x, levels, targets) - plain
    torch.testing.assert_close(added[:, 4:], torch.zeros(2, 2))
    torch.testing.assert_close(added[:, :4], torch.full((2, 4), 3.0 * 4.0 * seen.shape[1]), atol=1e-3, rtol=1e-4)


def test_fine_tuning_learns_from_the_pairs_and_leaves_the_base_posterior_alone(base_with_embedding):
    before = copy.deepcopy(base_with_embedding.posterior_estimator.state_dict())
    proposal = as_proposal(base_with_embedding)
    theta, shift = PRIOR.sample((60,)), torch.tensor([1.0, -1.5, 0.5])
    y, replay_theta = simulate(theta) + shift, PRIOR.sample((500,))
    folds = torch.arange(60) % 3
    tuned = tune(proposal, theta, y, folds, (replay_theta, simulate(replay_theta)), show_progress_bars=False)
    test_theta = PRIOR.sample((200,))
    test_y = simulate(test_theta) + shift

    def energy(posterior):
        return metrics.energy_score(
            torch.stack([posterior.sample(posterior.summarise(test_y)) for _ in range(30)]), test_theta
        )

    assert energy(tuned) < 0.8 * energy(proposal)
    after = base_with_embedding.posterior_estimator.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_a_trained_summary_is_tuned(base, base_with_embedding):
    assert can_be_tuned(as_proposal(base_with_embedding))
    assert not can_be_tuned(as_proposal(base))
    assert not can_be_tuned(as_proposal(lambda x: x[:, :2], prior=PRIOR))


# ---------------------------------------------------------------------- evidence and flows


def test_better_means_by_a_standard_error():
    modest, noise = Evidence(torch.ones(100)), 0.1 * torch.randn(100)
    better, luckier = Evidence(0.9 + noise - noise.mean()), Evidence(0.999 + noise - noise.mean())
    assert better.beats(modest)
    assert not luckier.beats(modest)
    assert not is_informed(modest, modest)
    assert is_informed(better, modest)
    # ten pairs: not being shown to be better is not being shown to be worse
    few, prior = Evidence(1.01 + noise[:10] - noise[:10].mean()), Evidence(torch.ones(10))
    assert is_informed(few, prior)


def test_one_parameter_is_enough_to_show_that_a_correction_helps():
    """Beside two that are vague with and without it, where the joint score is nearly all theirs."""
    truth, vague = torch.rand(60, 3), torch.rand(60, 32, 2)
    sharp, wrong = (truth[:, None, :1] + off + 0.01 * torch.randn(60, 32, 1) for off in (0.0, 0.15))
    right, uncorrected = (left_out(torch.cat([first, vague], dim=2), truth) for first in (sharp, wrong))
    assert right.each is not None
    alone = metrics.energy_score(sharp.movedim(0, 1), truth[:, :1], reduce=False)
    torch.testing.assert_close(right.each[:, 0], alone, atol=1e-5, rtol=1e-5, check_dtype=False)
    assert right.beats_in_one(uncorrected, 4.0) and not uncorrected.beats_in_one(right, 1.0)
    evidence = {"prior": Evidence(2 + right.scores), "uncorrected": uncorrected, "moved": right}
    hidden = right._replace(each=None), uncorrected._replace(each=None)
    assert choose(evidence, 60) == "moved"
    noise = torch.randn(60)
    for joint in (hidden[0]._replace(scores=hidden[1].scores - 0.01 + noise - noise.mean()), hidden[1]):
        # without a look at single parameters, a joint score that is better by luck, or not at all, is not enough
        assert choose(evidence | {"uncorrected": hidden[1], "moved": joint}, 60) == "uncorrected"
        if joint is not hidden[1]:
            assert choose(evidence | {"moved": joint._replace(each=right.each)}, 60) == "moved"
            # with ten pairs four standard errors are luck, too
            few = {name: Evidence(each.scores[:10], None) for name, each in evidence.items()}
            assert choose(few | {"moved": Evidence(few["uncorrected"].scores, right.each[:10])}, 10) == "uncorrected"


def test_in_doubt_few_pairs_speak_for_the_regression_on_parameters():
    noise = torch.tensor([1.0, -1.0]).repeat(30)

    def evidence(pairs, moved):
        means = {"prior": 3.0, "uncorrected": 2.0, "moved": moved, "inverted": 1.0}
        return {
            name: Evidence(mean + (0.5 * noise[:pairs] if name == "moved" else torch.zeros(pairs)))
            for name, mean in means.items()
        }

    useless = {"shifted": Evidence(2.5 * torch.ones(12))}  # but the base posterior has a summary of the data
    assert choose(evidence(12, 0.9) | useless, 12) == "inverted"  # better by less than luck
    assert choose(evidence(12, 0.5) | useless, 12) == "moved"
    assert choose(evidence(12, 0.9), 12) == "moved"  # data themselves are moved as carefully
    assert choose(evidence(12, 1.1), 12) == "inverted"
    assert choose(evidence(40, 0.95), 40) == "inverted"
    assert choose(evidence(40, 0.85), 40) == "moved"  # by more than one standard error, which is 0.08
    assert choose(evidence(40, 1.05), 40) == "inverted"
    # half of the draws each, where ten pairs cannot tell it from shifted data
    shifted = {"shifted": Evidence(1.1 + 0.5 * noise[:12])}
    assert cannot_be_told_apart(evidence(12, 1.5) | shifted, 12)
    assert cannot_be_told_apart(evidence(12, 1.5) | {"shifted": Evidence(1.4 + 0.5 * noise[:12])}, 12)
    assert not cannot_be_told_apart(evidence(12, 1.5) | {"shifted": Evidence(1.5 + 0.5 * noise[:12])}, 12)
    # shifted data that are hardly better than the prior have no share
    unsure = {"shifted": Evidence(1.1 + 0.5 * noise[:12]), "prior": Evidence(1.3 * torch.ones(12))}
    assert not cannot_be_told_apart(evidence(12, 1.5) | unsure, 12)
    assert not cannot_be_told_apart(evidence(40, 1.5) | {"shifted": Evidence(1.01 + 0.5 * noise[:40])}, 40)
    assert choose(evidence(12, 1.5) | shifted | {"shared": Evidence(torch.ones(12))}, 12) == "shared"
    harmless = {name: Evidence(torch.ones(40)) for name in ("uncorrected", "moved", "inverted")}
    assert choose(harmless | {"prior": Evidence(2 * torch.ones(40))}, 40) == "uncorrected"
    assert choose(harmless | {"prior": Evidence(0.9 * torch.ones(40))}, 40) == "prior"


def test_repeated_measurements_are_not_evidence_of_their_own():
    """A pair fifty times over says no more than the pair."""
    torch.manual_seed(0)
    draws, truth = torch.randn(6, 20, 2), torch.randn(6, 2)
    groups = torch.arange(6).repeat_interleave(50)
    many, few = left_out(draws[groups], truth[groups], groups), left_out(draws, truth)
    torch.testing.assert_close(many.scores, few.scores)
    worse = left_out(draws + 0.3, truth)
    assert many.gain_on(worse) == pytest.approx(few.gain_on(worse))


def test_in_doubt_few_pairs_speak_for_fine_tuning_where_there_is_no_such_regression():
    """A regression that is lucky on ten pairs is often far off on the eleventh."""
    noise = torch.tensor([1.0, -1.0]).repeat(30)

    def evidence(pairs, moved):
        means = {"prior": 3.0, "uncorrected": 2.0, "x-only": moved, "tuned": 1.0}
        return {
            name: Evidence(mean + (0.5 * noise[:pairs] if name == "x-only" else torch.zeros(pairs)))
            for name, mean in means.items()
        }

    assert choose(evidence(12, 0.9), 12) == "tuned"
    assert choose(evidence(12, 0.5), 12) == "x-only"
    assert choose(evidence(40, 0.95), 40) == "x-only"  # more pairs speak for themselves
    # what does not help itself does not take the place of what does
    unsure = {"x-only": Evidence(0.7 * torch.ones(12)), "tuned": Evidence(2.1 + 3 * noise[:12])}
    assert choose(evidence(12, 0.7) | unsure, 12) == "x-only"


def test_few_pairs_do_not_bear_a_step_on_top_of_a_move(base):
    theta = PRIOR.sample((40,))
    for number, way, other in ((12, "x-only", "moved"), (40, "moved", "x-only")):
        y = simulate(theta[:number]) + torch.tensor([3.0, -6.0, 2.0])
        posterior = FMCPE(base, simulate).fit(theta[:number], y, seed=0, show_progress_bars=False)
        assert f"evidence_{way}" in posterior.history
        assert f"evidence_{other}" not in posterior.history


def test_left_out_energy_scores_prefer_the_truth():
    truth = torch.randn(200, 2)
    right, wide = truth[:, None] * 0 + torch.randn(200, 64, 2), 3 * torch.randn(200, 64, 2)
    assert left_out(right, truth).beats(left_out(wide, truth))


def test_a_parameter_on_a_bound_is_not_all_that_counts():
    draws, truth = torch.full((4, 8, 1), 2.9), torch.tensor([[2.9], [2.9], [2.9], [6.0]])
    torch.testing.assert_close(
        left_out(draws, truth).scores, torch.tensor([0.0, 0.0, 0.0, 0.1]), atol=1e-5, rtol=0, check_dtype=False
    )


def test_repeated_measurements_are_left_out_together(base):
    theta = PRIOR.sample((12,)).repeat_interleave(5, dim=0)
    space = ParameterSpace(PRIOR, PRIOR.sample((500,)))
    fit = Starts(as_proposal(base), theta, simulate(theta), None, simulate, None, space, Recipe(), False)
    assert fit.distinct == 12
    for folds in (fit.folds, fit.small_folds):
        assert bool((folds.unflatten(0, (12, 5)) == folds[::5, None]).all())
        assert set(folds.tolist()) == set(range(int(folds.max()) + 1))
    posterior = FMCPE(base, simulate).fit(theta, simulate(theta) + 3.0, seed=0, show_progress_bars=False)
    assert not any("flows" in name for name in posterior.history)  # twelve parameters are few, however often measured


def test_pairs_at_one_place_correct_nothing(base):
    """Each would be predicted by its own copies: what was kept used to be sure of that one place, wherever y came from."""
    theta = PRIOR.sample((1,)).expand(12, -1)
    with pytest.warns(FMCPEWarning, match="same parameters|no information"):
        posterior = FMCPE(base, simulate).fit(theta, simulate(theta) + 0.5, seed=0, show_progress_bars=False)
    assert posterior.stages in ("prior", "uncorrected")


def test_pairs_that_do_not_beat_the_prior_are_told_of(base):
    """With ten shuffled pairs something may be kept by luck, but not in silence (of ten seeds tried, one was lucky: 0)."""
    for seed in range(1, 5):
        torch.manual_seed(seed)
        theta = PRIOR.sample((10,))
        with pytest.warns(FMCPEWarning, match="no information|better than the prior"):
            FMCPE(base, simulate).fit(theta.flip(0), simulate(theta), seed=seed, show_progress_bars=False)


def test_flows_refine_a_wrong_start_and_are_not_kept_on_a_right_one():
    """A start that is off by one is mended by members on pairs they have not seen; on a right one, evidence rejects them."""
    z1, features, folds = torch.randn(150, 2), torch.randn(150, 3), torch.arange(150) % 3
    for shift, helps in ((1.0, True), (0.0, False)):
        z0 = shift + torch.randn(150, 32, 2)
        _, carried = refine(z0, z1, features, folds, Recipe(epochs=100))
        assert left_out(carried, z1).beats(left_out(z0, z1)) == helps


def test_an_untrained_flow_does_nothing():
    z0, z1 = torch.randn(20, 8, 2), torch.randn(20, 2)
    members, _ = refine(z0, z1, torch.randn(20, 3), torch.arange(20) % 2, Recipe(epochs=1, learning_rate=1e-12))
    assert all(float(u.last.weight.detach().abs().max()) < 1e-6 for u in members)


def test_what_helps_is_kept_and_the_summary_says_so(base, monkeypatch):
    """A right simulator is left alone; a gross error is mended; shuffled pairs give the prior, with a warning."""
    # on this straight line a regression on θ is better than the small base posterior, right simulator or not
    monkeypatch.setattr("fmcpe.crossfit.CrossFit._can_invert", lambda self: False)
    theta = PRIOR.sample((60,))
    clean, gross = simulate(theta), simulate(theta) + torch.tensor([3.0, -6.0, 2.0])
    left_alone = FMCPE(base, simulate).fit(theta, clean, seed=0, show_progress_bars=False)
    assert left_alone.stages == "uncorrected"
    assert "as it came" in left_alone.summary()
    mended = FMCPE(base, simulate).fit(theta, gross, seed=0, show_progress_bars=False)
    assert mended.stages.startswith("moved")
    scores = {k: v[0] for k, v in mended.history.items() if k.startswith("evidence_")}
    assert scores["evidence_moved"] < 0.5 * scores["evidence_uncorrected"]
    with pytest.warns(FMCPEWarning, match="no information"):
        nonsense = FMCPE(base, simulate).fit(theta.flip(0), gross, seed=0, show_progress_bars=False)
    assert nonsense.stages == "prior"


def test_with_a_right_simulator_whatever_is_kept_does_no_harm(base):
    theta, test_theta = PRIOR.sample((60,)), PRIOR.sample((400,))
    test_y = simulate(test_theta)
    uncorrected = baselines.NPE(base).fit()
    posterior = FMCPE(base, simulate).fit(theta, simulate(theta), seed=0, show_progress_bars=False)
    score = [
        metrics.energy_score(p.sample_batched((100,), x=test_y, seed=0, show_progress_bars=False), test_theta)
        for p in (posterior, uncorrected)
    ]
    assert score[0] < 1.03 * score[1]


@pytest.mark.parametrize("stages", ["x-only", "theta-only"])
def test_ablations_leave_out_their_stage(base, pairs, stages):
    posterior = FMCPE(base, simulate, stages=stages).fit(*pairs, seed=0, show_progress_bars=False)
    assert stages == "x-only" or posterior.corrector.move is None
    assert stages == "theta-only" or (posterior.corrector.step is None and not posterior.corrector.u_theta)


def test_paired_simulations_in_place_of_a_simulator(base, pairs):
    posterior = FMCPE(base).fit(*pairs, x=simulate(pairs[0]), seed=0, show_progress_bars=False)
    assert bool(PRIOR.support.check(posterior.sample((50,), x=pairs[1][0])).all())


def test_roughness_is_described(tmp_path):
    net = RoughnessAware(nn.Linear(3, 2))
    assert net(torch.zeros(4, 3)).shape == (4, 3)
    with net.at(torch.arange(4.0)[:, None]):
        torch.testing.assert_close(net(torch.zeros(4, 3))[:, 2], torch.arange(4.0))


@pytest.mark.parametrize("inverts", [True, False])
def test_an_observation_unlike_all_pairs_gets_no_point_mass(base, pairs, inverts, monkeypatch):
    if not inverts:
        monkeypatch.setattr("fmcpe.crossfit.CrossFit._can_invert", lambda self: False)
    posterior = FMCPE(base, simulate).fit(*pairs, seed=0, show_progress_bars=False)
    assert posterior.stages.startswith("inverted") == inverts
    assert inverts or posterior.corrector.step is not None
    for factor in (10.0, 100.0):
        draws = posterior.sample((500,), x=factor * pairs[1][0], seed=0)
        assert len(draws[:, 0].unique()) > 400


def test_flows_of_another_width_come_back_from_a_file(base, tmp_path):
    theta = PRIOR.sample((40,))
    recipe, number = Recipe(hidden=24, epochs=2), len(theta)
    members, _ = refine(
        torch.randn(number, 8, 2), torch.randn(number, 2), torch.randn(number, 3), torch.arange(40) % 2, recipe
    )
    posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, simulate(theta), seed=0, show_progress_bars=False)
    posterior.corrector.set_flows(members)
    posterior.save(tmp_path / "run.fmcpe")
    loaded, y = fmcpe.load(tmp_path / "run.fmcpe"), simulate(theta[:1])[0]
    assert members[0].first.out_features == 24
    assert torch.equal(loaded.sample((5,), x=y, seed=0), posterior.sample((5,), x=y, seed=0))


@pytest.fixture
def always_tuned(monkeypatch):
    """Fine-tuning is tried even where a closed form is good enough."""
    monkeypatch.setattr("fmcpe.crossfit.CrossFit._is_as_good_as_it_gets", lambda self, evidence: False)


def test_pairs_on_a_bound_do_not_derail_fine_tuning(base_with_embedding, always_tuned):
    theta = PRIOR.sample((40,))
    theta[0], theta[1] = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    y = simulate(theta.clamp(torch.tensor([-1.999, 0.001]), torch.tensor([1.999, 0.999]))) + torch.tensor(
        [1.0, -1.5, 0.5]
    )
    posterior = FMCPE(base_with_embedding, simulate).fit(theta, y, seed=0, show_progress_bars=False)
    scores = {k: v[0] for k, v in posterior.history.items() if k.startswith("evidence_")}
    assert scores["evidence_tuned"] < scores["evidence_uncorrected"]


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 11])
def test_cycles_of_any_length(steps):
    base = fmcpe.train_npe(
        None, PRIOR, simulations=(PRIOR.sample((100,)), torch.randn(100, 3)), max_num_epochs=steps, seed=0,
        training_batch_size=95, show_progress_bars=False,
    )  # fmt: skip
    assert len(base.history["training_loss"]) == steps


def test_normalisation_layers_in_an_embedding():
    """They are not touched by a look at the network, and they train."""
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 2))
    fmcpe.train_npe(simulate, PRIOR, 500, net, seed=0, max_num_epochs=2, show_progress_bars=False)
    assert int(net[1].num_batches_tracked) == 0


# ---------------------------------------------------------------------- members as sure as they should be


def members_of(base, number, width):
    """Copies of a base posterior whose latent numbers are stretched."""
    members = []
    for _ in range(number):
        member = as_proposal(copy.deepcopy(base)).summarised()
        member.widen(torch.full((2,), width))
        members.append(member)
    return members


@pytest.mark.parametrize("width", [0.6, 1.6])
def test_members_that_are_too_sure_or_not_sure_enough_are_mended(base_with_embedding, width):
    """θ is drawn from the base posterior itself, so that it is exactly as sure as it should be, and its copies are not."""
    x = simulate(PRIOR.sample((2000,)))
    truth = as_proposal(base_with_embedding).summarised()
    theta = truth.sample(truth.summarise(x))
    members = members_of(base_with_embedding, 2, width)
    calibrate(members, theta, x, [torch.arange(1000), torch.arange(1000, 2000)], half_believed=100.0)
    for member in members:
        torch.testing.assert_close(member.estimator.net.base.scale, torch.ones(2), atol=0.1, rtol=0)
    draws = torch.stack([members[0].sample(members[0].summarise(x[:500])) for _ in range(200)])
    assert float((central_coverage(draws, theta[:500], 0.8) - 0.8).abs().max()) < 0.06


def test_few_pairs_are_hardly_believed(base_with_embedding):
    theta = PRIOR.sample((10,))
    members = members_of(base_with_embedding, 2, 0.5)
    calibrate(members, theta, simulate(theta), [torch.arange(5), torch.arange(5, 10)], half_believed=100.0)
    assert float((members[0].estimator.net.base.scale / 0.5 - 1).abs().max()) < 0.1


def test_members_that_disagree_are_narrowed_for_it(base_with_embedding):
    """Two members, each off by as much to either side: their mixture is wide though their mean is right."""
    x = simulate(PRIOR.sample((100,)))
    agreeing = members_of(base_with_embedding, 2, 1.0)
    assert float(disagreement(agreeing, x).max()) < 0.02
    apart = members_of(base_with_embedding, 2, 1.0)
    for sign, member in zip((1.0, -1.0), apart, strict=True):
        member.estimator.net.base.loc.add_(sign)
    # means at +1 and -1: a variance of 2 between them, in units of the variance within
    torch.testing.assert_close(disagreement(apart, x), torch.full((2,), 2.0), atol=0.5, rtol=0)


def test_a_stretched_member_has_the_density_of_its_draws(base_with_embedding):
    (member,) = members_of(base_with_embedding, 1, 1.5)
    seen = member.summarise(simulate(PRIOR.sample((1,))))
    draws = member.sample(seen.expand(4000, -1))
    inside = PRIOR.sample((4000,))
    density = member.log_prob(inside, seen)[:, 0].exp()
    volume = float(torch.exp(-PRIOR.log_prob(inside[:1])))
    assert abs(float(density.mean()) * volume - 1) < 0.1
    mean = (density[:, None] * inside).mean(0) * volume
    torch.testing.assert_close(mean, draws.mean(0), atol=0.15, rtol=0)


def test_fewer_epochs_are_fewer_steps_of_fine_tuning(base_with_embedding, always_tuned, monkeypatch):
    taken = []
    descend = summary._descend
    monkeypatch.setattr(summary, "_descend", lambda *a, **k: taken.append(a[3]) or descend(*a, **k))
    theta = PRIOR.sample((12,))
    for epochs in (200, 20):
        method = FMCPE(base_with_embedding, simulate, recipe=Recipe(epochs=epochs))
        method.fit(theta, simulate(theta) + 1.0, seed=0, show_progress_bars=False)
    assert taken[0] > 80
    assert abs(taken[1] - taken[0] / 10) <= 1


def test_means_over_few_draws_do_not_widen_the_answer():
    """Errors of a mean over S draws are larger by a share 1 / S of their variance, which is no one's uncertainty."""
    number, draws = 4000, 4
    centre = torch.randn(number, 2)
    z1 = centre + torch.randn(number, 2)
    z0 = centre[:, None] + torch.randn(number, draws, 2)  # draws of the true posterior: nothing is to be stretched
    step = fit_step(torch.zeros(number, 1), z0, z0, z1)
    torch.testing.assert_close(step.stretch, torch.eye(2), atol=0.04, rtol=0)  # 1.15 on the diagonal if they did

    x = centre[:, None] + 3 * torch.randn(number, draws, 2)
    move, _ = fit_move(centre, centre, x, 1)
    assert float(move.root.abs().max()) < 1.2  # the mean is known; the errors of its estimate are 3 / 2
