"""The base posterior: simulations that do not fit into memory, settings, and embeddings without weights."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import PRIOR
from sbi.utils import MultipleIndependent
from torch import nn
from torch.distributions import Independent, LKJCholesky, Normal, Uniform

import fmcpe
from fmcpe import baselines, tasks, train_npe
from fmcpe._checks import parameter_dim, sbi_prior
from fmcpe.base_posteriors import npe
from fmcpe.nn.embeddings import level_aware_part
from fmcpe.nn.training import Training


def simulate(theta):
    """Without noise, so that simulating again gives the same."""
    return torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)


@pytest.fixture
def nothing_is_kept(monkeypatch):
    monkeypatch.setattr(npe.SimulationsOnDemand, "max_bytes", 0)


def train(simulator, number):
    return train_npe(simulator, PRIOR, number, seed=0, max_num_epochs=2, show_progress_bars=False)


def test_simulations_on_demand_train_the_same_network_as_kept_ones(request):
    kept = train(simulate, 1500)
    request.getfixturevalue("nothing_is_kept")
    on_demand = train(simulate, 1500)
    assert kept.history == on_demand.history
    weights = [posterior.posterior_estimator.state_dict().values() for posterior in (kept, on_demand)]
    assert all(map(torch.equal, *weights))


def test_simulations_on_demand_are_few_at_a_time(nothing_is_kept):
    rows = []

    def recorded(theta):
        rows.append(len(theta))
        return simulate(theta)

    train(recorded, 12_000)
    assert max(rows) == 5000  # for the statistics; 245 MB of 64×64×3 images
    assert sum(rows) > 2 * 12_000


def test_images_of_the_light_tunnel_are_not_kept():
    task = tasks.get("light-tunnel")
    theta, x = npe.simulate(task.simulator, task.prior, 50_000, None)
    assert isinstance(x, npe.SimulationsOnDemand)
    assert x.shape == (50_000, 64, 64, 3)
    assert torch.equal(x[torch.tensor([7, 3])], task.simulator(theta[[7, 3]]))
    assert isinstance(task.embedding_net()[1], nn.Conv2d)


def test_settings_of_training_may_be_numpys():
    assert Training(np.int64(3), learning_rate=np.float32(0.5)).learning_rate == 0.5
    with pytest.raises(ValueError, match="learning_rate"):
        Training(learning_rate=np.float32("inf"))


# ------------------------------------------------------------------ embeddings without weights


def image(theta):
    """Three pixels, and little noise."""
    return (simulate(theta) + 0.1 * torch.randn(len(theta), 3))[:, None]


def test_an_embedding_without_weights_trains_and_is_saved(tmp_path):
    """It reshapes, and nothing more: the posterior finds θ, and whoever asks for an embedding to tune finds none."""
    options = {"seed": 0, "show_progress_bars": False}
    base = train_npe(image, PRIOR, 3000, nn.Flatten(), max_num_epochs=6, **options)
    torch.manual_seed(0)
    theta = PRIOR.sample((100,))
    y = image(theta)
    posterior = baselines.NPE(base).fit()
    draws = posterior.sample_batched((100,), x=y, seed=0, show_progress_bars=False)
    assert float((draws.mean(0) - theta).square().mean().sqrt()) < 0.2  # the prior's deviations are 1.15 and 0.29
    assert fmcpe.as_base_posterior(base).embedding is None
    assert level_aware_part(base.posterior_estimator) is None
    assert torch.equal(
        fmcpe.load(posterior.save(tmp_path / "run.fmcpe")).sample((5,), x=y[0], seed=0),
        posterior.sample((5,), x=y[0], seed=0),
    )
    rope = baselines.RoPE(base, image, num_simulations=200).fit(theta, y, **options)
    assert rope.sample((5,), x=y[0]).shape == (5, 2)
    joint = baselines.JNPE(image, PRIOR, 3000, nn.Flatten(), training=Training(max_num_epochs=6)).fit(**options)
    assert torch.equal(joint.sample((5,), x=y[0], seed=0), posterior.sample((5,), x=y[0], seed=0))


def test_there_is_nothing_to_roughen_without_weights():
    with pytest.raises(ValueError, match="with weights"):
        train_npe(image, PRIOR, 200, nn.Flatten(), domain_randomisation=True)


def test_series_of_one_channel_are_standardised():
    """One channel has no spread over channels: that of all its numbers is what counts."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    base = train_npe(lambda theta: 5 + 100 * image(theta), PRIOR, 500, net, max_num_epochs=1, show_progress_bars=False)
    seen = base.posterior_estimator.embedding_net[0](5 + 100 * image(PRIOR.sample((1000,))))
    assert float(seen.mean()) == pytest.approx(0, abs=0.1)
    assert 0.5 < float(seen.std()) < 2


def test_data_on_a_baseline_are_not_roughened():
    """A gain would multiply what lies below the signal, too, and drown it; asked for, it is done all the same."""
    prior = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), torch.ones(1)), 1)

    def simulate(theta):
        return 300 + theta + 0.1 * torch.randn(len(theta), 8)

    for domain_randomisation, expected in ((None, False), (True, True)):
        net = torch.nn.Linear(8, 4)
        base = fmcpe.train_npe(
            simulate,
            prior,
            200,
            net,
            seed=0,
            max_num_epochs=1,
            domain_randomisation=domain_randomisation,
            show_progress_bars=False,
        )
        assert (level_aware_part(base.posterior_estimator) is not None) == expected


WRONG_PRIORS = {
    "text": ("uniform", "Expected prior to be a torch distribution, got a str"),
    "none": (None, "Expected (the prior of the simulations|prior to be a torch distribution), got "),
    "no vector": (LKJCholesky(2), r"got batch shape \(\) and event shape \(2, 2\)"),
    "batch": (Uniform(torch.zeros(2), torch.ones(2)), r"got batch shape \(2,\) and event shape \(\)"),
    "number": (Normal(0.0, 1.0), r"got batch shape \(\) and event shape \(\)"),
    "matrix": (Independent(Normal(torch.zeros(2, 2), torch.ones(2, 2)), 2), r"event shape \(2, 2\)"),
}
TRAINERS = {
    "train_npe": lambda prior: train_npe(simulate, prior, 10, show_progress_bars=False),
    "NNPE": lambda prior: baselines.NNPE(simulate, prior, 10).fit(),
    "NPERS": lambda prior: baselines.NPERS(simulate, prior, 10).fit(y=torch.zeros(3, 3)),
    "JNPE": lambda prior: baselines.JNPE(simulate, prior, 10).fit(),
    "DPE": lambda prior: baselines.DPE(prior).fit(torch.zeros(3, 2), torch.zeros(3, 3)),
}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("what", WRONG_PRIORS)
def test_a_wrong_prior_is_refused_with_advice(what, trainer):
    prior, words = WRONG_PRIORS[what]
    with pytest.raises((TypeError, ValueError), match=rf"^(?=Expected ).*{words}.*\. (Pass|Use|Call) "):
        TRAINERS[trainer](prior)


def test_priors_that_sbi_takes_are_still_taken():
    one = Uniform(torch.zeros(1), torch.ones(1))
    with pytest.warns(UserWarning, match="as a sequence"):
        assert parameter_dim(sbi_prior([one, Normal(torch.zeros(1), torch.ones(1))])) == 2
    assert parameter_dim(sbi_prior(one)) == 1 and parameter_dim(sbi_prior(PRIOR)) == 2
    assert parameter_dim(sbi_prior(MultipleIndependent([one, one], validate_args=False))) == 2
    assert parameter_dim(sbi_prior(SimpleNamespace(sample=PRIOR.sample, log_prob=PRIOR.log_prob))) == 2
