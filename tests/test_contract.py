"""One suite that every posterior of the library passes: shapes, types, seeds, sbi's tools, files, errors."""

import matplotlib
import numpy as np
import pytest
import torch
from conftest import KINDS, PRIOR, observe
from sbi.analysis import pairplot
from sbi.diagnostics import run_sbc, run_tarp
from sbi.diagnostics.lc2st import LC2ST
from sbi.inference.posteriors.base_posterior import NeuralPosterior

import fmcpe

matplotlib.use("Agg")

Y = torch.tensor([[1.0, 0.5, 1.2], [0.2, 1.5, -0.4], [-0.5, 1.0, 0.3], [2.0, 2.0, 1.0]])


@pytest.fixture(params=KINDS)
def posterior(request, posteriors):
    return posteriors(request.param)


def test_it_is_an_sbi_posterior(posterior):
    assert isinstance(posterior, NeuralPosterior)


@pytest.mark.parametrize("shape", [(), 5, (1,), (3, 4), [3, 4], torch.Size((2, 1, 3)), (0,)])
def test_shapes(posterior, shape):
    expected = torch.Size((shape,) if isinstance(shape, int) else shape)
    for one in (Y[0], Y[:1]):
        assert posterior.sample(shape, x=one).shape == (*expected, 2)
    assert posterior.sample_batched(shape, x=Y).shape == (*expected, 4, 2)


def test_log_prob_shapes(posterior):
    theta = PRIOR.sample((7,))
    assert posterior.log_prob(theta, x=Y[0]).shape == (7,)
    assert posterior.log_prob(theta[0], x=Y[0]).shape == (1,)
    assert posterior.log_prob_batched(PRIOR.sample((5, 4)), x=Y).shape == (5, 4)
    batched = posterior.log_prob_batched(theta[:4], x=Y)
    assert batched.shape == (1, 4)
    single = posterior.log_prob(theta[2], x=Y[2])
    if posterior.method == "RoPE":  # transductive: an observation alone and in a batch are two questions
        batched = posterior.log_prob_batched(theta[2:3], x=Y[2:3]).expand(1, 4)
    assert torch.allclose(batched[0, 2], single[0], atol=1e-4)


def test_each_observation_gets_its_own_draws(posterior):
    """Rows of a batch are in the order of the observations, also when a batch is cut into chunks."""
    far = torch.tensor([[-1.5, 0.4, -1.4], [2.0, 3.0, 2.5]])
    whole = posterior.sample_batched((400,), x=far, seed=0)
    cut = posterior.sample_batched((400,), x=far, seed=0, max_sampling_batch_size=37)
    for draws in (whole, cut):
        for b in range(2):
            alone = posterior.sample((400,), x=far[b], seed=1)
            assert torch.allclose(draws[:, b].mean(0), alone.mean(0), atol=0.25)


def test_numpy_and_float64_are_fine(posterior):
    y = Y.numpy().astype(np.float64)
    draws = posterior.sample((10,), x=y[0], seed=3)
    assert draws.dtype == torch.float32
    assert torch.equal(draws, posterior.sample((10,), x=Y[0], seed=3))
    assert posterior.sample_batched((2,), x=y).shape == (2, 4, 2)
    assert posterior.log_prob(draws.double().numpy(), x=y[0]).dtype == torch.float32


def test_seeded_draws_repeat_and_leave_the_generators_alone(posterior):
    torch.manual_seed(7)
    np.random.seed(7)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = posterior.sample((20,), x=Y[0], seed=5)
    second = posterior.sample((20,), x=Y[0], seed=5)
    other = posterior.sample((20,), x=Y[0], seed=6)
    log_prob = posterior.log_prob(first, x=Y[0])
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(log_prob, posterior.log_prob(first, x=Y[0]))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])


def test_unseeded_draws_follow_torch(posterior):
    torch.manual_seed(3)
    first = posterior.sample((5,), x=Y[0])
    assert not torch.equal(first, posterior.sample((5,), x=Y[0]))
    torch.manual_seed(3)
    assert torch.equal(first, posterior.sample((5,), x=Y[0]))


def test_draws_lie_inside_the_prior(posterior):
    wild = torch.randn(50, 3) * 100
    draws = posterior.sample_batched((40,), x=wild, seed=0)
    assert bool(PRIOR.support.check(draws).all())
    assert bool(torch.isfinite(draws).all())


def test_log_prob_is_minus_infinity_outside(posterior):
    theta = torch.tensor([[0.0, 0.5], [0.0, 1.5], [-2.5, 0.5]])
    log_prob = posterior.log_prob(theta, x=Y[0])
    assert bool(torch.isfinite(log_prob[0]))
    assert bool(torch.isneginf(log_prob[1:]).all())


def test_default_x_potential_and_map(posterior):
    posterior.set_default_x(Y[0])
    try:
        draws = posterior.sample((300,), seed=0)
        assert torch.equal(draws, posterior.sample((300,), x=Y[0], seed=0))
        assert torch.allclose(posterior.potential(draws[:5]), posterior.log_prob(draws[:5]), atol=1e-4)
        best = posterior.map()
        assert best.shape == (1, 2)
        assert bool(PRIOR.support.check(best).all())
        assert float(posterior.log_prob(best)) >= float(posterior.log_prob(draws).max()) - 0.05
    finally:
        posterior._x = None


def test_gradients_flow_to_theta(posterior):
    theta = posterior.sample((20,), x=Y[0], seed=0).clamp(torch.tensor([-1.9, 0.05]), torch.tensor([1.9, 0.95]))
    theta.requires_grad_()
    posterior.log_prob(theta, x=Y[0], track_gradients=True).sum().backward()
    step = torch.tensor([5e-3, 0.0])
    with torch.no_grad():
        ahead, behind = (posterior.log_prob(theta + s * step, x=Y[0]) for s in (1, -1))
    slope = (ahead - behind) / 1e-2
    error = (slope - theta.grad[:, 0]).abs() / (1 + slope.abs())
    assert float(error.median()) < 0.05  # splines have kinks, which a difference may straddle


def test_sbi_diagnostics_take_it(posterior):
    torch.manual_seed(0)
    theta = PRIOR.sample((100,))
    y = observe(theta)
    ranks, dap = run_sbc(theta, y, posterior, num_posterior_samples=100, show_progress_bar=False)
    assert ranks.shape == (100, 2)
    assert dap.shape == (100, 2)
    ecp, alpha = run_tarp(theta, y, posterior, num_posterior_samples=100, show_progress_bar=False)
    assert ecp.shape == alpha.shape
    one_each = posterior.sample_batched((1,), x=y, show_progress_bars=False)[0]
    test = LC2ST(theta, y, one_each, num_folds=1, num_trials_null=2, classifier="mlp", permutation=True)
    test.train_under_null_hypothesis(verbosity=0)
    test.train_on_observed_data(verbosity=0)
    p_value = test.p_value(posterior.sample((100,), x=y[0]), y[:1])
    assert 0 <= p_value <= 1


def test_sbi_coverage_by_density_takes_it(posterior):
    torch.manual_seed(0)
    theta = PRIOR.sample((3,))

    def density(theta, x):
        return posterior.log_prob(theta, x)

    ranks, _ = run_sbc(
        theta, observe(theta), posterior, 20, reduce_fns=density, show_progress_bar=False, use_batched_sampling=False
    )
    assert ranks.shape == (3, 1)


def test_pairplot_takes_it(posterior):
    figure, _ = pairplot(posterior.sample((50,), x=Y[0]))
    matplotlib.pyplot.close(figure)


def test_saved_and_loaded_draws_are_equal(posterior, tmp_path):
    path = posterior.save(tmp_path / "run.fmcpe")
    loaded = fmcpe.load(path)
    assert torch.equal(loaded.sample((50,), x=Y[0], seed=1), posterior.sample((50,), x=Y[0], seed=1))
    theta = PRIOR.sample((5,))
    assert torch.allclose(loaded.log_prob(theta, x=Y[0]), posterior.log_prob(theta, x=Y[0]), atol=1e-5)
    assert loaded.summary() == posterior.summary()


def test_summary_and_repr_are_readable(posterior):
    assert "calibration pairs" in posterior.summary()
    assert repr(posterior).startswith("CorrectedPosterior(")
    assert posterior.summary().startswith(str(posterior)) and "calibration pairs" in str(posterior)


WRONG = {
    "nan": torch.tensor([1.0, float("nan"), 0.0]),
    "infinite": torch.tensor([1.0, float("inf"), 0.0]),
    "short": torch.zeros(2),
    "batch": torch.zeros(4, 3),
    "words": "three numbers",
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_observations_are_refused(posterior, case):
    with pytest.raises((ValueError, TypeError), match=r"(?i)expected"):
        posterior.sample((3,), x=WRONG[case])
    with pytest.raises((ValueError, TypeError), match=r"(?i)expected"):
        posterior.log_prob(torch.zeros(1, 2), x=WRONG[case])
    with pytest.raises((ValueError, TypeError), match=r"(?i)expected"):
        posterior.set_default_x(WRONG[case])
    if case != "batch":
        with pytest.raises((ValueError, TypeError), match=r"(?i)expected"):
            posterior.sample_batched((3,), x=WRONG[case])


def test_other_wrong_input_is_refused(posterior):
    with pytest.raises(ValueError, match="set_default_x"):
        posterior.sample((3,))
    with pytest.raises(ValueError, match="negative"):
        posterior.sample((-1,), x=Y[0])
    with pytest.raises(TypeError, match="shape"):
        posterior.sample("many", x=Y[0])
    with pytest.raises(ValueError, match=r"(?i)expected"):
        posterior.log_prob(torch.zeros(5, 3), x=Y[0])
    with pytest.raises(ValueError, match="NaN"):
        posterior.log_prob(torch.tensor([[0.0, float("nan")]]), x=Y[0])
    with pytest.raises(ValueError, match=r"(?i)expected"):
        posterior.log_prob_batched(torch.zeros(5, 3, 2), x=Y)
