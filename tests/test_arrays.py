"""Input that labs have, and input that must not be misread; the caller's arrays and the library's stay apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PRIOR, observe, simulate
from sbi.utils import BoxUniform
from torch import nn

from fmcpe import FMCPE, FMCPEWarning, Stack, as_base_posterior, candidates, load, train_npe
from fmcpe._arrays import LOSS
from fmcpe._checks import as_observation, as_pairs, as_tensor
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior as adapted
from fmcpe.baselines import NPE
from fmcpe.diagnostics.label_shift import _evaluated

FIT = {"seed": 0, "show_progress_bars": False}
LIGHT = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)


def rough(x):
    return torch.stack([x[:, 0], x[:, 1] / 4], dim=1) + 0.2 * torch.randn(len(x), 2)


# ------------------------------------------------------------------ functions that edit their argument


def greedy(theta):
    """The same as `simulate`, but it scribbles over its argument."""
    x, a = simulate(theta.clone()), theta.numpy()
    a *= 10
    return x


def test_a_simulator_that_edits_its_argument_changes_nothing(pairs):
    short = {"seed": 0, "max_num_epochs": 2, "show_progress_bars": False}
    trained = [train_npe(each, PRIOR, 1000, **short) for each in (simulate, greedy)]
    assert all(torch.equal(a, b) for a, b in zip(*(t.posterior_estimator.parameters() for t in trained), strict=True))


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_a_fit_with_functions_that_edit_their_arguments_has_the_same_bits(pairs):
    def scribbling(x):
        theta = rough(x)
        x.fill_(7)
        return theta

    theta, y = (each.numpy().copy() for each in pairs)
    kept = theta.copy(), y.copy()
    draws = [
        FMCPE(as_base_posterior(draw, prior=PRIOR), simulator, recipe=LIGHT).fit(theta, y, **FIT)
        for draw, simulator in ((rough, simulate), (scribbling, greedy))
    ]
    one, other = (each.sample((50,), x=y[0], **FIT) for each in draws)
    assert torch.equal(one, other)
    assert np.array_equal(theta, kept[0]) and np.array_equal(y, kept[1])
    y[:] = 1e6  # the posterior does not look at the caller's array again
    assert torch.equal(one, draws[0].sample((50,), x=kept[1][0], **FIT))


def test_a_simulator_may_return_the_same_buffer_again_and_again():
    buffer = torch.zeros(2, 1)

    def reusing(theta):
        buffer.copy_(theta)
        return buffer

    theta = torch.arange(6.0)[:, None]
    assert torch.equal(CheckedSimulator(reusing, None, batch_size=2)(theta), theta)


def test_an_embedding_that_works_in_place_does_not_change_the_data(base_with_embedding):
    base = adapted(base_with_embedding)
    net = base.estimator.embedding_net
    base.estimator._embedding_net = nn.Sequential(nn.ReLU(inplace=True), net)
    try:
        y = torch.full((4, 3), -1.0)
        base.summarised().summarise(y)
        base.sample(y, 3)
    finally:
        base.estimator._embedding_net = net
    assert torch.equal(y, torch.full((4, 3), -1.0))


# ------------------------------------------------------------------ what labs have


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


VARIANTS = {
    "float64": lambda a: a.astype(np.float64),
    "longdouble": lambda a: a.astype(np.longdouble),
    "big-endian": lambda a: a.astype(">f4"),
    "big-endian double": lambda a: a.astype(">f8"),
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "fortran": np.asfortranarray,
    "read-only": _read_only,
    "no value masked": lambda a: np.ma.masked_array(a, mask=np.zeros(a.shape, bool)),
    "objects": lambda a: a.astype(object),
    "list": lambda a: a.tolist(),
    "pandas": lambda a: pytest.importorskip("pandas").DataFrame(a),
    "xarray": lambda a: pytest.importorskip("xarray").DataArray(a),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_labs_have_is_read_as_it_is(name, recwarn):
    plain = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    given = VARIANTS[name](plain)
    found = as_tensor(given, "y")
    assert found.dtype == torch.float32 and np.array_equal(found.numpy(), plain)
    assert not recwarn.list
    found.fill_(0)
    assert np.array_equal(np.asarray(given, dtype=np.float32), plain)


def test_fits_and_nan_under_the_mask():
    """Whole numbers of FITS images are big-endian; masked values of a simulator are rows that failed."""
    assert as_tensor(np.arange(4, dtype=">i2"), "y").tolist() == [0, 1, 2, 3]
    x = np.ma.masked_array(np.ones((3, 2)), mask=[[0, 0], [0, 1], [0, 0]])
    assert CheckedSimulator(lambda _: x, None, 0.5).attempt(torch.zeros(3, 1))[1].tolist() == [True, False, True]


# ------------------------------------------------------------------ what must not be misread

MASKED = np.ma.masked_array(np.ones((6, 3)), mask=np.eye(6, 3, dtype=bool))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (MASKED, r"masked array with 3 masked value\(s\) of 18. Leave those rows out"),
        ([*MASKED], "masked array with 3 masked"),
        (np.ones((6, 3)) + 1j, "complex numbers. Pass real and imaginary parts side by side"),
        (torch.ones(6, 3, dtype=torch.complex64), "complex numbers"),
        ((np.ones((6, 3)) + 1j).astype(object), "complex numbers"),
    ],
)
def test_masked_values_and_complex_numbers_are_refused(value, message):
    with pytest.raises(ValueError, match=f"Expected real numbers in y, got .*{message}"):
        as_tensor(value, "y")


def test_complex_simulations_and_draws_are_refused():
    with pytest.raises(ValueError, match="real numbers from the simulator, got complex"):
        CheckedSimulator(lambda t: torch.complex(t, t), None)(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="real numbers from the base posterior, got complex"):
        as_base_posterior(lambda x: torch.complex(x, x)[:, :2], prior=PRIOR).sample(torch.zeros(3, 3), 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([["1.0", 2.0]], dtype=object), "real numbers in y, got text"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "real numbers in y, got a nested tensor"),
        (torch.ones(3, 2, device="meta"), "real numbers in y, got a meta tensor"),
        (np.full((6, 2), 1e300), r"single precision holds .*got 1e\+300, in row\(s\) 0, 1.*Choose a larger unit"),
        (np.random.default_rng(0).normal(size=(6, 2)) * 1e-60, "too small for single precision.*Choose a smaller unit"),
    ],
)
def test_what_single_precision_or_a_plain_tensor_cannot_hold_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        as_tensor(value, "y", rows=5)


def test_sparse_tensors_are_read_as_they_are():
    assert torch.equal(as_tensor(torch.eye(3).to_sparse(), "y"), torch.eye(3))


# ------------------------------------------------------------------ what functions of users return


def one_per_row(theta, x):
    return torch.distributions.Normal(x[:, :2], 1.0).log_prob(theta).sum(1)


WRONG_DENSITIES = {
    "not a number": (lambda t, x: torch.full((len(t),), torch.nan), ValueError, r"NaN or \+inf for 4 of 4 rows"),
    "infinite": (lambda t, x: torch.full((len(t),), torch.inf), ValueError, r"NaN or \+inf for 4 of 4 rows"),
    "masked": (lambda t, x: np.ma.masked_all(len(t)), ValueError, r"NaN or \+inf for 4 of 4 rows"),
    "complex": (lambda t, x: torch.complex(t, t)[:, 0], ValueError, "real numbers from log_prob .*got complex"),
    "each parameter": (lambda t, x: 0 * t, ValueError, r"one log density per row of theta, \(4,\), got \(4, 2\).*Sum"),
    "text": (lambda t, x: "a", TypeError, "return a tensor or array of numbers, got a str"),
}


@pytest.mark.parametrize("name", WRONG_DENSITIES)
def test_a_density_that_is_none_is_refused(name):
    function, kind, message = WRONG_DENSITIES[name]
    theta, x = PRIOR.sample((4,)), torch.zeros(1, 3)
    with pytest.raises(kind, match=f"Expected .*{message}"):
        as_base_posterior(lambda x: x[:, :2], PRIOR, function)._log_density(theta[None], x)


def test_a_density_of_a_function_may_be_an_array_and_keeps_gradients():
    theta, x = PRIOR.sample((4,)).requires_grad_(), torch.zeros(1, 3)
    plain = as_base_posterior(lambda x: x[:, :2], PRIOR, one_per_row)._log_density(theta[None], x)
    plain.sum().backward()
    assert torch.allclose(theta.grad, -theta.detach())
    with torch.no_grad():
        array = as_base_posterior(lambda x: x[:, :2], PRIOR, lambda t, x: one_per_row(t, x).numpy().astype(">f8"))
        assert torch.equal(array._log_density(theta[None], x), plain.detach())


def test_a_density_that_edits_its_arguments_changes_nothing():
    def scribbling(theta, x):
        found = one_per_row(theta.clone(), x.clone())
        theta.fill_(7), x.fill_(7)
        return found

    theta, x = PRIOR.sample((4,)), torch.zeros(1, 3)
    kept = theta.clone()
    found = as_base_posterior(lambda x: x[:, :2], PRIOR, scribbling)._log_density(theta[None], x)
    assert torch.equal(theta, kept) and torch.equal(x, torch.zeros(1, 3))
    assert torch.allclose(found[0], one_per_row(theta, x.expand(4, -1)))


def test_a_draw_of_a_base_posterior_that_is_no_number_is_refused():
    with pytest.raises(
        TypeError, match="Expected the base posterior to return a tensor or array of numbers, got a str"
    ):
        as_base_posterior(lambda x: "a", PRIOR).sample(torch.zeros(2, 3), 1)


def test_ratios_of_densities_are_computed_on_a_copy_and_are_real():
    def scribbling(theta):
        theta.mul_(0)
        return np.ones(len(theta), dtype=">f8")

    theta = PRIOR.sample((5,))
    kept = theta.clone()
    assert torch.equal(_evaluated(scribbling, theta), torch.ones(5, dtype=torch.float64)) and torch.equal(theta, kept)
    with pytest.raises(ValueError, match=r"real numbers in weights\(theta\), got complex"):
        _evaluated(lambda t: torch.complex(t, t)[:, 0], theta)


def test_the_uncorrected_posterior_reads_tables(pairs):
    pandas = pytest.importorskip("pandas")
    posterior = NPE(as_base_posterior(rough, PRIOR)).fit(y=pandas.DataFrame(pairs[1].numpy()))
    assert posterior.observation_shape == (3,)


def test_a_large_offset_is_refused_where_single_precision_rounds_it_away(pairs):
    theta, y = pairs[0], observe(pairs[0]).double()
    for offset, spread in ((1e7, 1.0), (1e9, 100.0)):
        shifted = offset + spread * y
        with pytest.raises(
            ValueError, match=r"real numbers in y, got 3 of 3 column\(s\) with a large offset: .*Subtract"
        ):
            as_pairs(theta, shifted, None, PRIOR, None)
        with pytest.raises(ValueError, match=r"from the simulator, got .*large offset"):
            CheckedSimulator(lambda _, x=shifted: x, None)(theta)
        with pytest.raises(ValueError, match=r"real numbers in x, got .*large offset"):
            train_npe(None, PRIOR, simulations=(theta, shifted.numpy()), **FIT)
        assert torch.allclose(as_pairs(theta, shifted - offset, None, PRIOR, None)[1], (spread * y).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_prior_that_single_precision_cannot_resolve_is_refused(dtype):
    """It would give two values of θ, inside the support and finite."""
    ends = torch.tensor([[1e9, 0.0], [1e9 + 128, 1.0]], dtype=dtype)
    prior = BoxUniform(*ends)
    for run in (
        lambda: FMCPE(as_base_posterior(rough, prior), simulate),
        lambda: train_npe(lambda theta: theta, prior, 500, **FIT),
    ):
        with pytest.raises(
            ValueError, match=r"single precision resolves, got parameter 0 with mean 1.0.*e\+09.*Subtract"
        ):
            run()
    FMCPE(as_base_posterior(rough, BoxUniform(*(1e-3 * ends - torch.tensor([1e6, 0.0], dtype=dtype)))), simulate)


def test_what_is_accepted_loses_less_than_the_stated_share():
    """Offsets of any size, in steps of two: either refused, or the rounding is below the share. Constants are fine."""
    noise, accepted = np.random.default_rng(0).normal(size=(200, 1)), []
    for power in range(0, 40, 2):
        data = 2.0**power * 1.37 + noise
        try:
            found = as_tensor(data, "y", rows=5).double().numpy()
        except ValueError:
            continue
        accepted.append(power)
        assert (found - data).std() < LOSS * noise.std()
    assert accepted == list(range(0, max(accepted) + 1, 2)) and 12 < max(accepted) < 22
    assert as_tensor(np.full((50, 2), 101325.1), "y", rows=5).shape == (50, 2)
    assert as_observation(np.array([1e7 + 1, 1e7, 1e7]), torch.Size((3,))).shape == (1, 3)


def test_a_base_posterior_of_nan_is_an_error_and_a_few_are_prior_draws():
    x = torch.randn(40, 3)
    with pytest.raises(ValueError, match=r"numbers from the base posterior, got NaN for 400 of 400 draws"):
        as_base_posterior(lambda x: torch.full((len(x), 2), torch.nan), prior=PRIOR).sample(x, 10)

    def mostly(x):
        theta = 0.5 + 0 * x[:, :2]
        theta[x[:, 0] > 1.5] = torch.nan
        return theta

    bad = x[:, 0] > 1.5
    assert 0 < int(bad.sum()) < 20
    with pytest.warns(FMCPEWarning, match="draws of the prior replace them"):
        theta = as_base_posterior(mostly, prior=PRIOR).sample(x, 500)
    assert torch.equal(theta[~bad], torch.full_like(theta[~bad], 0.5))
    assert torch.allclose(theta[bad].mean((0, 1)), torch.tensor([0.0, 0.5]), atol=0.2)
    assert torch.allclose(theta[bad].std(1).mean(0), torch.tensor([4.0, 1.0]) / 12**0.5, rtol=0.15)


def test_a_base_posterior_that_returns_only_infinite_values_is_said():
    endless = as_base_posterior(lambda x: torch.full((len(x), 2), torch.inf), prior=PRIOR)
    with pytest.warns(FMCPEWarning, match=r"infinite ones in 40 of 40 cases, .* moved to the edge of the prior"):
        assert torch.equal(endless.sample(torch.zeros(4, 3), 10), torch.tensor([2.0, 1.0]).expand(4, 10, 2))


def test_answers_may_be_edited():
    posterior = load(Path(__file__).parent / "files" / "format-7.fmcpe")
    before = dict(posterior.weights)
    posterior.weights.clear()
    assert posterior.weights == before
