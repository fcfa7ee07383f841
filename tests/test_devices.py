"""No tensor is created on a fixed device: fits and draws on a device that is not the CPU, by a device-tracking mode."""

import sys

import pytest
import torch
from conftest import PRIOR, TINY, observe, simulate
from elsewhere import Remote, elsewhere
from sbi.utils import BoxUniform
from torch import nn

import fmcpe
from fmcpe import FMCPE, Stack, candidates, diagnostics

BRIEF = Stack(
    [candidates.Uncorrected(), candidates.Prior(), candidates.ResidualShift(), candidates.SyntheticLikelihood(),
     candidates.JointFlow(steps=2), candidates.FineTuned(steps=2)],
    folds=2, repeats=1, draws=16,
)  # fmt: skip


@pytest.fixture(autouse=True)
def fused_steps(monkeypatch):
    """The optimiser asks torch by name which devices have fused steps."""
    module = sys.modules["torch.optim.optimizer"]  # torch.optim removes the attribute
    known = module._get_fused_kernels_supported_devices()
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: [*known, "meta"])


def there(theta):
    """The simulator of a user whose data are on a device."""
    assert isinstance(theta, Remote)
    x = torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)
    return x + 0.3 * torch.randn_like(x)


def test_the_mode_finds_what_a_gpu_refuses():
    with elsewhere() as device:
        far = torch.tensor([1.0, 2.0], device=device)
        assert far.device.type == "meta" and (far @ far).item() == 5.0 and far.cpu().tolist() == [1.0, 2.0]
        with pytest.raises(RuntimeError, match="of the CPU meets"):
            far + torch.ones(2)
        assert (far + torch.tensor(1.0)).sum().item() == 5.0  # single numbers may come from the CPU
        assert far[torch.tensor([1])].item() == 2.0  # and indices
        with pytest.raises((RuntimeError, TypeError)):
            far.numpy()


@pytest.mark.parametrize("kind", [pytest.param("default", marks=pytest.mark.nightly), "paper"])
def test_fits_draws_and_densities_stay_on_their_device(kind, pairs, tmp_path):
    pairs = tuple(each[:12] for each in pairs)
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2)) if kind == "default" else None
    y = pairs[1]
    with elsewhere() as device:
        prior = BoxUniform(PRIOR.base_dist.low.to(device), PRIOR.base_dist.high.to(device), device="meta")
        base = fmcpe.train_npe(
            there, prior, 300, net, seed=0, max_num_epochs=1, device="meta", show_progress_bars=False
        )
        recipe = TINY if kind == "paper" else BRIEF
        posterior = FMCPE(base, there, recipe=recipe, device="meta").fit(*pairs, seed=0, show_progress_bars=False)
        draws = posterior.sample_batched((20,), x=y[:3], seed=0)
        assert isinstance(draws, Remote) and draws.shape == (20, 3, 2)
        if kind == "default":  # the mode does not know torch.func.jvp, by which flows get their divergence
            assert isinstance(posterior.log_prob(draws[:, 0], x=y[0]), Remote)
            assert isinstance(posterior.map(x=y[0], num_iter=1), Remote)
            assert len(posterior.check(y[:3]).pairs) == 3
            posterior.conformalize(PRIOR.sample((20,)), observe(PRIOR.sample((20,))), num_samples=20)
            assert posterior.interval(0.8, x=y[0]).low.shape == (2,)
            assert diagnostics.calibration(posterior).sbc.ranks.shape == (12, 2)
            assert isinstance(diagnostics.suggest(posterior, 3), Remote)
            assert "out of range" in str(posterior.check(y[:3] + 1000))
            assert (
                0 <= diagnostics.joint_span(posterior).share <= 1
                and diagnostics.span(posterior)[0].name == "theta[0]"
                and diagnostics.suspects(posterior) is not None
            )
            assert diagnostics.misspecification(posterior).conditional is not None
            page = posterior.report(tmp_path / "report.html", x=y[:2]).read_text()
            assert all(f'id="{key}"' in page for key in ("calibration", "range", "simulator", "design", "suspects"))
        assert posterior.draws(5, y[:3]).theta.shape == (3, 5, 2)  # numpy
        path = posterior.save(tmp_path / "run.fmcpe")
    assert fmcpe.load(path).sample((5,), x=y[0], seed=0).device.type == "cpu"


def test_a_prior_elsewhere_is_refused(base):
    with elsewhere(), pytest.raises(ValueError, match=r"Expected a prior on meta, .* got one on cpu"):
        FMCPE(base, simulate, device="meta")
    with elsewhere(), pytest.raises(ValueError, match="Expected a prior on meta"):
        fmcpe.train_npe(simulate, PRIOR, 300, device="meta")
