"""The base posterior when its simulations do not fit into memory."""

import pytest
import torch
from conftest import PRIOR
from torch import nn

from fmcpe import npe, tasks, train_npe


def simulate(theta):
    """Without noise, so that simulating again gives the same."""
    return torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)


@pytest.fixture
def nothing_is_kept(monkeypatch):
    monkeypatch.setattr(npe, "_MAX_BYTES", 0)


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
