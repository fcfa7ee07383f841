"""Data shifted towards the simulations: against algebra, behind a real base posterior, and where it must not happen."""

import pytest
import torch
from sbi.utils import BoxUniform
from torch import nn

import fmcpe
from fmcpe import metrics
from fmcpe.adapters import as_proposal
from fmcpe.crossfit import CrossFit
from fmcpe.diagnostics import central_coverage
from fmcpe.shift import Shift, fit_shift
from fmcpe.summary import TunedProposal, shifted
from fmcpe.warm import FURTHEST

TIMES = torch.linspace(0, 1, 20)
MUCH_BETTER = 0.6
"""Energy score with the shift over that without: 0.52, 0.50 and 0.33 with networks of seeds 0, 1 and 2."""
PRIOR = BoxUniform(torch.tensor([0.5, -1.0]), torch.tensor([2.0, 1.0]))


def simulate(theta):
    """A line with noise."""
    return theta[:, :1] * TIMES + theta[:, 1:] + 0.1 * torch.randn(len(theta), 20)


def observe(theta):
    """The same through an instrument that drifts, and the more, the steeper the line."""
    return simulate(theta) + 0.8 * TIMES**2 - 0.5 + 0.3 * theta[:, :1] * torch.sin(6 * TIMES)


@pytest.fixture(scope="module")
def line_posterior():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 6))
        return fmcpe.train_npe(simulate, PRIOR, 6000, net, seed=0, max_num_epochs=15, show_progress_bars=False)


@pytest.mark.parametrize("shape", [(5,), (10, 12)])
def test_a_shift_that_is_linear_in_what_is_seen_is_found_exactly(shape):
    """Data of few numbers, and of so many that they are shifted along the directions that matter alone."""
    y, seen = torch.randn(60, *shape), torch.randn(60, 3)
    weight, constant = torch.randn(3, *shape), torch.randn(*shape)
    x = y + torch.einsum("nf,f...->n...", seen, weight) + constant
    fit = fit_shift(y, seen, x, FURTHEST)
    assert fit.explained == pytest.approx(1.0, abs=1e-3)
    torch.testing.assert_close(fit.y, x, atol=0.02, rtol=0)
    new_y, new_seen = torch.randn(7, *shape), torch.randn(7, 3)
    expected = new_y + torch.einsum("nf,f...->n...", new_seen, weight) + constant
    torch.testing.assert_close(fit.shift(new_y, new_seen), expected, atol=0.02, rtol=0)


def test_a_pair_is_shifted_by_the_others():
    """The y' of a pair is what a regression on all other pairs says, with the same penalty."""
    y, seen = torch.randn(30, 4), torch.randn(30, 2)
    x = y + 3 * seen[:, :1] + 0.1 * torch.randn(30, 4)
    fit = fit_shift(y, seen, x, FURTHEST)
    others = torch.arange(30) != 11
    alone = fit_shift(y[others], seen[others], x[others], FURTHEST).shift
    torch.testing.assert_close(alone(y[11:12], seen[11:12]), fit.y[11:12], atol=0.02, rtol=0)


def test_noise_is_not_explained():
    y, seen = torch.randn(200, 6), torch.randn(200, 3)
    assert fit_shift(y, seen, y + torch.randn(200, 6), FURTHEST).explained < 0.05


def test_what_is_unlike_all_pairs_is_shifted_no_further_than_the_last_that_is_like_them():
    y, seen = torch.zeros(50, 2), torch.randn(50, 1)
    shift = fit_shift(y, seen, y + 2 * seen, FURTHEST).shift
    far = shift(y[:2], torch.tensor([[1e6], [1e3]]))
    torch.testing.assert_close(far[0], far[1])
    assert float(far.abs().max()) < 3 * FURTHEST


def test_a_shifted_base_posterior_is_right_and_as_sure_as_it_should_be(line_posterior):
    """Thirty pairs; without the shift the base posterior is far off, and confident."""
    torch.manual_seed(1)
    theta, test_theta = PRIOR.sample((30,)), PRIOR.sample((400,))
    y, test_y = observe(theta), observe(test_theta)
    proposal = as_proposal(line_posterior)
    x = torch.stack([simulate(theta) for _ in range(16)]).mean(0)
    fit = fit_shift(y, proposal.summarised().summarise(y), x, FURTHEST)
    assert fit.explained > 0.8
    posterior = shifted(proposal, theta, fit.y, fit.shift)

    def measured(each):
        draws = torch.stack([each.sample(each.summarise(test_y)) for _ in range(50)])
        return metrics.energy_score(draws, test_theta), central_coverage(draws, test_theta, 0.8)

    (energy, coverage), (before, wrong) = measured(posterior), measured(proposal.summarised())
    assert energy < MUCH_BETTER * before
    assert float(wrong.min()) < 0.4
    assert float(coverage.min()) > 0.65 and float(coverage.max()) < 0.95


def test_the_recipe_shifts_where_that_is_most_of_what_is_wrong(line_posterior, tmp_path, monkeypatch):
    """What is kept has a shift, which its file holds; a member that is tuned behind it sees shifted data."""
    # a regression in summary space, which does as well where everything is linear, does not compete
    monkeypatch.setattr(CrossFit, "_ways", lambda fit, stages: iter(("prior", "uncorrected", "shifted", "tuned")))
    torch.manual_seed(2)
    theta, test_theta = PRIOR.sample((30,)), PRIOR.sample((300,))
    posterior = fmcpe.FMCPE(line_posterior, simulate).fit(theta, observe(theta), seed=0, show_progress_bars=False)
    proposal = posterior.corrector.proposal
    assert isinstance(proposal, TunedProposal) and isinstance(proposal.shift, Shift)
    assert "shifted" in posterior.summary() and posterior.history["evidence_shifted"][0] > 0
    y = observe(test_theta)
    draws = posterior.sample_batched((60,), x=y, seed=0, show_progress_bars=False)
    plain = fmcpe.baselines.NPE(line_posterior).fit().sample_batched((60,), x=y, seed=0, show_progress_bars=False)
    assert metrics.energy_score(draws, test_theta) < MUCH_BETTER * metrics.energy_score(plain, test_theta)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    again = loaded.sample_batched((60,), x=y, seed=0, show_progress_bars=False)
    torch.testing.assert_close(again, draws)
    torch.testing.assert_close(loaded.log_prob(theta[:5], x=y[0]), posterior.log_prob(theta[:5], x=y[0]))


def test_the_recipe_does_not_shift_data_that_are_right(line_posterior):
    torch.manual_seed(3)
    theta = PRIOR.sample((50,))
    posterior = fmcpe.FMCPE(line_posterior, simulate).fit(theta, simulate(theta), seed=0, show_progress_bars=False)
    assert getattr(posterior.corrector.proposal, "shift", None) is None, posterior.summary()
