"""The record of a fit and its warnings: held-out errors and coverage, refuted coverage, skipped candidates, designs."""

import warnings
from dataclasses import replace

import pytest
import torch
from conftest import PRIOR, SMALL, observe, simulate
from scipy import stats

from fmcpe import FMCPE, FMCPEWarning, Stack, candidates, notes
from fmcpe.candidates.synthetic_likelihood import SyntheticPosterior
from fmcpe.diagnostics import central_coverage
from fmcpe.notes import _coverage, _refuted
from fmcpe.record import ParameterRecord

NAMES = ("offset", "gain")


def line(name, inside, pairs):
    return ParameterRecord(name, 0.1, 0.1, (0.8, inside / pairs), (0.8, 0.9), 1.0, 0.0, 1.0)


@pytest.mark.parametrize("pairs", [10, 30, 200])
def test_coverage_is_refuted_by_an_exact_binomial_test_over_all_parameters(pairs):
    for inside in range(pairs + 1):
        refuted = _refuted((line("a", inside, pairs), line("b", pairs, pairs)), pairs)
        assert bool(refuted) == (stats.binomtest(inside, pairs, 0.9, "less").pvalue < 0.005)
        assert all(f"interval of a holds {inside} of {pairs} held-out pairs" in text for text in refuted)


@pytest.mark.parametrize("pairs", [50, 1000])
def test_exact_posteriors_are_refuted_at_the_nominal_rate(pairs):
    """64 draws each, as `fit` has them: quantiles of so few would call 4 of 5 exact posteriors over-confident at 1000 pairs."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        everything = torch.randn(pairs, 65, 2, generator=generator)
        coverage = _coverage(everything[:, 1:], everything[:, 0], torch.ones(pairs))
        lines = tuple(replace(line("a", 1, 1), coverage=tuple(coverage[:, k].tolist())) for k in range(2))
        found.append((bool(_refuted(lines, pairs)), coverage))
    assert sum(refuted for refuted, _ in found) <= stats.binom.ppf(0.999, 200, 0.01)
    shares = torch.stack([coverage for _, coverage in found]).mean(0)
    assert shares[0].tolist() == pytest.approx([0.8] * 2, abs=0.01)
    assert shares[1].tolist() == pytest.approx([0.9] * 2, abs=0.01)


def test_a_posterior_that_its_pairs_refute_is_warned_of_by_name(base):
    """No candidate but the uncorrected one: its 90 % intervals fail, whatever their recalibration, and `fit` says where."""
    torch.manual_seed(3)
    theta = PRIOR.sample((40,))
    y = simulate(theta) + torch.tensor([6.0, 0.0, 0.0]) * (torch.rand(40, 1) < 0.4)
    recipe = replace(SMALL, candidates=(candidates.Uncorrected(),), robust=False)
    with pytest.warns(FMCPEWarning, match=r"90 % interval of offset holds \d+ of 40 held-out pairs") as caught:
        posterior = FMCPE(base, simulate, recipe=recipe, names=NAMES).fit(theta, y, seed=0, show_progress_bars=False)
    inside = round(40 * posterior.record.parameters[0].coverage[1])
    said = [str(each.message) for each in caught if "over-confident" in str(each.message)]
    assert f"holds {inside} of 40" in said[0] and said[0] in posterior.summary()
    assert any(note.kind == "coverage" and note.refutes for note in posterior.record.notes)


def test_errors_and_coverage_of_each_parameter_are_physical_and_held_out(posteriors):
    posterior = posteriors("default")
    kept, space = posterior.held_out, posterior.space
    for found, z in (("", kept.z), ("_before", kept.before)):
        theta = space.to_theta(z.flatten(0, 1)).reshape(z.shape)
        error = (theta.median(1).values - kept.theta).abs().median(0).values
        inside = central_coverage(theta.movedim(1, 0), kept.theta, 0.8)
        for k, parameter in enumerate(posterior.record.parameters):
            assert getattr(parameter, f"error{found}") == pytest.approx(float(error[k]), rel=0.1)
            assert getattr(parameter, f"coverage{found}")[0] == pytest.approx(float(inside[k]), abs=1e-6)
    first = posterior.record.parameters[0]
    assert (first.low, first.high) == (float(kept.theta[:, 0].min()), float(kept.theta[:, 0].max()))
    said = f"{first.name}: median error {first.error_before:.3g} -> {first.error:.3g}; 80 % interval holds "
    assert said in posterior.summary() and f"90 % {first.coverage_before[1]:.0%} -> {first.coverage[1]:.0%}" in (
        posterior.summary()
    )


def test_importance_weights_are_judged_by_the_held_out_draws(base, pairs, monkeypatch):
    """Other notes draw from the members again, which overwrites what they recorded."""

    def drawing(fitted, problem, names):
        for member in fitted.fits["synthetic_likelihood"].members:
            assert isinstance(member, SyntheticPosterior)
            member.unreliable = 1.0
        return []

    monkeypatch.setattr(notes, "_widened", drawing)
    recipe = Stack([candidates.SyntheticLikelihood(degrees=(1,))], folds=2, repeats=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        posterior = FMCPE(base, simulate, recipe=recipe).fit(*pairs, seed=0, show_progress_bars=False)
    assert "importance" not in {note.kind for note in posterior.record.notes}


def test_what_was_skipped_is_in_the_summary_with_its_reason(base, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        posterior = FMCPE(base, recipe=SMALL).fit(*pairs, seed=0, show_progress_bars=False)
    for name in ("residual_shift", "joint_flow"):
        assert f"{name:20s} not fitted: it needs a simulator" in posterior.summary()


def test_far_outside_of_the_measured_part_of_the_range_the_answer_is_as_wide_as_the_prior(base):
    """One parameter was measured in the lowest quarter of its range: observations of the highest quarter get wide answers."""
    torch.manual_seed(0)
    theta, test = PRIOR.sample((30,)), PRIOR.sample((200,))
    theta[:, 0], test[:, 0] = (theta[:, 0] + 2) / 4 - 2, test[:, 0] / 4 + 1.5
    recipe = replace(SMALL, candidates=(candidates.Uncorrected(), candidates.ResidualShift()))
    method = FMCPE(base, simulate, recipe=recipe, names=NAMES)
    with pytest.warns(FMCPEWarning, match="offset"):
        posterior = method.fit(theta, observe(theta), seed=0, show_progress_bars=False)
    z, truth = posterior.inner.sample(observe(test), 100)[..., 0], posterior.space.to_z(test)[:, 0]
    assert float(z.std(1).median()) > 0.8  # of the prior's
    low, high = z.quantile(0.05, dim=1), z.quantile(0.95, dim=1)
    assert float(((truth >= low) & (truth <= high)).float().mean()) > 0.65
