"""The algorithm: what it calls, what it leaves alone, what it refuses."""

import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import PRIOR, TINY, observe, simulate
from torch import nn

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Paper
from fmcpe.candidates import paper as paper_module
from fmcpe.candidates.joint_flow import JointFlowed
from fmcpe.candidates.paper import _losses, _Pairs
from fmcpe.flows.matching import matching_loss
from fmcpe.flows.solvers import Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead


def fit(base, pairs, *, simulator=simulate, recipe=TINY, seed=0, x=None, **changes):
    method = FMCPE(base, simulator, recipe=replace(recipe, **changes))
    return method.fit(*pairs, x, seed=seed, show_progress_bars=False)


def of(posterior, pairs):
    """The pairs as the loss takes them."""
    theta, y = pairs
    return _Pairs(theta, posterior.space.to_z_safely(theta), y, None)


def test_the_base_posterior_stays_frozen(base, pairs):
    base.posterior_estimator.zero_grad(set_to_none=True)
    before = copy.deepcopy(base.posterior_estimator.state_dict())
    fit(base, pairs)
    after = base.posterior_estimator.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert all(p.grad is None for p in base.posterior_estimator.parameters())


def test_each_term_trains_its_own_field_only(base, pairs):
    """Nothing flows back through x̃: the θ-term leaves u_X without a gradient, and the other way round."""
    posterior = fit(base, pairs)
    corrector, batch = posterior.inner.train().requires_grad_(True), of(posterior, pairs)
    for name, other in (("x", "theta"), ("theta", "x")):
        corrector.zero_grad(set_to_none=True)
        _losses(corrector, batch, simulate, (name,))[name].backward()
        assert all(p.grad is not None for p in getattr(corrector, f"u_{name}").parameters())
        assert all(p.grad is None for p in getattr(corrector, f"u_{other}").parameters())


def test_fresh_simulations_at_physical_parameters_every_step(base, pairs):
    """conftest.simulate raises outside the prior; here the calls are counted and compared with the pairs."""
    calls = []

    def counting(theta):
        calls.append(theta.clone())
        return simulate(theta)

    fit(base, pairs, simulator=counting)
    statistics, *steps = calls
    assert statistics.shape[0] == TINY.num_statistics
    assert len(steps) == 2 * TINY.epochs  # one training batch and one validation batch each
    known = {tuple(row.tolist()) for row in pairs[0]}
    assert all(tuple(row.tolist()) in known for call in steps for row in call)


def test_paired_simulations_replace_the_simulator(base, pairs):
    torch.manual_seed(0)
    posterior = fit(base, pairs, simulator=None, x=simulate(pairs[0]))
    assert posterior.sample((5,), x=pairs[1][0]).shape == (5, 2)
    with pytest.raises(ValueError, match="x="):
        fit(base, pairs, simulator=None)


def test_theta_only_needs_no_simulator(base, pairs):
    assert fit(base, pairs, simulator=None, stages="theta-only").inner.u_x is None


def test_stages_have_the_flows_they_name(base, pairs):
    joint = fit(base, pairs, stages="joint")
    assert set(joint.record.history) == {"training_x", "validation_x", "training_theta", "validation_theta"}
    assert fit(base, pairs, stages="x-only").inner.u_theta is None
    sequential = fit(base, pairs, stages="sequential")
    assert (
        len(sequential.record.history["training_x"]) == len(sequential.record.history["training_theta"]) == TINY.epochs
    )


def test_fits_repeat_and_leave_global_state_alone(base, pairs):
    torch.manual_seed(5)
    np.random.seed(5)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = fit(base, pairs), fit(base, pairs)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    y = pairs[1][0]
    assert torch.equal(first.sample((9,), x=y, seed=0), second.sample((9,), x=y, seed=0))
    assert not torch.equal(first.sample((9,), x=y, seed=0), fit(base, pairs, seed=1).sample((9,), x=y, seed=0))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_numpy_simulators_repeat_too(base, pairs):
    def in_numpy(theta):
        t = theta.numpy().astype(np.float64)
        x = np.stack([t[:, 0], 4 * t[:, 1], t.sum(1)], axis=1)
        return x + 0.3 * np.random.standard_normal(x.shape)

    first = fit(base, pairs, simulator=in_numpy)
    second = fit(base, (pairs[0].double().numpy(), pairs[1].double().numpy()), simulator=in_numpy)
    y = pairs[1][0]
    assert torch.equal(first.sample((9,), x=y, seed=0), second.sample((9,), x=y, seed=0))


class Epochs:
    """Validation losses by script, and the weights of both networks at each validation."""

    def __init__(self, monkeypatch, script):
        self.script, self.states, honest = script, [], paper_module._losses

        def scripted(corrector, pairs, simulator, fields):
            if corrector.training:
                return honest(corrector, pairs, simulator, fields)
            epoch = len(self.states)
            self.states.append({name: copy.deepcopy(getattr(corrector, f"u_{name}").state_dict()) for name in fields})
            return {name: torch.tensor(self.script[name][epoch]) for name in fields}

        monkeypatch.setattr(paper_module, "_losses", scripted)

    def of(self, posterior):
        """The epoch that each network's weights come from."""
        return {
            name: [
                k for k, state in enumerate(self.states) if _same(state[name], getattr(posterior.inner, f"u_{name}"))
            ]
            for name in ("x", "theta")
        }


def _same(state, network):
    return all(torch.equal(state[k], v) for k, v in network.state_dict().items())


@pytest.mark.parametrize(("checkpoint", "epoch"), [("last", 3), ("best", 1)])
def test_both_networks_come_from_one_epoch(base, pairs, monkeypatch, checkpoint, epoch):
    """The best epoch of u_X alone is 0, that of u_Θ alone is 2, and the best sum is that of epoch 1."""
    seen = Epochs(monkeypatch, {"x": [1.0, 2.0, 9.0, 9.0], "theta": [9.0, 3.0, 2.0, 9.0]})
    posterior = fit(base, pairs, recipe=replace(TINY, checkpoint=checkpoint))
    assert seen.of(posterior) == {"x": [epoch], "theta": [epoch]}


def test_gradients_are_clipped_for_each_network_or_for_both(base, pairs, monkeypatch):
    seen = []
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda parameters, largest: seen.append(len(list(parameters))))
    fit(base, pairs)
    each = set(seen)
    seen.clear()
    fit(base, pairs, recipe=replace(TINY, clip_jointly=True))
    assert len(each) == 2
    assert set(seen) == {sum(each)}
    largest = []
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda parameters, norm: largest.append(norm))
    fit(base, pairs, recipe=replace(TINY, clip=0.25))
    assert set(largest) == {0.25}


def test_one_source_point_serves_both_terms(base, pairs, monkeypatch):
    """Algorithm 2: x_0 is drawn once, and what it is carried to is the base posterior's input."""
    posterior, drawn, carried = fit(base, pairs), [], []
    chain = posterior.inner
    draw, carry = chain.draw_x0, chain.carry_x
    monkeypatch.setattr(chain, "draw_x0", lambda y, n: drawn.append(draw(y, n)) or drawn[-1])
    monkeypatch.setattr(chain, "carry_x", lambda x0, y: carried.append(x0) or carry(x0, y))
    _losses(chain, of(posterior, pairs), simulate, ("x", "theta"))
    assert len(drawn) == 1 and carried[0] is drawn[0]


def test_the_head_is_the_one_that_the_recipe_names(base, pairs):
    for name, head in (("dense", DenseHead), ("embedding", EmbeddingHead)):
        assert type(fit(base, pairs, recipe=replace(TINY, x_head=name)).inner.u_x.u.head) is head


def test_the_cosine_schedule_ends_at_zero(base, pairs, monkeypatch):
    rates, step = [], torch.optim.Adam.step

    def recording(self, *arguments):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", recording)
    fit(base, pairs, recipe=replace(TINY, schedule="cosine"))
    expected = [0.5e-3 * (1 + math.cos(math.pi * k / TINY.epochs)) for k in range(TINY.epochs)]
    assert rates == pytest.approx(expected)
    rates.clear()
    fit(base, pairs)
    assert rates == [1e-3] * TINY.epochs


def test_divergence_is_an_error_not_a_posterior(base, pairs):
    hopeless = Paper(epochs=3, steps=4, hidden=16, blocks=1, learning_rate=1e6, clip=1e6)
    with pytest.raises(RuntimeError, match="diverged"):
        fit(base, pairs, recipe=hopeless)


def test_a_user_embedding_is_used(base, pairs):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, y):
            return self.layer(y).tanh()

    posterior = fit(base, pairs, embedding_net=Own())
    assert posterior.inner.u_x.u.from_y.in_features == 5
    assert posterior.inner.u_x.u.embedding is not posterior.inner.u_theta.u.embedding
    with pytest.raises(ValueError, match="Flatten"):
        fit(base, pairs, embedding_net=nn.Unflatten(1, (3, 1)))
    with pytest.raises(ValueError, match=r"Expected an embedding_net from \(B, 3\) to \(B, features\), got an error"):
        fit(base, pairs, embedding_net=nn.Linear(4, 5))


@pytest.mark.parametrize("shape", [(60,), (2, 30), (3, 16, 16), (16, 16, 3)])
def test_series_and_images(shape):
    """Data of any usual shape go through with a plain function as the base posterior."""
    size = int(np.prod(shape))

    def pictures(theta):
        return theta[:, :1].repeat(1, size).reshape(-1, *shape) + 0.1 * torch.randn(theta.shape[0], *shape)

    def draw(x):
        return torch.stack([x.flatten(1).mean(1).clamp(-2, 2), torch.rand(x.shape[0])], dim=1)

    theta = PRIOR.sample((12,))
    method = FMCPE(draw, pictures, PRIOR, recipe=TINY)
    posterior = method.fit(theta, pictures(theta) * 1.2, seed=0, show_progress_bars=False)
    assert posterior.sample((4,), x=pictures(theta[:1])[0]).shape == (4, 2)
    with pytest.raises(NotImplementedError, match="with a density"):
        posterior.log_prob(theta, x=pictures(theta[:1]))


def pairs_of(n):
    torch.manual_seed(0)
    theta = PRIOR.sample((n,))
    return theta, observe(theta) if n else torch.zeros(0, 3)


WRONG_PAIRS = {
    "no pairs": (lambda: pairs_of(0), "at least 2"),
    "one pair": (lambda: pairs_of(1), "at least 2"),
    "NaN in y": (lambda: (pairs_of(9)[0], torch.full((9, 3), float("nan"))), "finite numbers in y, got 27"),
    "infinite theta": (lambda: (torch.full((9, 2), float("inf")), pairs_of(9)[1]), "finite numbers in theta"),
    "too few rows": (lambda: (pairs_of(9)[0][:5], pairs_of(9)[1]), "same order"),
    "too many parameters": (lambda: (torch.zeros(9, 3), pairs_of(9)[1]), "parameter"),
    "flat theta": (lambda: (torch.zeros(9), pairs_of(9)[1]), "parameter"),
    "wrong data shape": (lambda: (pairs_of(9)[0], torch.zeros(9, 4)), "simulator's shape"),
    "outside the prior": (lambda: (pairs_of(9)[0] + 10, pairs_of(9)[1]), "outside the prior"),
    "flat y": (lambda: (pairs_of(9)[0], torch.zeros(9)), "simulator's shape"),
    "not numbers": (lambda: ("theta", pairs_of(9)[1]), "numpy array"),
}


@pytest.mark.parametrize("case", WRONG_PAIRS)
def test_wrong_pairs_are_refused_by_name(base, case):
    make, words = WRONG_PAIRS[case]
    with pytest.raises((ValueError, TypeError), match=words):
        fit(base, make())


WRONG_SIMULATORS = {
    "NaN": (lambda theta: torch.full((theta.shape[0], 3), float("nan")), "NaN or infinite"),
    "one row": (lambda theta: torch.zeros(3), "one row per row"),
    "wrong width": (lambda theta: torch.zeros(theta.shape[0], 4), "Expected the simulator to return shape"),
    "words": (lambda theta: "data", "tensor or array"),
    "not a function": (torch.zeros(3), "function"),
}


@pytest.mark.parametrize("case", WRONG_SIMULATORS)
def test_wrong_simulators_are_refused_by_name(base, pairs, case):
    simulator, words = WRONG_SIMULATORS[case]
    with pytest.raises((ValueError, TypeError), match=words):
        fit(base, pairs, simulator=simulator)


def test_wrong_settings_are_refused(base):
    for settings in (
        {"sigma": 0}, {"epochs": 0}, {"validation_fraction": 1.0}, {"solver": "magic"}, {"steps": 2.5}, {"sigma": "a"},
        {"epochs": True}, {"learning_rate": float("inf")}, {"num_statistics": 200.5}, {"checkpoint": "first"},
        {"schedule": "linear"}, {"source": "y"}, {"x_head": None}, {"hidden_x": 64}, {"hidden_theta": (64, 0)},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected"):
            Paper(**settings)
    with pytest.raises(ValueError, match="paper"):
        FMCPE(base, simulate, recipe="best")
    with pytest.raises(ValueError, match="joint"):
        Paper(stages="both")
    with pytest.raises(TypeError, match="BoxUniform"):
        FMCPE(base, simulate, prior="uniform")
    with pytest.raises(ValueError, match="cpu"):
        FMCPE(base, simulate, device="tpu")
    with pytest.raises(TypeError, match="seed=0"):
        fit(base, pairs_of(10), seed="a")
    with pytest.raises(ValueError, match="simulations"):
        fmcpe.train_npe(simulate, PRIOR, num_simulations=5)
    with pytest.raises(ValueError, match="embedding_net"):
        fmcpe.train_npe(lambda t: torch.zeros(t.shape[0], 3, 8, 8), PRIOR, num_simulations=200)


def test_the_papers_recipe_is_what_its_text_states():
    paper = Paper()
    assert (paper.learning_rate, paper.clip, paper.batch_size, paper.validation_fraction) == (1e-3, 1.0, 256, 0.2)
    assert (paper.solver, paper.summaries, paper.source, paper.stages) == ("euler", False, "observation", "joint")
    # ours, where the paper is silent: docs/deviations.md
    assert (paper.hidden, paper.blocks, paper.epochs, paper.steps) == (128, 3, 200, 50)
    assert (paper.sigma, paper.schedule) == (0.5, "constant")
    assert (paper.checkpoint, paper.clip_jointly, paper.x_head) == ("last", False, "dense")


def test_the_authors_settings_by_task():
    settings = {name: fmcpe.paper_settings(name) for name in ("gaussian", "pendulum", "wind-tunnel", "light-tunnel")}
    assert [recipe.epochs for recipe in settings.values()] == [200, 300, 200, 500]
    assert [recipe.sigma for recipe in settings.values()][1:] == [0.05, 0.5, 0.05]
    assert [recipe.source for recipe in settings.values()] == ["normal", *["observation"] * 3]
    for recipe in settings.values():
        assert (recipe.clip, recipe.clip_jointly, recipe.schedule) == (5.0, False, "cosine")
        assert (recipe.solver, recipe.steps, recipe.learning_rate) == ("euler", 50, 1e-3)
    assert [recipe.batch_size for recipe in settings.values()] == [256, 256, 100, 16]
    assert [recipe.x_head for recipe in settings.values()] == ["dense", *["embedding"] * 3]
    assert [recipe.embedding_dim for recipe in settings.values()][1:] == [10, 10, 10]
    assert settings["light-tunnel"].hidden_x == (32, 64, 128, 128, 64, 32)
    assert settings["gaussian"].hidden_x == settings["gaussian"].hidden_theta == (64,) * 5
    assert settings["pendulum"].hidden_x == (32, 64, 128, 256, 512, 256, 128, 64, 32)
    assert settings["wind-tunnel"].hidden_theta == (32, 64, 128, 256, 128, 64, 32)
    with pytest.raises(ValueError, match="pendulum"):
        fmcpe.paper_settings("offset")


@pytest.mark.parametrize("name", ["gaussian", "pendulum"])
def test_the_authors_settings_train(base, pairs, name):
    recipe = replace(fmcpe.paper_settings(name), epochs=2, steps=3)
    posterior = fit(base, pairs, recipe=recipe)
    assert posterior.inner.u_x.u.widths == recipe.hidden_x
    assert posterior.inner.u_theta.u.widths == recipe.hidden_theta
    assert posterior.sample((5,), x=pairs[1][0]).shape == (5, 2)


def test_few_pairs_warn(base):
    with pytest.warns(FMCPEWarning, match="10 or more"):
        fit(base, pairs_of(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FMCPEWarning)
        fit(base, pairs_of(10))


def test_twenty_thousand_rows_are_drawn_in_chunks(posteriors, monkeypatch):
    """Memory is bounded by the chunk, whether the rows are draws, observations, or both."""
    posterior, seen = posteriors("joint"), []
    draw = posterior.inner.sample

    def recording(y, n):
        seen.append(len(y) * n)
        return draw(y, n)

    monkeypatch.setattr(posterior.inner, "sample", recording)
    monkeypatch.setattr(posterior, "max_numbers", 12_000)
    for observations, draws in ((1, 20_000), (20_000, 1), (200, 100)):
        seen.clear()
        y = torch.randn(observations, 3)
        assert posterior.sample_batched((draws,), x=y, seed=0).shape == (draws, observations, 2)
        assert max(seen) <= 4000
        assert sum(seen) == 20_000


def test_single_draws_of_many_observations_need_bounded_memory(posteriors, monkeypatch):
    """A stack makes at least 128 draws for each observation, however few are asked for."""
    posterior, seen = posteriors("residual_shift"), []
    mixture = posterior.inner.inner
    draw = mixture.sample
    monkeypatch.setattr(mixture, "sample", lambda y, n: seen.append(len(y) * n) or draw(y, n))
    monkeypatch.setattr(posterior, "max_numbers", 12_000)
    assert posterior.sample_batched((1,), x=torch.zeros(200, 3), seed=0).shape == (1, 200, 2)
    assert max(seen) <= 4000 and sum(seen) == 128 * 200


def test_the_x_source_has_the_spread_it_says(posteriors):
    chain = posteriors("joint").inner
    condition = chain.condition(torch.zeros(1, 3))
    x_0 = chain.draw_x0(condition, 5000)[0]
    assert torch.allclose(x_0.std(0), torch.full((3,), chain.sigma), rtol=0.05)
    assert torch.allclose(x_0.mean(0), condition[0], atol=0.05)
    normal = JointFlowed(chain.base, chain.space, chain.x_scale, chain.y_scale, None, None, None, Solver())
    x_0 = normal.draw_x0(condition, 5000)[0]
    assert torch.allclose(x_0.std(0), torch.ones(3), rtol=0.05)
    assert torch.allclose(x_0.mean(0), torch.zeros(3), atol=0.06)


def test_times_are_uniform():
    """A field that records when it is asked: all of [0, 1], evenly."""
    seen = []

    def field(t, z, context):
        seen.append(t)
        return z

    matching_loss(field, torch.zeros(4000, 1), torch.ones(4000, 1), torch.zeros(4000, 1))
    share = torch.histc(seen[0], bins=10, min=0, max=1) / 4000
    assert torch.allclose(share, torch.full((10,), 0.1), atol=0.02)
