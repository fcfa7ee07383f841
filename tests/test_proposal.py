"""Adapters: what users already have, drawn without sbi's rejection loop."""

import pytest
import torch
from conftest import PRIOR, TINY, simulate
from sbi.inference import FMPE, NLE, NPE, NPSE
from sbi.inference.posteriors import EnsemblePosterior
from torch.distributions import MultivariateNormal

from fmcpe import FMCPE, as_proposal
from fmcpe.adapters import CallableProposal, DensityProposal, EnsembleProposal, VectorFieldProposal

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
                    "nle": lambda: NLE(PRIOR, show_progress_bars=False),
                }[name]()
                trainer.append_simulations(*simulations).train(max_num_epochs=30)
                made[name] = trainer.build_posterior()
        return made[name]

    return get


@pytest.fixture(params=["npe", "ensemble", "fmpe", "npse", "train_npe"])
def proposal(request, trained, base):
    if request.param == "train_npe":
        return as_proposal(base)
    if request.param == "ensemble":
        return as_proposal(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.3, 0.7])))
    return as_proposal(trained(request.param))


def test_kinds(trained, base):
    assert isinstance(as_proposal(trained("npe")), DensityProposal)
    assert isinstance(as_proposal(trained("fmpe")), VectorFieldProposal)
    assert isinstance(as_proposal(EnsemblePosterior([base, base])), EnsembleProposal)


def test_one_theta_per_row_about_the_right_place(proposal):
    torch.manual_seed(0)
    theta = proposal.sample(X.repeat_interleave(300, dim=0)).unflatten(0, (2, 300))
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
        mass = proposal.log_prob(theta, X).exp().sum(0) * 4 / n**2
    assert torch.allclose(mass, torch.ones(2), atol=0.08)  # the leak is estimated from 200 draws
    assert bool(torch.isneginf(proposal.log_prob(torch.tensor([[0.0, 1.2]]), X)).all())


def test_out_of_distribution_ends_and_is_reported(trained):
    """Here sbi's own sampler would not return: the network puts its mass far outside the prior."""
    proposal = as_proposal(trained("npe"))
    theta = proposal.sample(torch.full((50, 3), 300.0))
    assert bool(PRIOR.support.check(theta).all())
    assert proposal.fraction_clamped > 0.5


def test_vector_fields_agree_with_sbi(trained):
    """Our fixed-step density of an FMPE posterior is sbi's adaptive one."""
    posterior = trained("fmpe")
    theta = torch.tensor([[0.5, 0.5], [0.2, 0.4], [0.9, 0.55]])
    ours = as_proposal(posterior).log_prob(theta, X[:1])[:, 0]
    leak = as_proposal(posterior).log_acceptance(X[:1])
    theirs = posterior.log_prob(theta, x=X[0])
    assert torch.allclose(ours + leak, theirs, atol=0.05)


def test_the_ensemble_is_the_weighted_mixture(trained, base):
    a, b = as_proposal(trained("npe")), as_proposal(base)
    mixture = as_proposal(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.3, 0.7])))
    theta = PRIOR.sample((5,))
    with torch.no_grad():
        expected = (0.3 * a._log_density(theta, X).exp() + 0.7 * b._log_density(theta, X).exp()).log()
        assert torch.allclose(mixture._log_density(theta, X), expected, atol=1e-4)


def test_plain_functions():
    law = MultivariateNormal(torch.zeros(2), 0.01 * torch.eye(2))

    def draw(x):
        return (x[:, :2] / 10 + law.sample((x.shape[0],))).numpy()

    proposal = as_proposal(draw, prior=PRIOR)
    assert isinstance(proposal, CallableProposal)
    assert as_proposal(proposal) is proposal
    assert proposal.sample(X).shape == (2, 2)
    with pytest.raises(NotImplementedError, match="no density"):
        proposal.log_prob(torch.zeros(1, 2), X)
    wide = as_proposal(
        draw,
        prior=MultivariateNormal(torch.zeros(2), torch.eye(2)),
        log_prob=lambda t, x: law.log_prob(t - x[:, :2] / 10),
    )
    theta = torch.rand(4, 2)
    expected = torch.stack([law.log_prob(theta - row[:2] / 10) for row in X], dim=1)
    assert torch.allclose(wide.log_prob(theta, X), expected, atol=1e-4)


def test_what_cannot_be_adapted_is_refused(trained):
    with pytest.raises(ValueError, match="prior="):
        as_proposal(lambda x: x)
    with pytest.raises(TypeError, match="train_npe"):
        as_proposal("posterior")
    with pytest.raises(TypeError, match="MCMC"):
        as_proposal(trained("nle"))
    with pytest.raises(ValueError, match="one θ per row"):
        as_proposal(lambda x: x[:1], prior=PRIOR).sample(X)


def test_a_summary_is_the_same_posterior(base, base_with_embedding):
    """Draws and densities as a function of h(x) are those as a function of x; without an embedding there is no summary."""
    plain = as_proposal(base)
    assert plain.summarised() is plain
    raw = as_proposal(base_with_embedding)
    short = raw.summarised()
    assert short is not raw
    assert (short.x_shape, short.raw_shape) == ((3,), (3,))  # two features, and how rough x is
    theta = PRIOR.sample((7,))
    with torch.no_grad():
        assert torch.allclose(short.log_prob(theta, short.summarise(X)), raw.log_prob(theta, X), atol=1e-5)
    torch.manual_seed(0)
    drawn = raw.sample(X)
    torch.manual_seed(0)
    assert torch.allclose(short.sample(short.summarise(X)), drawn, atol=1e-5)


def test_members_without_weight_do_not_count(trained, base):
    lone = as_proposal(EnsemblePosterior([trained("npe"), base], weights=torch.tensor([0.0, 1.0])))
    theta = PRIOR.sample((5,))
    with torch.no_grad():
        assert torch.allclose(lone.log_prob(theta, X), as_proposal(base).log_prob(theta, X), atol=1e-5)


@pytest.mark.parametrize("name", ["npe", "fmpe"])
def test_corrected_densities_of_leaking_posteriors_repeat(trained, pairs, name):
    """The mass that leaks is estimated from draws; these too are fixed by the seed and leave the generator alone."""
    posterior = FMCPE(trained(name), simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)
    theta, before = PRIOR.sample((4,)), torch.get_rng_state()
    first = posterior.log_prob(theta, x=X[0], num_source_samples=8)
    assert torch.equal(first, posterior.log_prob(theta, x=X[0], num_source_samples=8))
    assert torch.equal(before, torch.get_rng_state())
