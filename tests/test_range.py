"""Is this observation in range: p-values of exchangeable ones, and the answer far outside."""

import warnings

import pytest
import torch
from conftest import PRIOR, observe, simulate

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Stack, candidates
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


@pytest.mark.parametrize("number", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_simulations_complete_few_pairs(number, gain):
    """Real data with another gain and offset than the simulations': valid p-values; 1000 deviations away is out of range."""
    with seeded(1):
        p, far = [], []
        for _ in range(40):
            mixing = torch.randn(4, 4)
            like, rows = torch.randn(300, 4) @ mixing, gain * torch.randn(number + 50, 4) @ mixing + 20
            usual = Range.of(rows[:number], like)
            p.append(usual.p_values(rows[number:]))
            far.append(usual.p_values(rows[number:] + 1000 * gain * mixing.norm(dim=0)))
    p = torch.cat(p)
    for level in (0.05, 0.01, 0.001):
        assert float((p <= level).double().mean()) <= level + 6 * (level / 2000) ** 0.5
    assert float((torch.cat(far) < 1e-3).double().mean()) > (0.95 if gain == 1 or number > 3 else 0.5)


@pytest.mark.parametrize("number", [2, 3, 5])
def test_few_pairs_know_what_is_out_of_range(base, number, tmp_path):
    """Also after a file; 200 usual observations are not named."""
    light = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    with seeded(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        theta = PRIOR.sample((number,))
        posterior = FMCPE(base, simulate, recipe=light).fit(theta, observe(theta), seed=0, show_progress_bars=False)
        y = observe(PRIOR.sample((200,)))
    far = y[:20] + 1000.0
    assert int(posterior.check(y).out_of_range.sum()) <= 2
    assert bool(posterior.check(far).out_of_range.all())
    with pytest.warns(FMCPEWarning, match="20 of 20 that are not"):
        posterior.sample_batched((5,), x=far, show_progress_bars=False)
    again = fmcpe.load(posterior.save(tmp_path / "few.fmcpe"))
    torch.testing.assert_close(again.check(far).pairs, posterior.check(far).pairs)


REAL = {
    "gain and offset": observe,
    "saturation": lambda theta: 2 * torch.tanh(simulate(theta) / 2),
    "heavy tails": lambda theta: simulate(theta) + 0.3 * torch.randn(len(theta), 3) / torch.rand(len(theta), 1).sqrt(),
}


@pytest.mark.parametrize("name", REAL)
def test_along_a_ray_the_answer_does_not_become_sharper(base, name):
    """Of 20 observations moved by 1 to 1000 deviations in random directions, those with p < 0.001 have answers as broad, in
    each parameter, as the broadest at a pair (or as the prior), up to Monte-Carlo error; physical and unconstrained.
    """
    light = Stack(
        [candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood()], folds=2, repeats=1
    )
    with seeded(3), warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        theta = PRIOR.sample((30,))
        y, real = REAL[name](theta), REAL[name](PRIOR.sample((20,)))
        posterior = FMCPE(base, simulate, recipe=light).fit(theta, y, seed=0, show_progress_bars=False)
        direction = torch.nn.functional.normalize(torch.randn(real.shape), dim=1) * y.std(0) * y.shape[1] ** 0.5
        moved = torch.cat([real + distance * direction for distance in (1.0, 3.0, 6.0, 10.0, 30.0, 1000.0)])
        moved = moved[posterior.check(moved).out_of_range]
        draws = posterior.sample_batched((400,), x=moved, seed=0, show_progress_bars=False)
        inside = posterior.sample_batched((400,), x=real, seed=0, show_progress_bars=False)
    inner = posterior.inner
    assert len(moved) >= 20
    out, usual = (
        inner._variances(posterior.space.to_z_safely(each.flatten(0, 1)).reshape(each.shape).movedim(0, 1)).sqrt()
        for each in (draws, inside)
    )
    least = torch.minimum(torch.tensor(inner.broadest).to(out), inner.prior_variance).sqrt()
    assert bool((out >= 0.8 * least).all())  # without λ_v: 0.43 to 0.71
    # and than usual answers to other observations: the median of each parameter
    assert bool((out >= 0.9 * torch.minimum(usual.quantile(0.5, dim=0), inner.prior_variance.sqrt())).all())


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
