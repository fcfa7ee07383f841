"""Swapped rows, by the evidence of a conjugate regression: exact gains, valid p-values, and what is found."""

import math

import pytest
import torch

from fmcpe.swaps import Swaps, _Regression, swap_gains


def data(seed, number=30, noise=0.5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 2, generator=generator, dtype=torch.float64)
    t = x @ torch.randn(2, 4, generator=generator, dtype=torch.float64)
    return x, t + noise * torch.randn(t.shape, generator=generator, dtype=torch.float64)


def test_the_evidence_is_that_of_a_matrix_normal_regression():
    """Against the density of all data for a known covariance, integrated over its inverse-Wishart prior, one column of T."""
    x, t = data(0, 6)
    t = t[:, :1]
    found = [_Regression.of(x, t, penalty) for penalty in (0.3, 3.0)]
    exact = []
    for penalty in (0.3, 3.0):
        design = torch.cat([torch.ones(6, 1, dtype=t.dtype), x], dim=1)
        prior = torch.tensor([1e6, 1 / penalty, 1 / penalty], dtype=t.dtype)
        # t ~ multivariate Student t with ν_0 = d + 2 = 3 degrees of freedom and scale Ψ_0/ν_0 (1 + X P⁻¹ Xᵀ)
        scale = found[0].start[0, 0] / 3 * (torch.eye(6, dtype=t.dtype) + design * prior @ design.T)
        square = float(t[:, 0] @ torch.linalg.solve(scale, t[:, 0]))
        exact.append(-0.5 * float(torch.logdet(scale)) - 0.5 * (3 + 6) * math.log(1 + square / 3))
    assert found[1].evidence - found[0].evidence == pytest.approx(exact[1] - exact[0], abs=1e-6)


def test_gains_are_those_of_fits_with_swapped_rows():
    x, t = data(1, 12)
    now = _Regression.of(x, t, 0.1, 0.1)
    gains = now.gains(1000)
    ratios, near = [], torch.pdist(x).argsort()[:3]  # which leave usual residuals behind
    for i, j in torch.triu_indices(12, 12, 1)[:, near].T.tolist():
        rows = torch.arange(12)
        rows[[i, j]] = rows[[j, i]]
        ratios.append(float(gains[i, j]) / (_Regression.of(x[rows], t, 0.1, 0.1).evidence - now.evidence))
        assert float(gains[i, j]) == float(gains[j, i])
    assert (
        ratios == pytest.approx([ratios[0]] * 3) and 0 < ratios[0] <= 1 + 1e-9
    )  # one over the square of the robust scale


def test_swapped_rows_are_found_and_right_rows_are_not():
    """Rows apart by at least one standard deviation, 60 data sets of 30 rows; right rows have valid p-values."""
    right = alarms = 0
    for seed in range(60):
        x, t = data(seed)
        clean = Swaps.of(swap_gains([x], t))
        alarms += bool(clean.p.min() < 0.05 / 30)
        j = int((x - x[0]).norm(dim=1).argmax())
        x[[0, j]] = x[[j, 0]]
        found = Swaps.of(swap_gains([x], t))
        right += int(found.p.argmin()) in (0, j) and int(found.partner[0]) == j and float(found.p[0]) < 0.05 / 30
    assert right >= 54 and alarms <= 8  # a family-wise level of 5 %: 8 of 60 or more have a probability of 1 %


def test_only_probable_swaps_are_looked_at():
    x, t = data(3)
    some, everything = (swap_gains([x], t, most) for most in (20, 435))
    looked_at = some > -torch.inf
    assert int(looked_at.sum()) == 40 and torch.equal(some[looked_at], everything[looked_at])


def test_noise_that_depends_on_theta_is_rarely_called_a_swap():
    """200 right rows whose noise grows thirtyfold, 20 data sets: fewer than 25 of 4000 are named."""
    alarms = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
        noise = 0.3 * torch.exp(0.7 * x[:, :1]) * torch.randn(200, 8, generator=generator, dtype=torch.float64)
        t = x @ torch.randn(2, 8, generator=generator, dtype=torch.float64) + noise
        alarms += int((Swaps.of(swap_gains([x], t)).p < 0.05 / 200).sum())
    assert alarms < 25
