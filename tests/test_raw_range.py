"""Raw data that the summaries do not show: false alarms at the level, broken sensors found, the same after loading."""

import json

import pytest
import torch
from conftest import PRIOR, observe, simulate

import fmcpe
from fmcpe import FMCPE, Stack, candidates
from fmcpe._random import seeded
from fmcpe.raw_range import RawRange

TIMES = torch.linspace(0, 6, 60)


def series(number, damping=0.0):
    """Oscillations of random frequency and phase, with noise."""
    frequency, phase = 1 + torch.rand(number, 1), 6.3 * torch.rand(number, 1)
    clean = torch.exp(-damping * TIMES) * torch.cos(frequency * TIMES + phase)
    return clean + 0.1 * torch.randn(number, 60)


@pytest.mark.parametrize(("pairs", "power"), [(30, 0.7), (200, 0.95)])
def test_broken_series_are_found_and_usual_ones_are_not(pairs, power):
    """Of 2000 usual ones, as real data are: damped, which no simulation is."""
    with seeded(0):
        found = RawRange.of(series(pairs, 0.3), series(1000))
        usual, noise = series(2000, 0.3), torch.randn(200, 60)
        spike, shuffled = usual[:200].clone(), usual[:200, torch.randperm(60)]
        spike[:, 20] += 8
    assert float((found.p_values(usual) < 1e-3).double().mean()) < 1e-3 + 4 * (1e-3 / 2000) ** 0.5
    for broken in (noise, spike, shuffled):
        assert float((found.p_values(broken) < 1e-3).double().mean()) > power


def test_a_dead_sensor_that_wakes_up_is_found():
    with seeded(1):
        y, x = (torch.cat([series(60), torch.full((60, 1), 3.0)], dim=1) for _ in range(2))
    found = RawRange.of(y, x)
    awake = y[:20].clone()
    awake[:, -1] += 0.5
    assert float(found.p_values(awake).max()) < 1e-3 < float(found.p_values(y).min())


@pytest.mark.parametrize("shape", [(60,), (2, 30), (1,), (2,)])
def test_the_same_after_a_manifest(shape):
    with seeded(2):
        y, x, new = (series(n).flatten(1)[:, : torch.Size(shape).numel()].reshape(n, *shape) for n in (12, 400, 50))
    found = RawRange.of(y, x)
    loaded = RawRange.from_config(json.loads(json.dumps(found.to_config())))
    loaded.load_state_dict(found.state_dict())
    assert torch.equal(loaded.p_values(new), found.p_values(new))
    assert torch.equal(found.p_values(new), found.p_values(new, rows=7))


class Blind(torch.nn.Linear):
    """A summary of the first number."""

    def __init__(self):
        super().__init__(1, 2)
        for each in self.parameters():
            each.requires_grad_(False)

    def forward(self, x):
        return super().forward(x[:, :1])


def test_what_an_embedding_does_not_see_is_out_of_range(tmp_path):
    """The check, the warning and the answer agree, also after loading."""
    base = fmcpe.train_npe(
        simulate, PRIOR, 2000, Blind(), seed=0, max_num_epochs=3, domain_randomisation=False, show_progress_bars=False
    )
    with seeded(3):
        theta = PRIOR.sample((40,))
        y, usual = observe(theta), observe(PRIOR.sample((200,)))
    recipe = Stack([candidates.Prior(), candidates.ResidualShift()], folds=2, repeats=1)
    posterior = FMCPE(base, simulate, recipe=recipe).fit(theta, y, seed=0, show_progress_bars=False)
    broken = usual[:1].clone()
    broken[:, 1] += 1000
    found, plain = posterior.check(broken), posterior.check(usual)
    assert float(found.pairs) > 1e-3 > float(found.raw) and bool(found.out_of_range) and float(found.prior_share) > 0.9
    assert float(plain.out_of_range.double().mean()) < 0.02 and "against their raw data" in str(found)
    with pytest.warns(fmcpe.FMCPEWarning, match="out of range"):
        posterior.sample((5,), x=broken[0], seed=0)
    embedding = Blind()
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"), posterior=base, embedding_net=embedding)
    assert torch.equal(loaded.check(usual).raw, plain.raw)
