"""Do the pairs span the prior: the law of the largest gap, false alarms, and designs with holes."""

from dataclasses import replace

import pytest
import torch
from conftest import CANDIDATES, PRIOR, SMALL, observe, simulate

import fmcpe
from fmcpe import FMCPE, FMCPEWarning
from fmcpe._random import seeded
from fmcpe.diagnostics import joint_span, span
from fmcpe.span import design_notes, joint_span_of, largest_spacing_p, largest_spacing_quantile, spans

NAMES = ("a", "b")


@pytest.mark.parametrize("number", [1, 10, 100])
def test_the_largest_gap_has_the_law_of_uniform_spacings(number):
    with seeded(0):
        u = torch.rand(20_000, number, dtype=torch.float64).sort(1).values
    ends = torch.zeros(len(u), 1), torch.ones(len(u), 1)
    largest = torch.cat([ends[0], u, ends[1]], dim=1).diff(dim=1).amax(1)
    for level in (0.5, 0.1, 0.01):
        gap = largest_spacing_quantile(number, level)
        assert largest_spacing_p(number, gap) == pytest.approx(level, rel=1e-6)
        # within four standard errors of 20 000 repeats
        assert float((largest > gap).double().mean()) == pytest.approx(level, abs=4 * (level / 20_000) ** 0.5)
    assert largest_spacing_p(number, 0.0) == 1.0 and largest_spacing_p(number, 1.0) == 0.0


def test_draws_of_the_prior_leave_no_gap():
    """At 1 % for the gaps and 1 % for all parameters together: at most 4 of 50 repeats (2 %: exceeded once in 300)."""
    with seeded(1):
        named = 0
        for _ in range(50):
            theta, prior = torch.randn(30, 2), torch.randn(4096, 2)
            named += bool(design_notes(theta, theta, prior, prior, NAMES))
    assert named <= 4


@pytest.mark.parametrize("edge", [True, False])
def test_a_gap_is_named_with_its_ends(edge):
    with seeded(2):
        prior = torch.rand(4096, 2)
        theta = torch.rand(40, 2)
    theta[:, 1] = (
        0.35 + 0.65 * theta[:, 1]
        if edge
        else torch.where(theta[:, 1] < 0.5, 0.6 * theta[:, 1], 0.4 + 0.6 * theta[:, 1])
    )
    clean, holed = spans(theta, prior, NAMES)
    assert clean.gaps == () and clean.note == ""
    (gap,) = holed.gaps
    low, high = (
        (0.0, float(theta[:, 1].min()))
        if edge
        else (float(theta[:, 1][theta[:, 1] < 0.35].max()), float(theta[:, 1][theta[:, 1] > 0.35].min()))
    )
    assert gap.low == pytest.approx(low, abs=0.01) and gap.high == pytest.approx(high) and gap.p < 0.01
    assert gap.share == pytest.approx(high - low, abs=0.03)
    assert "No pair has b from" in holed.note and holed.note in holed.summary()


def test_a_grid_is_no_gap_but_few_values_are_named():
    prior = torch.rand(4096, 2)
    grid = torch.cartesian_prod(torch.linspace(0.05, 0.95, 7), torch.tensor([0.1, 0.5, 0.9]))
    fine, coarse = spans(grid, prior, NAMES)
    assert fine.note == "" and fine.distinct == 7 and "one of 3 values of b" in coarse.note


def test_a_design_on_a_line_is_named_although_each_parameter_spans_its_range():
    with seeded(3):
        prior = torch.randn(4096, 2)
        line = torch.randn(30, 1) * torch.ones(2) + 0.02 * torch.randn(30, 2)
        spread = torch.randn(30, 2)
    assert all(each.note == "" for each in spans(line, prior, NAMES))
    found = joint_span_of(line, prior, NAMES)
    assert found.p < 0.01 and found.share > 0.2 and "vary together" in found.note
    assert joint_span_of(spread, prior, NAMES).note == ""
    assert design_notes(line, line, prior, prior, NAMES) == [found.note]


def test_a_fit_warns_of_a_hole_and_the_posterior_tells_of_it_also_after_loading(base, tmp_path):
    with seeded(4):
        theta = PRIOR.sample((40,))
        theta[:, 0] = torch.where(theta[:, 0] < 0, 0.2 * theta[:, 0] - 1.6, 1.0 + 0.5 * theta[:, 0])
        y = observe(theta)
    recipe = replace(SMALL, candidates=(CANDIDATES["prior"], CANDIDATES["residual_shift"]))
    with pytest.warns(FMCPEWarning, match="No pair has offset from -1"):
        posterior = FMCPE(base, simulate, recipe=recipe, names=("offset", "gain")).fit(theta, y, seed=0)
    offset, gain = span(posterior)
    assert len(offset.gaps) == 1 and offset.gaps[0].share > 0.5 and gain.gaps == ()
    loaded = fmcpe.load(posterior.save(tmp_path / "a.fmcpe"))
    assert span(loaded) == [offset, gain] and joint_span(loaded) == joint_span(posterior)
