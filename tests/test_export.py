"""ArviZ and pandas: the same draws under their names, in the groups that ArviZ knows."""

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import PRIOR, simulate
from sbi.utils import MultipleIndependent
from torch.distributions import Gamma, Normal

import fmcpe

Y = torch.tensor([[1.0, 0.5, 1.2], [0.3, 2.0, 0.8]])
xarray = pytest.importorskip("xarray")


def group(found, name):
    return found[name] if hasattr(found, "children") else getattr(found, name)


def test_one_observation(posteriors):
    posterior = posteriors("default")
    found = posterior.to_arviz(Y[0], num_samples=50, chains=2, seed=0)
    draws = group(found, "posterior")
    assert [draws[name].shape for name in posterior.names] == [(2, 50)] * 2
    values = np.stack([np.asarray(draws[name]) for name in posterior.names], axis=-1)
    assert bool(PRIOR.support.check(torch.as_tensor(values)).all())
    again = posterior.to_arviz(Y[0], num_samples=50, chains=2, seed=0)
    assert np.array_equal(values[..., 0], np.asarray(group(again, "posterior")[posterior.names[0]]))
    assert np.array_equal(np.asarray(group(found, "observed_data")["y"]), Y[0].numpy())
    assert group(found, "prior")[posterior.names[0]].shape == (1, 50)
    assert group(found, "posterior").attrs["inference_library"] == "fmcpe"


def test_a_prior_of_mixed_families(posteriors, monkeypatch):
    posterior = posteriors("npe")
    mixed = MultipleIndependent([Normal(torch.tensor([5.0]), torch.tensor([0.1])), Gamma(torch.ones(1), torch.ones(1))])
    monkeypatch.setattr(posterior, "shared", replace(posterior.shared, target_prior=mixed))
    prior = group(posterior.to_arviz(Y[0], num_samples=500, chains=2, seed=0), "prior")
    first, second = (np.asarray(prior[name]) for name in posterior.names)
    assert first.shape == second.shape == (1, 500)
    assert abs(float(first.mean()) - 5) < 0.05 and float(second.min()) > 0


def test_a_batch_and_simulations(posteriors):
    posterior = posteriors("default")
    found = posterior.to_arviz(Y, num_samples=20, chains=3, predictive=True, labels=["a", "b"], seed=0)
    draws, simulations = group(found, "posterior"), group(found, "posterior_predictive")["y"]
    assert draws[posterior.names[0]].dims == ("chain", "draw", "observation")
    assert list(np.asarray(draws["observation"])) == ["a", "b"]
    assert simulations.shape == (3, 20, 2, 3)
    # the first number of a simulation is θ_0 with noise 0.3
    assert float(np.abs(np.asarray(simulations)[..., 0] - np.asarray(draws[posterior.names[0]])).mean()) < 0.3


def test_a_file_simulates_with_what_it_is_given(posteriors, tmp_path):
    loaded = fmcpe.load(posteriors("default").save(tmp_path / "run.fmcpe"))
    with pytest.raises(ValueError, match="predictive=my_simulator"):
        loaded.to_arviz(Y[0], predictive=True)
    found = loaded.to_arviz(Y[0], num_samples=10, chains=1, predictive=simulate)
    assert group(found, "posterior_predictive")["y"].shape == (1, 10, 3)
    with pytest.raises(ValueError, match="chain"):
        loaded.to_arviz(Y[0], chains=0)


def test_arviz_reads_it(posteriors):
    arviz = pytest.importorskip("arviz")
    found = posteriors("default").to_arviz(Y[0], num_samples=500, chains=4, seed=0)
    table = arviz.summary(found)
    mean = posteriors("default").sample((4000,), x=Y[0], seed=1).mean(0)
    assert np.allclose(table["mean"].to_numpy(float), mean.numpy(), atol=0.05)
    assert float(table["r_hat"].max()) < 1.02


def test_a_tree_without_inference_data(posteriors, monkeypatch):
    """ArviZ 1 has no InferenceData: the answer is xarray's DataTree."""

    class Newer:
        __spec__ = importlib.util.find_spec("json")

    monkeypatch.setitem(sys.modules, "arviz", Newer())
    found = posteriors("default").to_arviz(Y[0], num_samples=10, seed=0)
    assert isinstance(found, xarray.DataTree)
    assert set(found.children) == {"posterior", "prior", "observed_data"}
    assert found["posterior"][posteriors("default").names[0]].shape == (4, 10)


def test_dataframes(posteriors):
    pandas = pytest.importorskip("pandas")
    posterior = posteriors("default")
    one = posterior.to_dataframe(Y[0], num_samples=30, seed=0)
    assert isinstance(one, pandas.DataFrame) and tuple(one.columns) == posterior.names and len(one) == 30
    several = posterior.to_dataframe(Y, num_samples=30, labels=["a", "b"], seed=0)
    assert list(several.columns) == ["observation", "draw", *posterior.names]
    assert list(several["observation"].unique()) == ["a", "b"]
