"""Numbers at the end of single precision, and simulations that do not fit: an error that says what to do."""

import pytest
import torch
from conftest import PRIOR, simulate
from torch import nn

from fmcpe import baselines, train_npe
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.nn.training import Training

QUIET = {"seed": 0, "show_progress_bars": False}
BRIEF = Training(max_num_epochs=2)
FAR = torch.tensor([1.0, 1e38, 0.5])
TRANSPORT = {"RoPE": baselines.RoPE, "FRISBI": baselines.FRISBI}
DENOISING = {"RNPE": baselines.RNPE, "RSNL": baselines.RSNL}


@pytest.fixture(params=["raw", "embedded"])
def start(request, base, base_with_embedding):
    return base if request.param == "raw" else base_with_embedding


@pytest.mark.parametrize("kind", ["rope", "rope-summary", "frisbi", "frisbi-summary"])
def test_an_observation_whose_distances_overflow_is_refused(kind, posteriors):
    posterior, message = (
        posteriors(kind),
        r"^Expected observations at finite distances .+, got 1 of \d+ .+ Check their units",
    )
    with pytest.raises(ValueError, match=message):
        posterior.sample((3,), x=FAR)
    with pytest.raises(ValueError, match=message):
        posterior.log_prob(torch.tensor([[0.0, 0.5]]), x=FAR)
    assert posterior.sample((3,), x=FAR.clamp(max=1e15), show_progress_bars=False).isfinite().all()


@pytest.mark.parametrize("name", TRANSPORT)
def test_such_a_pair_is_refused_when_it_is_fitted(name, start, pairs):
    theta, y = pairs
    y = torch.cat([FAR[None], y[1:]])
    with pytest.raises(ValueError, match=r"^Expected observations at finite distances .+, got 1 of 30 "):
        TRANSPORT[name](start, simulate, num_simulations=200).fit(theta, y, **QUIET)


def test_such_an_unlabelled_observation_is_refused(start, pairs):
    with pytest.raises(ValueError, match=r"^Expected observations at finite distances .+, got 2 of 32 "):
        baselines.FRISBI(start, simulate, num_simulations=200).fit(*pairs, y_unlabelled=FAR.expand(2, 3), **QUIET)


@pytest.mark.parametrize("name", TRANSPORT | DENOISING)
def test_simulations_whose_variance_overflows_are_refused(name, start, pairs):
    theta = PRIOR.sample((200,))
    x = simulate(theta)
    x[7] = FAR
    with pytest.raises(ValueError, match=r"^Expected simulations whose variance .+, got values up to 1e\+38\. Choose"):
        (TRANSPORT | DENOISING)[name](start, simulations=(theta, x)).fit(*pairs, **QUIET)


@pytest.mark.parametrize("name", DENOISING)
def test_summaries_that_are_no_numbers_are_refused(name, base_with_embedding, monkeypatch):
    """As of an embedding with activations that give 0 · ∞."""
    method = DENOISING[name](base_with_embedding, simulate, num_simulations=200)
    posterior = method.fit(seed=0)
    about = method.misspecification_probability if name == "RNPE" else method.adjustments
    monkeypatch.setattr(posterior.inner.summaries.base, "summarise", lambda y: torch.where(y > 3, torch.nan, y))
    for answer in (about, lambda y: posterior.sample_batched((3,), x=y, show_progress_bars=False)):
        with pytest.raises(
            ValueError, match=r"^Expected summaries that are numbers, got NaN for 1 of 2 row.+ Check the unit"
        ):
            answer(torch.tensor([[1.0, 9.0, 0.5], [0.0, 1.0, 1.0]]))


@pytest.mark.parametrize("name", DENOISING)
def test_simulations_of_another_shape_are_refused(name, start):
    with pytest.raises(ValueError, match=r"^Expected simulations with rows of shape \(3,\), .+ got \(2,\)\. Pass the"):
        DENOISING[name](start, lambda theta: simulate(theta)[:, :2], num_simulations=200).fit(**QUIET)


@pytest.mark.parametrize("name", TRANSPORT | DENOISING)
def test_no_simulations_are_refused(name, base, pairs):
    with pytest.raises(ValueError, match=r"^Expected 20 or more simulations, got none\. Pass more"):
        (TRANSPORT | DENOISING)[name](base, simulations=(torch.zeros(0, 2), torch.zeros(0, 3))).fit(*pairs, **QUIET)


def test_fewer_simulations_than_summaries_are_refused():
    theta = PRIOR.sample((25,))
    base = as_base_posterior(lambda x: PRIOR.sample((len(x),)), PRIOR)
    with pytest.raises(
        ValueError, match=r"^Expected more simulations than summaries for RNPE, got 25 of 40 numbers\. Pass"
    ):
        baselines.RNPE(base, simulations=(theta, torch.randn(25, 40))).fit(**QUIET)


@pytest.mark.parametrize("value", ["a", None, 2.5])
def test_options_that_are_no_numbers_are_refused(value, base):
    makers = {
        "num_targets": lambda: baselines.RoPE(base, simulate, num_targets=value),
        "max_components": lambda: baselines.RNPE(base, simulate, max_components=value),
    }
    if value != 2.5:
        makers |= {
            "gamma": lambda: baselines.FRISBI(base, simulate, gamma=value),
            "rho": lambda: baselines.RoPE(base, simulate, rho=value),
            "shrinkage": lambda: baselines.RSNL(base, simulate, shrinkage=value),
            "pair_weight": lambda: baselines.JNPE(simulate, PRIOR, pair_weight=value),
            "slab": lambda: baselines.SpikeAndSlab(slab=value),
            "gaussian_summaries": lambda: train_npe(simulate, PRIOR, 100, nn.Linear(3, 2), gaussian_summaries=value),
            "weight": lambda: baselines.NPERS(simulate, PRIOR, weight=value, training=BRIEF),
        }
    for name, make in makers.items():
        with pytest.raises(ValueError, match=rf"^Expected .+ got .*{value}'?\. Try {name}="):
            make()
