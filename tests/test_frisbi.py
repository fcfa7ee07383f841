"""FRISBI: RoPE's answer for one observation at a time."""

import math

import pytest
import torch
from test_rope import exact_base
from torch import nn

import fmcpe
from fmcpe import baselines, tasks
from fmcpe.baselines.semi_balanced import relative_costs, semi_balanced_rows

QUIET = {"seed": 0, "show_progress_bars": False}


@pytest.fixture(scope="module")
def well_specified():
    """The setting of RoPE's tests: the offset task without an offset."""
    task = tasks.get("offset", lam=0.0)
    base, slope, std = exact_base(task)
    return task, base, slope, std, task.calibration_set(50, 0), task.test_set(200, 0)[1]


def energy_score(draws, theta):
    """Mean over observations, of draws (n, B, 1)."""
    half = len(draws) // 2
    near, spread = (draws - theta).abs().mean(), (draws[:half] - draws[half : 2 * half]).abs().mean()
    return float(near - 0.5 * spread)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_frisbi_approaches_ropes_answer(seed):
    """The potentials come from other real observations than those that are asked about."""
    task = tasks.get("offset", lam=0.0)
    base, _, std = exact_base(task)
    pairs, (theta, y) = task.calibration_set(50, seed), task.test_set(400, seed)
    torch.manual_seed(seed)
    unlabelled = task.calibration_set(400, 10 + seed)[1]
    options = {"gamma": 0.02, "rho": 1.0, "num_simulations": 2000}
    fit = {"seed": seed, "show_progress_bars": False}
    batch = baselines.RoPE(base, task.simulator, **options).fit(*pairs, **fit)
    alone = baselines.FRISBI(base, task.simulator, **options).fit(*pairs, y_unlabelled=unlabelled, **fit)
    draws = [p.sample_batched((400,), x=y, seed=0, show_progress_bars=False) for p in (batch, alone)]
    # 50 pairs determine the affine map of FRISBI to 0.3 √(2 / 50) = 0.06 of the 0.29 that a posterior is wide: 0.2; two
    # samples of 450 observations shift quantiles by another √(1 / 450) of the prior's deviation: 0.16
    assert float((draws[0].mean(0) - draws[1].mean(0)).abs().mean()) < 0.4 * std
    assert float(draws[1].std(0).mean() / draws[0].std(0).mean()) == pytest.approx(1.0, abs=0.1)
    assert energy_score(draws[1], theta) == pytest.approx(energy_score(draws[0], theta), rel=0.1)


def test_the_answer_for_one_does_not_depend_on_the_batch(well_specified):
    task, base, *_, pairs, y = well_specified
    posterior = baselines.FRISBI(base, task.simulator, num_simulations=300).fit(*pairs, **QUIET)
    inner = posterior.inner
    assert not inner.transductive
    assert torch.allclose(inner.plan(y)[:1], inner.plan(y[:1]), atol=1e-6)
    grid = torch.linspace(-6, 6, 1201)[:, None]
    density = posterior.log_prob(grid, x=y[0])
    assert float(density.exp().sum() * 0.01) == pytest.approx(1.0, abs=1e-3)
    batched = posterior.log_prob_batched(grid[:, None].expand(-1, 3, -1), x=y[:3])[:, 0]
    assert torch.allclose(batched, density, atol=1e-4)


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_weights_of_observations_of_the_fit_are_rows_of_ropes_plan(well_specified, rho):
    task, base, *_, pairs, y = well_specified
    posterior = baselines.FRISBI(base, task.simulator, rho=rho, num_simulations=300).fit(
        *pairs, y_unlabelled=y, **QUIET
    )
    inner, real = posterior.inner, torch.cat([pairs[1], y])
    unit = 2 * float(inner.features.var(0).sum())
    plan = semi_balanced_rows(relative_costs(inner.g(real), inner.features), 0.05 * unit, rho * unit)
    assert torch.allclose(inner.plan(real), plan, atol=1e-6)
    assert bool((inner.potentials == 0).all()) == (rho == 0)


@pytest.mark.parametrize("embedded", [False, True])
def test_frisbi_learns_the_offset(embedded):
    """The bias of the base posterior, 0.92 λ, goes: by fine-tuning, or by the ridge regression without an embedding."""
    task = tasks.get("offset")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 2)) if embedded else None
    base = fmcpe.train_npe(task.simulator, task.prior, 4000, net, max_num_epochs=6, **QUIET)
    before = [weight.clone() for weight in base.posterior_estimator.parameters()]
    theta, y = task.test_set(300, 0)
    method = baselines.FRISBI(base, task.simulator, gamma=0.002, rho=0.0, num_simulations=2000)
    posterior = method.fit(*task.calibration_set(100, 0), **QUIET)
    draws = posterior.sample_batched((50,), x=y, seed=0, show_progress_bars=False)
    # the offset is known from 80 pairs to 0.3 / √80 = 0.03, and the test set's own mean to 0.3 / √300 = 0.02
    assert abs(float((draws.mean(0) - theta).mean())) < 0.15
    assert all(torch.equal(a, b) for a, b in zip(before, base.posterior_estimator.parameters(), strict=True))


def test_the_transport_term_moves_unlabelled_observations_to_the_simulations():
    """The pairs say nothing of observations that far away; their transport does."""
    task = tasks.get("offset", lam=0.0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))
    base = fmcpe.train_npe(task.simulator, task.prior, 2000, net, max_num_epochs=4, domain_randomisation=False, **QUIET)
    pairs, shifted = task.calibration_set(40, 0), task.test_set(300, 0)[1] + 6.0
    cost = {}
    for alignment in (0.0, 1.0):
        method = baselines.FRISBI(base, task.simulator, alignment=alignment, num_simulations=500)
        inner = method.fit(*pairs, y_unlabelled=shifted, **QUIET).inner
        cost[alignment] = float(torch.cdist(inner.g(shifted), inner.features).amin(1).mean())
    assert cost[1.0] < cost[0.0]


def test_frisbi_says_what_it_needs(well_specified, base_with_embedding, pairs):
    task, base, *_, calibration, y = well_specified
    method = baselines.FRISBI(base, task.simulator, num_simulations=100)
    with pytest.raises(ValueError, match=r"^Expected y_unlabelled of shape \(M, 1\).+got \(200, 2\)\. Pass one row"):
        method.fit(*calibration, y_unlabelled=torch.zeros(200, 2), **QUIET)
    with pytest.raises(ValueError, match=r"^Expected finite numbers in y_unlabelled"):
        method.fit(*calibration, y_unlabelled=torch.full((5, 1), math.nan), **QUIET)
    theta = task.prior.sample((300,))
    given = baselines.FRISBI(base, simulations=(theta, task.simulator(theta)))
    with pytest.raises(
        ValueError, match=r"Call FRISBI\(posterior, simulator\), or fit\(theta, y, x=simulations_at_theta\)"
    ):
        given.fit(*calibration, **QUIET)
    # the third argument is x, as of RoPE and FMCPE
    assert given.fit(*calibration, task.simulator(calibration[0]), **QUIET).sample((5,), x=y[0]).shape == (5, 1)


@pytest.mark.parametrize("option", [{"gamma": 0.0}, {"rho": -1.0}, {"num_targets": 0}, {"alignment": -1.0}])
def test_frisbi_refuses_settings_that_make_no_sense(well_specified, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"^Expected .+, got ({name}=)?{value}\. Try {name}="):
        baselines.FRISBI(well_specified[1], **option)
