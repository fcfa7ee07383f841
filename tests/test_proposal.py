"""Adapters: what users already have, drawn without sbi's rejection loop."""

import pytest
import torch
from conftest import PRIOR, TINY, simulate
from sbi.inference import FMPE, NLE, NPE, NPE_A, NPSE, NRE
from sbi.inference.posteriors import EnsemblePosterior, MCMCPosterior
from sbi.neural_nets import posterior_flow_nn
from torch.distributions import MultivariateNormal

from fmcpe import FMCPE, as_base_posterior
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import CallableBase, DensityBase, EnsembleBase, VectorFieldBase

X = torch.tensor([[0.5, 2.0, 1.0], [-1.0, 0.5, -0.8]])


@pytest.fixture(scope="module")
def simulations():
    torch.manual_seed(0)
    theta = PRIOR.sample((2000,))
    return theta, simulate(theta)


@pytest.fixture(scope="module")
def trained(simulations, tmp_path_factory):
    """Posteriors as sbi's own users make them, by name."""
    made = {}

    def get(name):
        if name not in made:
            torch.manual_seed(0)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("sbi"))  # sbi's trainers write logs where they stand
                trainer = {
                    "npe": lambda: NPE(PRIOR, density_estimator="maf", show_progress_bars=False),
                    "fmpe": lambda: FMPE(PRIOR, show_progress_bars=False),
                    "npse": lambda: NPSE(PRIOR, show_progress_bars=False),
                    "npe_a": lambda: NPE_A(PRIOR, show_progress_bars=False),
                    "nle": lambda: NLE(PRIOR, show_progress_bars=False),
                    "nre": lambda: NRE(PRIOR, show_progress_bars=False),
                }[name]()
                trainer.append_simulations(*simulations).train(max_num_epochs=30)
                made[name] = trainer.build_posterior()
        return made[name]

    return get


@pytest.fixture(params=["npe", "npe_a", "ensemble", "fmpe", "npse", "nle", "nre", "train_npe"])
def proposal(request, trained, base):
    if request.param == "train_npe":
        return as_base_posterior(base)
    if request.param == "ensemble":
        return as_base_posterior(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.3, 0.7])))
    return as_base_posterior(trained(request.param))


def test_kinds(trained, base):
    assert isinstance(as_base_posterior(trained("npe")), DensityBase)
    assert isinstance(as_base_posterior(trained("fmpe")), VectorFieldBase)
    assert isinstance(as_base_posterior(EnsemblePosterior([base, base])), EnsembleBase)


def test_one_theta_per_row_about_the_right_place(proposal):
    torch.manual_seed(0)
    theta = proposal.sample(X, 300)
    assert bool(PRIOR.support.check(theta).all())
    # θ_0 is measured directly with noise 0.3, θ_1 with 0.075
    assert torch.allclose(theta.mean(1), torch.tensor([[0.5, 0.5], [-1.0, 0.15]]), atol=0.2)


def test_density_integrates_to_one(proposal):
    n = 30
    u = (torch.arange(n) + 0.5) / n
    a, b = torch.meshgrid(-2 + 4 * u, u, indexing="ij")
    theta = torch.stack([a.flatten(), b.flatten()], dim=1)
    torch.manual_seed(0)
    with torch.no_grad():
        mass = proposal.log_prob(theta.expand(2, -1, -1), X).exp().sum(1) * 4 / n**2
    assert torch.allclose(mass, torch.ones(2), atol=0.08)  # the leak is estimated from 200 draws
    assert bool(torch.isneginf(proposal.log_prob(torch.tensor([[0.0, 1.2]]).expand(2, 1, 2), X)).all())


def test_out_of_distribution_ends_at_the_edge(trained):
    """Here sbi's own sampler would not return: the network puts its mass far outside the prior."""
    proposal = as_base_posterior(trained("npe"))
    theta = proposal.sample(torch.full((50, 3), 300.0), 1)[:, 0]
    assert bool(PRIOR.support.check(theta).all())
    box = PRIOR.base_dist
    assert float(((theta == box.low) | (theta == box.high)).any(1).float().mean()) > 0.5


@pytest.mark.parametrize("name", ["fmpe", "npse"])
def test_vector_fields_agree_with_sbi(trained, name):
    """Our fixed-step density of an FMPE or NPSE posterior is sbi's adaptive one."""
    posterior = trained(name)
    theta = torch.tensor([[0.5, 0.5], [0.2, 0.4], [0.9, 0.55]])
    ours = as_base_posterior(posterior).log_prob(theta[None], X[:1])[0]
    leak = as_base_posterior(posterior).log_acceptance(X[:1])
    theirs = posterior.log_prob(theta, x=X[0])
    assert torch.allclose(ours + leak, theirs, atol=0.05)


@pytest.mark.parametrize("name", ["fmpe", "npse"])
def test_few_steps_draw_what_many_draw(trained, name):
    """From the same noise, within 0.02 posterior standard deviations on average."""
    few, many = as_base_posterior(trained(name)), VectorFieldBase(trained(name), steps=200)
    x = torch.cat([X, 0.5 * X])
    with torch.no_grad(), seeded(0):
        theta = few._draw(x, 100)
    with torch.no_grad(), seeded(0):
        exact = many._draw(x, 100)
    assert float(((theta - exact).abs() / exact.std(1, keepdim=True)).mean()) < 0.02


def test_gradients_of_a_vector_fields_density(trained):
    base = as_base_posterior(trained("fmpe"))
    theta = torch.tensor([[[0.4, 0.5]]], requires_grad=True)
    base._log_density(theta, X[:1]).sum().backward()
    step = torch.tensor([[[1e-2, 0.0]]])
    with torch.no_grad():
        slope = (base._log_density(theta + step, X[:1]) - base._log_density(theta - step, X[:1])) / 2e-2
    assert torch.allclose(theta.grad[0, 0, 0], slope[0, 0], rtol=0.02, atol=0.02)


def test_vector_fields_embed_x_once(simulations, tmp_path, monkeypatch):
    """A summary network runs once per x, and the posterior as a function of its summary is the same."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    built = posterior_flow_nn(embedding_net=net)
    trainer = FMPE(PRIOR, vf_estimator=built, show_progress_bars=False)
    trainer.append_simulations(*simulations).train(max_num_epochs=2)
    raw, seen = as_base_posterior(trainer.build_posterior()), []
    handle = raw.embedding.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    with torch.no_grad(), seeded(0):
        theta = raw._draw(X, 50)
    handle.remove()
    assert seen == [2]
    short = raw.summarised()
    assert short is raw.summarised() and short.x_shape == (2,)
    with torch.no_grad(), seeded(0):
        assert torch.allclose(short._draw(short.summarise(X), 50), theta, atol=1e-5)


def test_the_ensemble_is_the_weighted_mixture(trained, base):
    a, b = as_base_posterior(trained("npe")), as_base_posterior(base)
    mixture = as_base_posterior(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.3, 0.7])))
    theta = PRIOR.sample((2, 5))
    with torch.no_grad():
        expected = (0.3 * a._log_density(theta, X).exp() + 0.7 * b._log_density(theta, X).exp()).log()
        assert torch.allclose(mixture._log_density(theta, X), expected, atol=1e-4)


def test_plain_functions():
    law = MultivariateNormal(torch.zeros(2), 0.01 * torch.eye(2))

    def draw(x):
        return (x[:, :2] / 10 + law.sample((x.shape[0],))).numpy()

    proposal = as_base_posterior(draw, prior=PRIOR)
    assert isinstance(proposal, CallableBase)
    assert as_base_posterior(proposal) is proposal
    assert proposal.sample(X, 3).shape == (2, 3, 2)
    with pytest.raises(NotImplementedError, match="with a density"):
        proposal.log_prob(torch.zeros(2, 1, 2), X)
    wide = as_base_posterior(
        draw,
        prior=MultivariateNormal(torch.zeros(2), torch.eye(2)),
        log_prob=lambda t, x: law.log_prob(t - x[:, :2] / 10),
    )
    theta = torch.rand(2, 4, 2)
    expected = torch.stack([law.log_prob(each - row[:2] / 10) for each, row in zip(theta, X, strict=True)])
    assert torch.allclose(wide.log_prob(theta, X), expected, atol=1e-4)


def test_what_cannot_be_adapted_is_refused(trained):
    with pytest.raises(ValueError, match="prior="):
        as_base_posterior(lambda x: x)
    with pytest.raises(TypeError, match="train_npe"):
        as_base_posterior("posterior")
    custom = MCMCPosterior(lambda theta, x: -theta.square().sum(1), PRIOR)
    with pytest.raises(TypeError, match="Pass a function"):
        as_base_posterior(custom)
    with pytest.raises(ValueError, match="one θ per row"):
        as_base_posterior(lambda x: x[:1], prior=PRIOR).sample(X, 1)


def test_a_summary_is_the_same_posterior(base, base_with_embedding):
    """Draws and densities as a function of h(x) are those as a function of x; without an embedding there is no summary."""
    plain = as_base_posterior(base)
    assert plain.summarised() is plain
    raw = as_base_posterior(base_with_embedding)
    short = raw.summarised()
    assert short is not raw
    assert (short.x_shape, short.raw_shape) == ((3,), (3,))  # two features, and how rough x is
    theta = PRIOR.sample((2, 7))
    with torch.no_grad():
        assert torch.allclose(short.log_prob(theta, short.summarise(X)), raw.log_prob(theta, X), atol=1e-5)
    torch.manual_seed(0)
    drawn = raw.sample(X, 4)
    torch.manual_seed(0)
    assert torch.allclose(short.sample(short.summarise(X), 4), drawn, atol=1e-5)


def test_members_without_weight_do_not_count(trained, base):
    lone = as_base_posterior(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.0, 1.0])))
    theta = PRIOR.sample((2, 5))
    with torch.no_grad():
        assert torch.allclose(lone.log_prob(theta, X), as_base_posterior(base).log_prob(theta, X), atol=1e-5)


@pytest.mark.parametrize("name", ["npe", "fmpe"])
def test_corrected_densities_of_leaking_posteriors_repeat(trained, pairs, name):
    """The mass that leaks is estimated from draws; these too are fixed by the seed and leave the generator alone."""
    posterior = FMCPE(trained(name), simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)
    theta, before = PRIOR.sample((4,)), torch.get_rng_state()
    first = posterior.log_prob(theta, x=X[0])
    assert torch.equal(first, posterior.log_prob(theta, x=X[0]))
    assert torch.equal(before, torch.get_rng_state())
