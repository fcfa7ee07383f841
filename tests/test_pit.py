"""PIT-ECDF with simultaneous bands: the band's level, what it shows, its plot; and CRPS against no correction."""

import pytest
import torch

from fmcpe import metrics
from fmcpe._random import seeded
from fmcpe.diagnostics import pit_of_draws
from fmcpe.diagnostics.cross_validated import calibration_of_draws
from fmcpe.diagnostics.pit import ecdf_band
from fmcpe.diagnostics.pit_plot import pit_ecdf

NAMES = ("a", "b")


@pytest.mark.parametrize("number", [10, 60, 300])
@pytest.mark.parametrize("level", [0.9, 0.98])
def test_the_band_holds_the_whole_function_at_its_level(number, level):
    """4000 samples of uniforms: within four standard errors, and the steps of a binomial, of the level."""
    points = torch.linspace(0, 1, min(number, 100) + 1, dtype=torch.float64)[1:-1]
    band = ecdf_band(number, len(points), level)
    with seeded(0):
        u = torch.rand(4000, number, dtype=torch.float64).sort(1).values.contiguous()
    ecdf = torch.searchsorted(u, points.expand(4000, -1).contiguous(), right=True) / number
    held = ((ecdf >= band[:, 0] - 1e-6) & (ecdf <= band[:, 1] + 1e-6)).all(1).double().mean()
    error = 4 * (level * (1 - level) / 4000) ** 0.5
    assert level - error <= float(held) <= level + error + 0.02
    assert bool((band[:, 0] <= points).all() and (band[:, 1] >= points).all())


@pytest.mark.parametrize(("scale", "shift", "inside"), [(1.0, 0.0, True), (0.6, 0.0, False), (1.0, 0.5, False)])
def test_the_function_leaves_the_band_if_the_posterior_is_wrong(scale, shift, inside):
    """In 95 of 100 repeats at 200 pairs; the band of both parameters holds both of an exact posterior in 98 %."""
    right = 0
    with seeded(1):
        for seed in range(100):
            draws = scale * torch.randn(64, 200, 2) + shift
            found = pit_of_draws(draws, torch.randn(200, 2), NAMES, seed=seed)
            right += all(found.inside) if inside else not any(found.inside)
    assert right >= 94 if inside else right >= 95
    if not inside:
        assert found.summary().count("outside") == 2


def test_a_plot_has_a_panel_for_each_parameter():
    with seeded(2):
        results = {
            name: pit_of_draws(scale * torch.randn(32, 60, 3), torch.randn(60, 3), ("a", "b", "c"))
            for name, scale in (("exact", 1.0), ("narrow", 0.3))
        }
    figure = pit_ecdf(results)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b", "c"]
    assert "outside the band" in pit_ecdf(results["narrow"]).axes[0].get_title()
    exact, narrow = figure.axes[0].get_lines()[1:]
    assert abs(exact.get_ydata()).max() < abs(narrow.get_ydata()).max()


def test_scores_are_compared_with_no_correction():
    with seeded(3):
        truth = torch.randn(100, 2)
        after, before = truth[:, None] + torch.randn(100, 32, 2), truth[:, None] + 2 + torch.randn(100, 32, 2)
    found = calibration_of_draws(after, truth, before, NAMES)
    expected = metrics.crps(after.movedim(0, 1), truth) / metrics.crps(before.movedim(0, 1), truth)
    for k, (ratio, low, high) in enumerate(found.crps_ratio):
        assert ratio == pytest.approx(float(expected[k]), rel=1e-6) and low < ratio < high < 1
    assert torch.allclose(found.crps, metrics.crps(after.movedim(0, 1), truth, reduce=False).mean(0))
    assert "CRPS of b" in found.summary() and "PIT-ECDF" in found.summary()
