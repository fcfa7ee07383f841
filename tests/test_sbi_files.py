"""Files of corrected posteriors whose base posterior is sbi's own: they load alone, or say that they cannot."""

import json
import warnings

import pytest
import torch
from conftest import PRIOR, TINY, simulate
from file_edits import edit
from sbi.inference import FMPE, NPE
from sbi.inference.posteriors import DirectPosterior, EnsemblePosterior
from sbi.neural_nets import posterior_flow_nn, posterior_nn, posterior_score_nn
from torch import nn

import fmcpe
from fmcpe import FMCPE
from fmcpe.serialization.sbi_estimator import build_estimator, describe_estimator

Y = torch.tensor([1.0, 0.5, 1.2])
NET = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.fixture(scope="module")
def simulations():
    torch.manual_seed(0)
    theta = PRIOR.sample((300,))
    return theta, simulate(theta)


def corrected(base, pairs):
    return FMCPE(base, simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)


def estimator_of(builder, simulations):
    torch.manual_seed(0)
    made = builder(*simulations).eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.02 * torch.randn_like(weights))
    return made


BUILDERS = {
    "maf": posterior_nn("maf"),
    "nsf": posterior_nn("nsf", hidden_features=21, num_transforms=3, num_bins=7),
    "mdn": posterior_nn("mdn", num_components=4),
    "made": posterior_nn("made"),
    "zuko_maf": posterior_nn("zuko_maf", z_score_theta="none"),
    "zuko_nsf": posterior_nn("zuko_nsf", z_score_theta="transform_to_unconstrained", x_dist=PRIOR, num_bins=6),
    "embedding": posterior_nn("zuko_nsf", embedding_net=NET, z_score_x="structured"),
    "flow": posterior_flow_nn(hidden_features=30, num_layers=2),
    "adaptive flow": posterior_flow_nn("ada_mlp", hidden_features=20, num_layers=2),
    "score": posterior_score_nn(sde_type="vp"),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_sbis_factories_are_recognised(name, simulations):
    estimator = estimator_of(BUILDERS[name], simulations)
    before = torch.get_rng_state()
    says = describe_estimator(estimator, PRIOR, torch.Size((3,)))
    assert torch.equal(before, torch.get_rng_state())
    again = build_estimator(json.loads(json.dumps(says)), PRIOR, torch.Size((3,)))
    again.load_state_dict(estimator.state_dict())
    theta, x = (each[:20] for each in simulations)
    with torch.no_grad():
        if hasattr(estimator, "ode_fn"):
            t = torch.full((20,), 0.4)
            assert torch.allclose(again.eval().ode_fn(theta, x, t), estimator.ode_fn(theta, x, t), atol=1e-5)
        else:
            one, two = (each.eval().log_prob(theta[None], condition=x) for each in (again, estimator))
            assert torch.allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("name", ["maf", "embedding"])
def test_they_load_alone(name, simulations, pairs, tmp_path):
    base = DirectPosterior(estimator_of(BUILDERS[name], simulations), PRIOR)
    posterior = corrected(base, pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmcpe.FMCPEWarning)
        path = posterior.save(tmp_path / "run.fmcpe")
    loaded = fmcpe.load(path)
    assert torch.equal(loaded.sample((20,), x=Y, seed=0), posterior.sample((20,), x=Y, seed=0))


def test_an_ensemble_loads_alone(simulations, pairs, base, tmp_path):
    """Members of different kinds, each with its weight."""
    members = [DirectPosterior(estimator_of(BUILDERS["maf"], simulations), PRIOR), base]
    posterior = corrected(EnsemblePosterior(members, weights=torch.tensor([0.3, 0.7])), pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmcpe.FMCPEWarning)
        path = posterior.save(tmp_path / "run.fmcpe")
    loaded = fmcpe.load(path)
    assert torch.equal(loaded.sample((20,), x=Y, seed=0), posterior.sample((20,), x=Y, seed=0))
    theta, many = PRIOR.sample((1, 50)), Y[None]
    one, two = (each.shared.base._log_density(theta, many) for each in (posterior, loaded))
    assert torch.allclose(one, two, atol=1e-4) and loaded.shared.base.weights.tolist() == pytest.approx([0.3, 0.7])


def test_a_trained_flow_matching_posterior_loads_alone(simulations, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = FMPE(PRIOR, show_progress_bars=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.append_simulations(*simulations).train(max_num_epochs=2)
    posterior = corrected(trainer.build_posterior(), pairs)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.allclose(loaded.sample((20,), x=Y, seed=0), posterior.sample((20,), x=Y, seed=0), atol=1e-5)


class Own(nn.Module):
    """A network that no file can describe."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, x):
        return self.layer(x).tanh()


def test_what_a_file_cannot_describe_is_said_when_it_is_written(simulations, pairs, base, tmp_path):
    own = DirectPosterior(estimator_of(posterior_nn("maf", embedding_net=Own()), simulations), PRIOR)
    changed = estimator_of(BUILDERS["mdn"], simulations)
    changed.net._hidden_net[1] = nn.Tanh()  # the same weights, another function
    assert describe_estimator(changed, PRIOR, torch.Size((3,))) is None
    one = DirectPosterior(own.posterior_estimator, PRIOR)
    for outside in (own, DirectPosterior(changed, PRIOR), EnsemblePosterior([base, one])):
        posterior = corrected(outside, pairs)
        with pytest.warns(fmcpe.FMCPEWarning, match="does not contain it"):
            path = posterior.save(tmp_path / "run.fmcpe")
        with pytest.raises(ValueError, match="posterior=the_base_posterior"):
            fmcpe.load(path)
        loaded = fmcpe.load(path, posterior=outside)
        assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))


@pytest.mark.parametrize(
    "change",
    [{"factory": "os.system"}, {"arguments": {"model": "mnpe"}}, {"arguments": {"model": "maf", "embedding_net": "x"}}],
)
def test_only_sbis_factories_are_called(change, simulations, pairs, tmp_path):
    base = DirectPosterior(estimator_of(BUILDERS["maf"], simulations), PRIOR)
    path = corrected(base, pairs).save(tmp_path / "run.fmcpe")
    edit(path, lambda says, tensors: says["base"]["estimator"].update(change))
    with pytest.raises(ValueError, match="Load only files"):
        fmcpe.load(path)


def test_npe_from_sbis_own_trainer(simulations, pairs, tmp_path, monkeypatch):
    """As the tutorial does it: NPE(prior).append_simulations(...).train(), build_posterior()."""
    monkeypatch.chdir(tmp_path)
    trainer = NPE(PRIOR, show_progress_bars=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.append_simulations(*simulations).train(max_num_epochs=2)
    posterior = corrected(trainer.build_posterior(), pairs)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.sample((20,), x=Y, seed=0), posterior.sample((20,), x=Y, seed=0))
