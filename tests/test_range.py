"""Is this observation in range: p-values of exchangeable ones, and the answer far outside."""

import warnings

import pytest
import torch
from conftest import PRIOR, observe

from fmcpe import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.extrapolation import Range


@pytest.mark.parametrize(("number", "dim"), [(10, 3), (30, 12), (100, 5)])
def test_student_p_values_of_exchangeable_observations_are_valid(number, dim):
    """P(p <= a) is at most a, over 60 sets of pairs with 100 observations each, within what chance allows."""
    with seeded(0):
        p = []
        for _ in range(60):
            rows = torch.randn(number + 100, dim) @ torch.randn(dim, dim)
            p.append(Range.of(rows[:number]).p_values(rows[number:]))
    p = torch.cat(p)
    for level in (0.1, 0.05, 0.01, 0.001):
        # observations of one set share its pairs: four times the standard error of 6000 independent ones
        assert float((p <= level).double().mean()) <= level + 4 * (level / 6000) ** 0.5
    assert 0.4 < float((p <= 0.5).double().mean()) < 0.6


def test_out_of_range_the_answer_is_never_sharper_than_inside(posteriors):
    """From ten standard deviations of the pairs to a thousand, in 20 directions; inside: the sharpest of 100 observations."""
    posterior = posteriors("default")
    with seeded(1):
        real = observe(PRIOR.sample((100,)))
        direction = torch.nn.functional.normalize(torch.randn(20, 3), dim=1)
    inside = _spread(posterior, real)
    for distance in (10.0, 100.0, 1000.0):
        moved = real[:20] + distance * real.std(0) * direction
        found = posterior.check(moved)
        assert bool((found.pairs < 0.01).all()) and bool((found.conformal == found.conformal.min()).all())
        spread = _spread(posterior, moved)[found.out_of_range]
        assert bool((spread >= inside.amin(0)).all())
    assert bool(found.out_of_range.all()) and float(found.pairs.max()) < 1e-6 and float(found.prior_share.min()) > 0.9
    assert float(spread.min()) > 0.75  # close to the prior's, of one


def _spread(posterior, y):
    """Standard deviation in z of each parameter, (B, p)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        draws = posterior.sample_batched((300,), x=y, seed=0, show_progress_bars=False)
    return posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape).std(0)
