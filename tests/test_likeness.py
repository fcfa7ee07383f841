"""Distortions that make simulations look like real data: they are what was done to them, and members learn from them."""

import math

import pytest
import torch
from torch import nn

import fmcpe
from fmcpe import FMCPE, metrics
from fmcpe.likeness import KEPT, likely_distortions
from fmcpe.roughen import Distortion, draw_distortion
from fmcpe.summary import _picked, imitations

TIME = torch.linspace(0, 10, 100)
DECAY = -0.25 * TIME  # the logarithm of a gain
PRIOR = torch.distributions.Independent(torch.distributions.Uniform(torch.tensor([1.0]), torch.tensor([5.0])), 1)


def simulate(amplitude):
    """Waves of an amplitude (N, 1), with a random phase and noise: no two are alike number by number."""
    phase = 2 * math.pi * torch.rand(len(amplitude), 1)
    return amplitude * torch.cos(3 * TIME + phase) + 0.05 * torch.randn(len(amplitude), len(TIME))


def reality(amplitude):
    """The same, damped, by how much differs from wave to wave; the noise is not damped."""
    rate = 0.25 * torch.rand(len(amplitude), 1)
    phase = 2 * math.pi * torch.rand(len(amplitude), 1)
    wave = torch.exp(-rate * TIME) * torch.cos(3 * TIME + phase)
    return amplitude * wave + 0.05 * torch.randn(len(amplitude), len(TIME))


def _log_gain(y):
    theta = torch.full((len(y), 1), 3.0)
    x = simulate(theta.repeat_interleave(16, dim=0)).unflatten(0, (len(y), 16))
    found = likely_distortions(x, y, float(x.std()))
    assert found.noise.shape == (len(y), KEPT, 1)
    return found.log_gain[0].mean((0, 1))


def test_a_gain_that_was_applied_is_found_and_none_where_there_is_none():
    theta = torch.full((10, 1), 3.0)
    damped = simulate(theta) * DECAY.exp()
    assert float((_log_gain(damped) - DECAY).square().mean().sqrt()) < 0.35  # of a gain that goes from 0 to -2.5
    assert float(_log_gain(simulate(theta)).abs().mean()) < 0.15
    random = draw_distortion(damped, torch.ones(10, 1), 2.0)
    assert float((random.log_gain[0].mean(0) - DECAY).square().mean().sqrt()) > 0.7


@pytest.mark.parametrize("shape", [(7,), (100,), (2, 50), (16, 16, 3)])
def test_data_of_every_shape_have_distortions_that_can_be_applied(shape):
    x, y = torch.randn(4, 3, *shape), torch.randn(4, *shape)
    found = likely_distortions(x, y, 1.0)
    one = found.rows((torch.arange(4), torch.zeros(4, dtype=torch.long)))
    assert one(y).shape == y.shape
    assert bool(torch.isfinite(one(y)).all())


def test_a_distortion_multiplies_and_adds_row_by_row():
    x = torch.randn(3, 5)
    gain, offset = torch.randn(3, 5), torch.randn(3, 5)
    torch.testing.assert_close(Distortion([gain], [offset], torch.zeros(3, 1))(x), x * gain.exp() + offset)
    noisy = Distortion([0 * gain], [0 * offset], torch.tensor([[0.0], [1.0], [0.0]]))(x)
    assert torch.equal(noisy[[0, 2]], x[[0, 2]])
    assert not torch.equal(noisy[1], x[1])


def test_a_member_imitates_only_pairs_that_it_may_see():
    rows = [torch.tensor([0, 1]), torch.tensor([5, 6, 7])]
    picked = _picked(rows, 200)
    assert [set(member.tolist()) for member in picked] == [{0, 1}, {5, 6, 7}]


def test_many_pairs_and_images_are_not_imitated():
    assert imitations(10, 200) > 0
    assert imitations(200, 200) == imitations(10, 12_288) == 0


@pytest.mark.slow
def test_imitations_tell_more_than_ten_pairs_do(monkeypatch):
    """How strong waves are at the start, whatever damps them later: over three sets, better than without imitations."""
    with fmcpe._random.seeded(0):
        net = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    base = fmcpe.train_npe(simulate, PRIOR, 4000, net, seed=0, max_num_epochs=10, show_progress_bars=False)
    with fmcpe._random.seeded(1):
        test = PRIOR.sample((300,))
        test_y = reality(test)

    def energy():
        total = 0.0
        for number in range(3):
            with fmcpe._random.seeded(10 + number):
                theta = PRIOR.sample((10,))
                y = reality(theta)
            posterior = FMCPE(base, simulate).fit(theta, y, seed=number, show_progress_bars=False)
            draws = posterior.sample_batched((50,), x=test_y, seed=0, show_progress_bars=False)
            total += float(metrics.energy_score(draws, test)) / 3
        return total

    with_imitations = energy()
    monkeypatch.setattr("fmcpe.summary._IMITATED", 0)
    assert with_imitations < 0.97 * energy()
