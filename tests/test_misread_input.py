"""Input that would be misread, or that no fit can use: columns in another order, priors, weights, seeds and counts."""

import random

import numpy as np
import pytest
import torch
from conftest import PRIOR, observe, simulate
from sbi.utils import BoxUniform

from fmcpe import FMCPE, Stack, as_base_posterior, baselines, candidates, train_npe
from fmcpe import simulate as simulate_all
from fmcpe._checks import as_pairs, as_theta
from fmcpe._random import derive
from fmcpe.diagnostics import CVPlus, learning_curve
from fmcpe.diagnostics.cv_plus import fit_with_cv_plus

pandas = pytest.importorskip("pandas")
SHIFT = Stack([candidates.ResidualShift()], folds=2, repeats=1)
LIGHT = Stack([candidates.Prior(), candidates.Uncorrected()], folds=2, repeats=1)
FIT = {"seed": 0, "show_progress_bars": False}
pytestmark = pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")


def rough(x):
    return torch.stack([x[:, 0], x[:, 1] / 4], dim=1) + 0.2 * torch.randn(len(x), 2)


BASE = as_base_posterior(rough, prior=PRIOR)


@pytest.fixture(scope="module")
def frames(pairs):
    """Measurements with named columns, and simulations with the same columns in two orders."""
    theta, y = pairs
    y, x = (pandas.DataFrame(each.numpy(), columns=["a", "b", "c"]) for each in (y, simulate(theta)))
    return theta, y, (x, x[["c", "a", "b"]])


@pytest.fixture(scope="module")
def fitted(pairs):
    return FMCPE(BASE, simulate, recipe=LIGHT).fit(*pairs, **FIT)


class GivenError(Exception):
    """Holds what a fit is given."""


class Recording(FMCPE):
    def fit(self, theta, y, x=None, **options):
        raise GivenError(theta, y, x)


def first_fit(run, names=None):
    with pytest.raises(GivenError) as found:
        run(Recording(BASE, recipe=SHIFT, names=names))
    return found.value.args


def by_cv_plus(method, theta, y, x):
    return fit_with_cv_plus(method, "cv+", theta, y, x, None, None, 0, False)


@pytest.mark.parametrize("diagnostic", [by_cv_plus, learning_curve])
def test_cv_plus_and_the_learning_curve_match_columns_by_name(frames, diagnostic):
    theta, y, orders = frames
    table = pandas.DataFrame(theta.numpy(), columns=["u", "v"])[["v", "u"]]
    found = [first_fit(lambda method, x=x: diagnostic(method, theta, y, x)) for x in orders]
    found.append(first_fit(lambda method: diagnostic(method, table, y, orders[0]), ["u", "v"]))
    assert found[0][2].shape[1:] == (3,)
    assert all(torch.equal(*each) for other in found[1:] for each in zip(found[0], other, strict=True))


def test_baselines_match_columns_of_simulations_by_name(frames):
    theta, y, orders = frames
    one, other = (as_pairs(theta, y, x, PRIOR, None)[2] for x in orders)
    assert torch.equal(one, other)
    with pytest.raises(ValueError, match="Expected x with the columns a, b, c, got a, b, d"):
        as_pairs(theta, y, orders[0].rename(columns={"c": "d"}), PRIOR, None)


def box(low, high):
    return BoxUniform(torch.tensor(low), torch.tensor(high))


def normal(spread):
    return torch.distributions.MultivariateNormal(torch.tensor([0.0, 0.5]), spread**2 * torch.eye(2))


@pytest.mark.parametrize("target", [box([5.0, 5.0], [6.0, 6.0]), box([-2.0, 0.0], [2.0, 1.05]), normal(0.25)])
def test_target_priors_outside_the_prior_are_refused(target):
    with pytest.raises(
        ValueError, match=r"target_prior inside the prior's support, got one with \d+ of 1000 draws outside"
    ):
        FMCPE(BASE, simulate, target_prior=target)


def test_target_priors_with_negligible_tails_are_accepted_and_no_generator_moves():
    before = torch.get_rng_state(), random.getstate()
    for target in (normal(0.15), box([-2.0, 0.0], [2.0, 1.0]), PRIOR):
        assert FMCPE(BASE, simulate, target_prior=target).target_prior is target
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_few_given_simulations_are_refused():
    theta = PRIOR.sample((30,))
    x = simulate(theta)
    with pytest.raises(ValueError, match=r"Expected 20 or more simulations, got 1\."):
        FMCPE(BASE, simulations=(theta[:1], x[:1]))
    FMCPE(BASE, simulations=(theta[:20], x[:20]))
    x[:11] = torch.nan
    with pytest.raises(ValueError, match="20 or more simulations, got 19 that succeeded"):
        FMCPE(BASE, simulations=(theta, x))


def test_huge_weights_are_those_of_their_ratios(pairs, fitted):
    found = FMCPE(BASE, simulate, recipe=LIGHT).fit(*pairs, weights=torch.full((30,), 3e37), **FIT)
    assert found.weights == fitted.weights and found.record.score == fitted.record.score


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(30), "not all zero, got zeros only"),
        (torch.ones(30, 1), r"weights of shape \(30,\), got shape \(30, 1\)"),
        (torch.cat([torch.ones(29), -torch.ones(1)]), "not negative, got -1 for pair 29"),
    ],
)
@pytest.mark.parametrize("conformal", [None, "cv+"])
def test_weights_are_refused_by_the_condition_that_fails(pairs, weights, message, conformal):
    with pytest.raises(ValueError, match=message):
        FMCPE(BASE, simulate, recipe=LIGHT).fit(*pairs, weights=weights, conformal=conformal, **FIT)


def test_weight_only_where_the_simulator_fails_is_refused(pairs):
    fails = pairs[0][:, 0] < pairs[0][:, 0].quantile(0.3)

    def failing(theta):
        x = simulate(theta)
        x[theta[:, 0] < pairs[0][:, 0].quantile(0.3)] = torch.nan
        return x

    with pytest.raises(ValueError, match=r"it fails at all 9 pair\(s\) with weight"):
        FMCPE(BASE, failing, recipe=SHIFT).fit(*pairs, weights=fails.float(), **FIT)


def test_cv_plus_says_that_one_fold_has_all_the_weight(pairs):
    one = torch.zeros(30)
    one[0] = 1
    with pytest.raises(ValueError, match=r"two folds or more for CV\+, got all of it in one fold"):
        FMCPE(BASE, simulate, recipe=LIGHT).fit(*pairs, weights=one, conformal=CVPlus(2, 20), **FIT)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seeds_that_torch_does_not_take_are_refused(fitted, pairs, seed):
    with pytest.raises(ValueError, match=rf"seed to be at least -2\*\*63 and below 2\*\*64, got {seed}"):
        fitted.sample((2,), x=pairs[1][0], seed=seed)
    with pytest.raises(ValueError, match=f"got {seed}"):
        derive(seed, "stream")  # of CV+, before its fits
    with pytest.raises(TypeError, match=r"whole number or None, got 2\.5"):
        derive(2.5, "stream")
    fitted.sample((2,), x=pairs[1][0], seed=2**64 - 1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("num_iter", value) for value in (2.5, -1, "a")),
        *(("num_to_optimize", value) for value in (2.5, 1, "a")),
        *(("num_init_samples", value) for value in (1000.5, None)),
    ],
)
def test_counts_of_the_search_are_whole_numbers(fitted, pairs, option, value):
    with pytest.raises(ValueError, match=rf"^Expected {option} to be a whole number of at least \d, got .*{value}"):
        fitted.map(pairs[1][0], **{option: value})


@pytest.mark.parametrize("value", [2.5, 0, "a"])
def test_batches_and_draws_are_whole_numbers(fitted, pairs, value):
    with pytest.raises(ValueError, match=f"max_sampling_batch_size to be a whole number of at least 1, got .*{value}"):
        fitted.sample((5,), x=pairs[1][0], max_sampling_batch_size=value)
    theta = PRIOR.sample((20,))
    with pytest.raises(ValueError, match=f"num_samples to be a whole number of at least 10, got .*{value}"):
        fitted.conformalize(theta, observe(theta), num_samples=value)


def test_the_command_refuses_few_simulations_and_missing_files_before_it_says_anything(tmp_path, monkeypatch, capsys):
    from fmcpe.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    capsys.readouterr()
    fit = ["fit", "--prior", "prior.toml", "--simulator", "model.py:simulate", "--calibration"]
    for arguments, message in (
        ([*fit, "pairs.csv", "--num-simulations", "-5"], "--num-simulations of at least 100, got -5"),
        ([*fit, "missing.csv"], "Expected an existing file, got missing.csv, which does not exist"),
    ):
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert not said.out and message in said.err


# ------------------------------------------------------------------ digits, options and shapes


@pytest.mark.parametrize(
    "column",
    [
        np.int64(1_700_000_000_000_000_000) + 7 * np.arange(30),  # nanoseconds since 1970
        1e13 + np.arange(30.0),
        np.longdouble(1e17) + np.arange(30).astype(np.longdouble) % 7,
        torch.arange(30) + 4_000_000_000,
        (torch.arange(30) + 4_000_000_000).to(torch.uint32),
        (torch.arange(30) + 4_000_000_000).to(torch.uint64),
    ],
    ids=["int64", "float64", "longdouble", "torch int64", "uint32", "uint64"],
)
def test_digits_that_single_precision_rounds_away_are_no_constant(column, pairs):
    with pytest.raises(ValueError, match=r"Expected real numbers in y, got .* offset.*Subtract a constant"):
        as_pairs(pairs[0], column[:, None], None, PRIOR, None)


def test_constants_with_rounding_are_constants(pairs):
    third = np.ones((30, 1), np.longdouble) / 3
    for column in (third, 1e7 / 3 * (1 + 1e-16 * np.arange(30.0)[:, None]), np.full((30, 1), 2**53 + 1)):
        assert float(as_pairs(pairs[0], column, None, PRIOR, None)[1].std()) <= 1e-6 * float(column[0, 0])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("num_simulations", value) for value in (1e3, "1000", None, 99)),
        *(("simulation_batch_size", value) for value in (2.0, "a", True, 0)),
        *(("max_failed", value) for value in ("a", None, 1.0, -0.1)),
        *(("simulations", value) for value in (torch.zeros(2, 40, 2), {"theta": 1}, (1, 2, 3))),
        *(("embedding_net", value) for value in (3, abs)),
    ],
)
def test_options_of_the_training_are_checked_before_a_library_sees_them(option, value):
    with pytest.raises((ValueError, TypeError), match=rf"^Expected .*{option}|^Expected {option}"):
        train_npe(simulate, PRIOR, **{"num_simulations": 200, "seed": 0, "show_progress_bars": False, option: value})


@pytest.mark.parametrize(
    ("option", "value"), [("simulation_batch_size", 2.0), ("simulations", torch.zeros(2, 40, 2)), ("target_prior", 3)]
)
def test_options_of_the_method_are_checked_before_a_library_sees_them(option, value):
    with pytest.raises((ValueError, TypeError), match=f"^Expected .*{option}|^Expected {option}"):
        FMCPE(BASE, simulate, **{option: value})
    with pytest.raises(ValueError, match="Expected batch_size to be a whole number of at least 1"):
        simulate_all(simulate, PRIOR.sample((4,)), batch_size=2.5)


@pytest.mark.parametrize(
    "theta",
    [
        torch.empty(2, 2, device="meta"),
        torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(2)]),
    ],
    ids=["meta", "quantized", "nested"],
)
def test_parameters_of_densities_are_plain_numbers(theta):
    with pytest.raises(ValueError, match=r"Expected real numbers in theta, got a .* tensor\. Pass a plain one"):
        as_theta(theta, 2)
    assert torch.equal(as_theta(torch.eye(2).to_sparse(), 2), torch.eye(2))


@pytest.mark.parametrize("shape", [2**63, (2**40, 2**40)])
def test_more_draws_than_anybody_can_store_are_refused(fitted, pairs, shape):
    with pytest.raises(ValueError, match="Expected sample_shape of at most 1e\\+12 draws"):
        fitted.sample(shape, x=pairs[1][0])


def fit_by_dpe(theta, y):
    return baselines.DPE(PRIOR).fit(theta, y)


@pytest.mark.parametrize("fit", [FMCPE(BASE, simulate, recipe=LIGHT).fit, fit_by_dpe])
def test_tables_with_the_same_labels_in_another_order_are_refused(frames, fit):
    """They would be paired by position, and nobody would see it."""
    theta, y, _ = frames
    theta = pandas.DataFrame(theta.numpy(), columns=["u", "v"])
    for table in (y[::-1], y.set_index(y.index[::-1])):
        with pytest.raises(
            ValueError, match=r"^Expected y .* order of theta, got .* Pass y\.loc\[theta\.index\], or y\.to_n"
        ):
            fit(theta, table)


def test_weights_and_simulations_in_another_order_are_refused(frames):
    theta, y, orders = frames
    ratio, method = pandas.Series(1.0, index=y.index), FMCPE(BASE, simulate, recipe=LIGHT)
    table = pandas.DataFrame(theta.numpy())
    for pairs, what in (((theta, y), "y"), ((table, y.to_numpy()), "theta")):
        for run in (
            method.fit,
            lambda *a, **o: learning_curve(method, *a, **o),
            lambda *a, **o: method.fit(*a, conformal="cv+", **o),
        ):
            with pytest.raises(ValueError, match=rf"^Expected weights .* Pass weights\.loc\[{what}\.index\], or"):
                run(*pairs, weights=ratio[::-1])
    with pytest.raises(ValueError, match=r"Pass x\.loc\[y\.index\], or"):
        method.fit(theta, y, orders[0][::-1])


def test_tables_with_equal_or_other_labels_are_paired_by_position(frames):
    theta, y, _ = frames
    table = pandas.DataFrame(theta.numpy())
    for one, other in (
        (table[::-1], y[::-1]),
        (table, y.set_index(y.index + 100)),
        (table, y.set_index(pandas.Index([f"run {k}" for k in range(len(y))]))),
        (table[::-1], y.to_numpy()[::-1]),
        (table, y.set_index(y.index.astype(float))),
    ):
        found = as_pairs(one, other, None, PRIOR, None)
        assert all(len(each) == len(theta) for each in found[:2])
