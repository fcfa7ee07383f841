"""Calibration checks on Gaussian posteriors that are right, or wrong in a known way."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fmcpe.diagnostics import central_coverage, coverage, draws, ranks, sbc, sbc_of_draws

N = 600


class Gaussian:
    """The posterior of θ ~ N(0, 1), y ~ N(θ, 0.5²), per coordinate; `width` and `shift` (in deviations) spoil it."""

    def __init__(self, width: float = 1.0, shift: float = 0.0) -> None:
        self.width, self.shift = width, shift

    def _law(self, x: Tensor) -> torch.distributions.Normal:
        deviation = (1 / (1 + 4)) ** 0.5
        return torch.distributions.Normal(0.8 * x + self.shift * deviation, self.width * deviation)

    def sample_batched(self, sample_shape: Any, x: Tensor, show_progress_bars: bool = True) -> Tensor:
        return self._law(x).sample(torch.Size(sample_shape))

    def log_prob_batched(self, theta: Tensor, x: Tensor, norm_posterior: bool = True) -> Tensor:
        if norm_posterior:
            raise RuntimeError("sbi's normalisation may never end")
        return self._law(x).log_prob(theta).sum(-1)


def pairs(n: int = N, p: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, p, generator=generator)
    return theta, theta + 0.5 * torch.randn(n, p, generator=generator)


# --- SBC --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("posterior", "words"),
    [
        (Gaussian(), "calibrated: no miscalibration detected"),
        (Gaussian(width=0.6), "too narrow (∪): over-confident"),
        (Gaussian(width=1.6), "too wide (∩): under-confident"),
        (Gaussian(shift=0.5), "biased (slope): estimates too high"),
        (Gaussian(shift=-0.5), "biased (slope): estimates too low"),
        (Gaussian(shift=6.0), "biased (slope): estimates too high"),
        (Gaussian(width=0.5, shift=-0.5), "biased (slope): estimates too low; too narrow (∪): over-confident"),
    ],
)
def test_verdicts(posterior: Gaussian, words: str) -> None:
    result = sbc(posterior, *pairs(), num_samples=200)
    assert all(verdict == words for verdict in result.verdicts), result.summary()
    assert result.calibrated == words.startswith("calibrated")
    assert all(verdict in result.summary() for verdict in result.verdicts)


def test_histogram_shapes_are_the_right_way_round() -> None:
    narrow = sbc(Gaussian(width=0.5), *pairs(), num_samples=200).counts
    wide = sbc(Gaussian(width=2.0), *pairs(), num_samples=200).counts
    ends, middle = (lambda c: c[0] + c[-1]), (lambda c: c[len(c) // 2 - 1 : len(c) // 2 + 1].sum(0))
    assert (ends(narrow) > 2 * middle(narrow)).all()
    assert (middle(wide) > 2 * ends(wide)).all()


def test_bins_and_band() -> None:
    result = sbc(Gaussian(), *pairs(), num_samples=200)
    assert result.counts.shape == (20, 2) and (result.counts.sum(0) == N).all()
    assert result.band == tuple(int(b) for b in stats.binom.interval(0.95, N, 1 / 20))
    assert len(sbc(Gaussian(), *pairs(200), num_samples=100).counts) == 10
    assert len(sbc(Gaussian(), *pairs(12), num_samples=100).counts) == 4
    assert "large miscalibration only" in sbc(Gaussian(), *pairs(12), num_samples=100).summary()
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.num_samples = 3  # type: ignore[misc]


def test_the_right_posterior_is_called_calibrated_95_times_in_100() -> None:
    """With few draws, few pairs, and one tied value: the tests are exact, so the rate must hold there too."""
    clean = 0
    for seed in range(150):
        theta, y = pairs(40, p=2, seed=seed)
        samples = _draws(Gaussian(), y, 19, seed)
        clean += sbc_of_draws(samples.clamp_min(-1), theta.clamp_min(-1), seed=seed).calibrated
    assert 134 <= clean <= 149, clean


def _draws(posterior: Gaussian, y: Tensor, num_samples: int, seed: int = 1) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(10_000 + seed)
        return posterior.sample_batched((num_samples,), y)


def test_ranks_agree_with_sbi() -> None:
    sbi_run = pytest.importorskip("sbi.diagnostics").run_sbc
    theta, y = pairs(120)
    samples = _draws(Gaussian(), y, 100)

    class Fixed:
        def sample_batched(self, *args: Any, **options: Any) -> Tensor:
            return samples

    expected, _ = sbi_run(theta, y, Fixed(), num_posterior_samples=100, show_progress_bar=False)
    assert torch.equal(ranks(samples, theta), expected.long())


def test_ties_are_spread_over_the_ranks_they_could_have() -> None:
    tied = ranks(torch.zeros(9, 4000, 1), torch.zeros(4000, 1))
    assert stats.chisquare(np.bincount(tied[:, 0], minlength=10)).pvalue > 1e-3
    assert torch.equal(ranks(torch.tensor([[[0.0]], [[2.0]], [[3.0]]]), torch.tensor([[2.5]])), torch.tensor([[2]]))


# --- coverage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", ["ellipsoid", "density", "tarp"])
def test_coverage_of_the_right_posterior_is_in_its_band(region: Any) -> None:
    result = coverage(Gaussian(), *pairs(2000), levels=(0.5, 0.9), num_samples=100, region=region)
    low, high = result.band[:, 0], result.band[:, 1]
    for curve in result.columns().values():
        # 99.9 % instead of the 95 % of the band: six numbers are looked at.
        slack = 0.7 * (high - low) / 2
        assert ((curve >= low - slack) & (curve <= high + slack)).all(), result.summary()


@pytest.mark.parametrize("region", ["ellipsoid", "density"])
@pytest.mark.parametrize(("width", "mark"), [(0.6, "↓"), (1.6, "↑")])
def test_coverage_of_a_wrong_width(width: float, mark: str, region: Any) -> None:
    result = coverage(Gaussian(width), *pairs(), levels=(0.5, 0.8), num_samples=100, region=region)
    exact = 2 * stats.norm.cdf(width * stats.norm.ppf([0.75, 0.9])) - 1
    assert np.allclose(result.central, exact[:, None], atol=0.06)
    # In two dimensions the region holds the truth with probability 1 - (1 - level)^(width²).
    assert result.joint is not None
    assert np.allclose(result.joint, 1 - (1 - np.array([0.5, 0.8])) ** (width**2), atol=0.06)
    assert result.summary().count(mark) == 1 + 2 * 3


def test_coverage_of_few_draws_is_not_too_low() -> None:
    # The interval between the quantiles of 4 draws would cover 0.48 at a level of 0.8.
    theta, y = pairs(4000, p=1)
    assert central_coverage(_draws(Gaussian(), y, 4), theta, 0.8).item() == pytest.approx(0.8, abs=0.02)


def test_tarp_finds_a_forgotten_prior_that_central_intervals_miss() -> None:
    class NoPrior(Gaussian):
        def _law(self, x: Tensor) -> torch.distributions.Normal:
            return torch.distributions.Normal(x, 0.5)

    result = coverage(NoPrior(), *pairs(2000), levels=(0.5,), num_samples=200, region="tarp")
    assert ((result.central >= result.band[0, 0] - 0.01) & (result.central <= result.band[0, 1] + 0.01)).all()
    assert result.joint is not None and result.joint.item() > result.band[0, 1] + 0.02
    assert "≠" in result.summary().splitlines()[-1]


def test_tarp_agrees_with_sbi() -> None:
    run_tarp = pytest.importorskip("sbi.diagnostics.tarp").run_tarp
    theta, y = pairs(300)
    samples, references = _draws(Gaussian(0.6), y, 400), torch.rand(300, 2, generator=torch.Generator().manual_seed(0))

    class Fixed:
        def sample_batched(self, *args: Any, **options: Any) -> Tensor:
            return samples

    curve, levels = run_tarp(theta, y, Fixed(), references, num_posterior_samples=400, show_progress_bar=False)
    ours = draws.tarp_credibility(samples, theta, references)
    assert np.allclose([(ours <= level).double().mean() for level in levels], curve, atol=0.02)


def test_shuffled_pairs_do_not_look_good() -> None:
    theta, y = pairs()
    assert not sbc(Gaussian(), theta.roll(1, 0), y, num_samples=200).calibrated
    shuffled = coverage(Gaussian(), theta.roll(1, 0), y, levels=(0.8,), num_samples=100)
    assert (shuffled.central < 0.6).all()


def test_the_ellipsoid_knows_correlation_and_survives_a_constant_parameter() -> None:
    theta, y = pairs(1000)
    samples = _draws(Gaussian(), y, 200)
    turn = torch.tensor([[1.0, 1.0], [0.0, 0.01]])
    plain, turned = (
        draws.ellipsoid_credibility(samples, theta),
        draws.ellipsoid_credibility(samples @ turn, theta @ turn),
    )
    assert torch.allclose(plain, turned, atol=0.05)
    constant = draws.ellipsoid_credibility(torch.zeros(50, 10, 2), torch.zeros(10, 2))
    assert ((constant > 0) & (constant < 1)).all()


# --- seeds, errors, plots ---------------------------------------------------------------------------------------


def test_seeds_repeat_and_global_state_is_unchanged() -> None:
    theta, y = pairs(100)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    a, b, c = (sbc(Gaussian(), theta, y, num_samples=50, seed=s) for s in (0, 0, 1))
    first, second = (coverage(Gaussian(), theta.numpy(), y.numpy(), num_samples=50, seed=4) for _ in range(2))
    assert torch.equal(a.ranks, b.ranks) and torch.equal(a.counts, b.counts) and not torch.equal(a.ranks, c.ranks)
    assert first.joint is not None and second.joint is not None
    assert torch.equal(first.joint, second.joint) and torch.equal(first.central, second.central)
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()


class NoDensity:
    sample_batched = Gaussian().sample_batched


THETA, Y = pairs(20)
WRONG = {
    "nan": lambda: sbc(Gaussian(), THETA, Y * float("nan")),
    "rows": lambda: sbc(Gaussian(), THETA, Y[:5]),
    "no posterior": lambda: sbc(torch.zeros(5, 20, 2), THETA, Y),
    "few": lambda: sbc(Gaussian(), THETA[:2], Y[:2]),
    "names": lambda: sbc(Gaussian(), THETA, Y, names=("a",)),
    "levels": lambda: coverage(Gaussian(), THETA, Y, levels=(50,)),
    "region": lambda: coverage(Gaussian(), THETA, Y, region="hdr"),  # type: ignore[arg-type]
    "density of draws": lambda: coverage(torch.zeros(50, 20, 2), THETA, region="density"),
    "no density": lambda: coverage(NoDensity(), THETA, Y, region="density"),
    "few draws": lambda: coverage(torch.zeros(4, 20, 2), THETA),
    "references": lambda: draws.tarp_credibility(torch.zeros(4, 20, 2), THETA, references=THETA[:3]),
    "shape": lambda: ranks(torch.zeros(4, 19, 2), THETA),
    "log densities": lambda: draws.density_credibility(torch.zeros(4, 20), torch.zeros(19)),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_say_what_was_expected_what_was_given_and_what_to_type(case: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(?s)^Expected .+, got .+\. [A-Z]"):
        WRONG[case]()


def test_plots_are_figures_with_the_right_panels() -> None:
    import matplotlib
    import matplotlib.pyplot

    from fmcpe.diagnostics import plots

    settings = dict(matplotlib.rcParams)
    theta, y = pairs(100)
    good, bad = _draws(Gaussian(), y, 60), _draws(Gaussian(0.4, 1.0), y, 60)
    results = {"a": sbc_of_draws(bad, theta), "b": sbc_of_draws(good, theta)}
    curves = {name: coverage(s, theta) for name, s in (("a", bad), ("b", good))}
    panels = {
        plots.rank_histograms(results): 4,
        plots.rank_histograms(results["a"]): 2,
        plots.coverage_curves(curves): 3,
        plots.coverage_curves(curves["a"]): 3,
        plots.corner({"a": bad[:, 0], "b": good[:, 0]}, theta[0], names=("u", "v")): 4,
        plots.corner(torch.zeros(20, 1)): 1,
        plots.before_after(bad, good, theta, max_shown=10): 4,
    }
    for figure, count in panels.items():
        assert len(figure.axes) == count
        figure.canvas.draw()
    titles = [axes.get_title() for axes in plots.before_after(bad, good, theta).axes]
    low, high = np.quantile(bad[..., 0], [0.1, 0.9], axis=0)
    share = 100 * np.mean((low <= theta[:, 0].numpy()) & (theta[:, 0].numpy() <= high))
    shown = central_coverage(bad, theta, 0.8)[0]  # ranks, as in every table
    assert titles[0] == f"Before correction\n{100 * shown:.0f} % of the 80 % intervals hold the truth"
    assert abs(100 * shown - share) < 4  # quantiles of few draws differ by a little
    with pytest.raises(ValueError, match=r"^Expected 2 parameters in each, got .+ Pass names=None"):
        plots.corner(good[:, 0], names=("one",))
    with pytest.raises(ValueError, match=r"^Expected one set of parameter names, got .+ Pass the same names="):
        plots.rank_histograms({"a": results["a"], "b": sbc_of_draws(good, theta, names=("u", "v"))})
    assert matplotlib.pyplot.get_fignums() == [] and settings == dict(matplotlib.rcParams)


def test_a_posterior_sharper_than_the_grid_is_a_point_in_a_corner_plot():
    from fmcpe.diagnostics import plots

    generator = torch.Generator().manual_seed(0)
    wide, sharp = torch.rand(500, 2, generator=generator), 0.5 + 1e-6 * torch.randn(500, 2, generator=generator)
    figure = plots.corner({"wide": wide.numpy(), "sharp": sharp.numpy()}, None, ["a", "b"])
    assert any(len(line.get_xdata()) == 1 for axes in figure.axes for line in axes.lines)
