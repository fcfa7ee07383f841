"""NPE with robust statistics: NPE without its penalty, and summaries that forget a nuisance with it."""

import math

import pytest
import torch
from conftest import PRIOR, simulate
from sbi.utils import BoxUniform
from torch import nn

import fmcpe
from fmcpe import baselines
from fmcpe.base_posteriors import npe
from fmcpe.nn.training import Training

QUIET = {"seed": 3, "show_progress_bars": False}
BRIEF = Training(max_num_epochs=2)
ONE = BoxUniform(torch.tensor([-2.0]), torch.tensor([2.0]))


def weights(posterior):
    return list(posterior.shared.base.estimator.state_dict().values())


@pytest.mark.parametrize("observed", [False, True])
def test_without_weight_it_is_npe_to_the_bit(pairs, observed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))
    options = {"max_num_epochs": 2, "domain_randomisation": False}
    base = baselines.NPE(fmcpe.train_npe(simulate, PRIOR, 400, net, **options, **QUIET)).fit()
    method = baselines.NPERS(simulate, PRIOR, 400, net, weight=0.0, training=BRIEF)
    fitted = method.fit(*(pairs if observed else ()), **QUIET)
    assert all(map(torch.equal, weights(fitted), weights(base)))
    method.weight = 1.0
    assert not all(map(torch.equal, weights(method.fit(*pairs, **QUIET)), weights(base)))


def with_nuisance(theta, nuisance=0.0):
    """θ plus a nuisance, and the nuisance, both with noise of the same size."""
    nuisance = nuisance + 0.2 * torch.randn(len(theta), 1)
    return torch.cat([theta + nuisance, nuisance], dim=1) + 0.2 * torch.randn(len(theta), 2)


def test_summaries_forget_a_nuisance_that_is_shifted_in_real_data():
    r"""One linear summary w·x. Simulations say w ∝ (1, -½), the regression on the second number with equal variances; only
    (1, -1) does not move with the nuisance. Real observations are shifted along it by ten of its deviations.
    """
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    theta = ONE.sample((200,))
    real, training = with_nuisance(theta, 2.0), Training(10, 100, 2e-2)
    slope, bias = {}, {}
    for weight in (0.0, 10.0):
        method = baselines.NPERS(with_nuisance, ONE, 2000, net, weight=weight, training=training)
        posterior = method.fit(y_unlabelled=real, **QUIET)
        with torch.no_grad():
            h = posterior.shared.base.estimator.embedding_net
            along = h(torch.eye(2)) - h(torch.zeros(1, 2))
        slope[weight] = float(along[1] / along[0])
        draws = posterior.sample_batched((50,), x=real, seed=0, show_progress_bars=False)
        bias[weight] = float((draws.mean(0) - theta).mean())
    assert slope[0.0] == pytest.approx(-0.5, abs=0.15)
    assert slope[10.0] < -0.8
    assert bias[0.0] > 0.5  # half of the shift, but for the prior's edge
    assert abs(bias[10.0]) < 0.6 * bias[0.0]


def test_vectors_get_an_embedding_that_standardises_their_numbers(tmp_path):
    """Numbers in units of 1000 and of 1/1000 count alike, and the file describes the network."""
    units, torch_state = torch.tensor([1e3, 1.0, 1e-3]), torch.get_rng_state()

    def scaled(theta):
        return simulate(theta) * units

    with torch.random.fork_rng():
        torch.manual_seed(1)
        y = simulate(PRIOR.sample((20,)))
    train = Training(max_num_epochs=4)
    draws = []
    for simulator, scale in ((simulate, 1.0), (scaled, units)):
        posterior = baselines.NPERS(simulator, PRIOR, 800, training=train).fit(y_unlabelled=y * scale, **QUIET)
        draws.append(posterior.sample((200,), x=(y * scale)[0], seed=0))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert posterior.shared.base.estimator.embedding_net(y * units).shape == (20, 4)
    assert torch.allclose(draws[0], draws[1], atol=0.05)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.sample((200,), x=(y * units)[0], seed=0), draws[1])


@pytest.mark.parametrize("shape", [(48,), (2, 20), (12, 12, 3)], ids=["series", "channels", "image"])
def test_series_and_images_get_an_embedding(shape):
    def simulator(theta):
        return theta.sum(1).reshape(-1, *(1 for _ in shape)) + torch.randn(len(theta), *shape)

    torch.manual_seed(0)
    y = 1.0 + simulator(PRIOR.sample((300,)))  # more than one minibatch of them
    posterior = baselines.NPERS(simulator, PRIOR, 200, training=Training(max_num_epochs=1)).fit(y_unlabelled=y, **QUIET)
    assert posterior.sample_batched((5,), x=y[:4], seed=0).shape == (5, 4, 2)


def test_pairs_and_unlabelled_observations_count_alike_and_theta_not_at_all(pairs, monkeypatch):
    seen = []
    monkeypatch.setattr("fmcpe.baselines.npers.fit_npe", lambda *_, penalty, **__: seen.append(penalty))
    method = baselines.NPERS(simulate, PRIOR, 100)
    theta, y = pairs
    for theta_, y_, more in ((None, y, None), (theta, y, None), (None, None, y), (theta, y[:10], y[10:])):
        with pytest.raises(AttributeError):  # nothing was trained
            method.fit(theta_, y_, y_unlabelled=more, **QUIET)
    x = simulate(PRIOR.sample((50,)))
    values = [float(penalty(lambda data: data, x)) for penalty in seen]
    assert values == pytest.approx([values[0]] * 4) and values[0] > 0


def test_simulations_on_demand_train_it_too(pairs, monkeypatch):
    monkeypatch.setattr(npe.SimulationsOnDemand, "max_bytes", 100)
    posterior = baselines.NPERS(simulate, PRIOR, 300, training=BRIEF).fit(*pairs, **QUIET)
    assert posterior.sample((5,), x=pairs[1][0]).shape == (5, 2)


def test_it_says_what_it_needs(pairs):
    method = baselines.NPERS(simulate, PRIOR, 200, training=BRIEF)
    with pytest.raises(
        ValueError, match=r"^Expected real observations for weight=1, got none\. Call fit\(y_unlabelled="
    ):
        method.fit(**QUIET)
    with pytest.raises(ValueError, match=r"^Expected real observations for weight=1, got none"):
        method.fit(y_unlabelled=torch.zeros(0, 3), **QUIET)
    with pytest.raises(ValueError, match=r"^Expected real observations of shape \(M, 3\).+got \(7, 2\)\. Pass one row"):
        method.fit(y_unlabelled=torch.zeros(7, 2), **QUIET)
    with pytest.raises(ValueError, match=r"^Expected y_unlabelled of shape \(M, 3\)"):
        method.fit(*pairs, y_unlabelled=torch.zeros(7, 2), **QUIET)
    with pytest.raises(ValueError, match=r"^Expected finite numbers in y_unlabelled"):
        method.fit(y_unlabelled=torch.full((5, 3), math.nan), **QUIET)
    with pytest.raises(ValueError, match=r"got weight=-1\.0\. Try weight=1"):
        baselines.NPERS(simulate, PRIOR, weight=-1.0)
    with pytest.raises(ValueError, match=r"^Expected an embedding_net with weights, got one without"):
        baselines.NPERS(simulate, PRIOR, embedding_net=nn.Flatten())
