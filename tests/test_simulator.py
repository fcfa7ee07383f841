"""What labs have: simulators that fail here and there, scalar data, no simulator at all; and arguments in the wrong place."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import PRIOR, SMALL, TINY, observe, simulate
from sbi.inference import NPE
from sbi.utils import BoxUniform

from fmcpe import FMCPE, FMCPEWarning, Stack, baselines, candidates, train_npe
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors import rows

UNIT = BoxUniform(torch.zeros(1), torch.ones(1))
QUICK = Stack([candidates.Prior(), candidates.Uncorrected()])
SHORT = {"seed": 0, "max_num_epochs": 1, "show_progress_bars": False}
FIT = {"seed": 0, "show_progress_bars": False}


def clean(theta):
    return torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)


def with_nan(theta):
    """NaN where the first parameter is below -1.9: 2.5 % of the prior."""
    x = clean(theta)
    x[theta[:, 0] < -1.9] = torch.nan
    return x


def raising(theta):
    """The same with an error for the batch that has such a row."""
    if bool((theta[:, 0] < -1.9).any()):
        raise RuntimeError("the solver did not converge")
    return clean(theta)


# ------------------------------------------------------------------ rows that fail


@pytest.mark.parametrize("simulator", [with_nan, raising])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_rows_that_fail_are_dropped_and_counted_and_all_others_kept(simulator, batch_size):
    torch.manual_seed(0)
    drawn = PRIOR.sample((2000,))
    torch.manual_seed(0)
    with pytest.warns(FMCPEWarning, match=r"got (\d+) of 2000 simulations that failed"):
        theta, x = rows.simulate(simulator, PRIOR, 2000, None, batch_size=batch_size)
    kept = drawn[drawn[:, 0] >= -1.9]
    assert 0 < 2000 - len(kept) < 100
    assert torch.equal(theta, kept) and torch.equal(x, clean(kept))


def test_given_simulations_that_failed_are_dropped_too():
    theta = PRIOR.sample((500,))
    theta[7, 0] = -1.95
    with pytest.warns(FMCPEWarning, match="simulations that failed"):
        kept, x = rows.given_simulations((theta, with_nan(theta)), PRIOR, 0.1)
    assert torch.equal(kept, theta[theta[:, 0] >= -1.9]) and torch.equal(x, clean(kept))


@pytest.mark.parametrize("simulator", [with_nan, raising])
def test_too_many_failures_are_an_error_that_names_one(simulator):
    with pytest.raises(ValueError, match=r"at most 1% of 2000 rows, got \d+ .*theta=\[-1\.9.*max_failed=0.02"):
        train_npe(simulator, PRIOR, 2000, max_failed=0.01, **SHORT)


def test_a_simulator_that_always_fails_is_given_up_soon():
    calls = []

    def broken(theta):
        calls.append(len(theta))
        raise ValueError("no such file: mesh.dat")

    with pytest.raises(ValueError, match=r"fails at all that were tried .*mesh\.dat"):
        train_npe(broken, PRIOR, 5000, **SHORT)
    assert len(calls) < 200


def test_a_simulator_without_return_and_a_stack_of_which_nothing_can_be_fitted():
    with pytest.raises(TypeError, match=r"got None\. End it with return x"):
        train_npe(lambda theta: None, PRIOR, 100, **SHORT)
    theta = PRIOR.sample((10,))
    method = FMCPE(lambda x: PRIOR.sample((len(x),)), simulate, PRIOR, recipe=Stack([candidates.FineTuned()]))
    with pytest.raises(ValueError, match=r"got none \(fine_tuned: .*Add Uncorrected\(\)"):
        method.fit(theta, observe(theta), **FIT)


def test_other_errors_of_a_simulator_pass_through():
    def wrong(theta):
        return theta.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        train_npe(wrong, PRIOR, 500, **SHORT)


def test_simulations_on_demand_leave_failures_out(monkeypatch):
    monkeypatch.setattr(rows.SimulationsOnDemand, "max_bytes", 0)
    with pytest.warns(FMCPEWarning, match="failed"):
        posterior = train_npe(raising, PRIOR, 1200, **SHORT)
    assert np.isfinite(posterior.history["validation_loss"]).all()
    with pytest.raises(ValueError, match="at most 1%"):
        train_npe(with_nan, PRIOR, 1200, max_failed=0.01, **SHORT)


def test_what_needs_a_simulation_at_each_row_tries_again():
    torch.manual_seed(0)

    def moody(theta):
        x = clean(theta)
        x[torch.rand(len(x)) < 0.5] = torch.nan
        return x

    theta = PRIOR.sample((300,))
    assert torch.equal(CheckedSimulator(moody, torch.Size((3,)))(theta), clean(theta))


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_pairs_at_which_the_simulator_fails_are_left_out(base, pairs):
    theta, y = pairs[0].clone(), pairs[1]
    theta[:, 0] = theta[:, 0].clamp_min(-1.8)
    theta[3, 0] = -1.95
    with pytest.warns(FMCPEWarning, match=r"fails at 1 of 30 \(first: pair 3"):
        posterior = FMCPE(base, with_nan, recipe=QUICK).fit(theta, y, weights=torch.ones(30), **FIT)
    assert posterior.record.num_pairs == 29
    keep = torch.arange(30) != 3
    assert set(posterior.record.fingerprints) == set(
        FMCPE(base, with_nan, recipe=QUICK).fit(theta[keep], y[keep], **FIT).record.fingerprints
    )
    theta[:, 0] = -1.95
    with pytest.raises(ValueError, match="fails at 30 of 30"):
        FMCPE(base, with_nan, recipe=QUICK).fit(theta, y, **FIT)


# ------------------------------------------------------------------ scalar data


def scalar(theta):
    return theta[:, 0] + 0.1 * torch.randn(len(theta))


@pytest.fixture(scope="module")
def scalar_posterior():
    torch.manual_seed(0)
    base, theta = train_npe(scalar, UNIT, 2000, seed=0, max_num_epochs=4, show_progress_bars=False), UNIT.sample((20,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        return FMCPE(base, scalar, recipe=SMALL).fit(theta[:, 0], scalar(theta), **FIT)


def test_one_number_is_an_observation(scalar_posterior):
    first = scalar_posterior.sample((50,), x=0.6, seed=0)
    assert first.shape == (50, 1) and 0.4 < float(first.mean()) < 0.8
    for same in ([0.6], [[0.6]], torch.tensor(0.6), np.float64(0.6)):
        assert torch.equal(scalar_posterior.sample((50,), x=same, seed=0), first)
    assert scalar_posterior.log_prob([[0.6]], x=0.6).shape == (1,)
    assert scalar_posterior.check(0.6).pairs.shape == (1,)
    for one in (0.6, [0.6], torch.tensor(0.6)):
        assert tuple(scalar_posterior.to_dataframe(one, num_samples=5).columns) == scalar_posterior.names


def test_a_row_of_numbers_is_a_batch_of_observations(scalar_posterior):
    drawn = scalar_posterior.sample_batched((50,), x=[0.2, 0.5, 0.8], seed=0)
    assert drawn.shape == (50, 3, 1) and bool((drawn.mean(0)[1:] > drawn.mean(0)[:-1]).all())
    assert torch.equal(drawn, scalar_posterior.sample_batched((50,), x=[[0.2], [0.5], [0.8]], seed=0))
    with pytest.raises(ValueError, match="sample_batched"):
        scalar_posterior.sample((50,), x=[0.2, 0.5])


# ------------------------------------------------------------------ how many simulations


STAGES = ("joint", "sequential", "x-only", "theta-only")
RECIPES = {"stack": QUICK} | {s: replace(TINY, stages=s, epochs=5, validate_every=2) for s in STAGES}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_the_number_of_simulations_is_known_beforehand(base, pairs, name):
    ran = []

    def counted(theta):
        ran.append(len(theta))
        return simulate(theta)

    method = FMCPE(base, counted, recipe=RECIPES[name])
    said = method.num_simulations(30)
    method.fit(*pairs, **FIT)
    assert sum(ran) == said > 0
    assert FMCPE(base, None, recipe=RECIPES[name]).num_simulations(30) == 0


# ------------------------------------------------------------------ without a simulator


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_without_a_simulator_candidates_that_need_none_are_fitted(base, pairs):
    with pytest.warns(FMCPEWarning, match="Expected a simulator or paired simulations"):
        posterior = FMCPE(base, recipe=SMALL).fit(*pairs, **FIT)
    assert set(posterior.record.skipped) == {"residual_shift", "joint_flow"}
    assert posterior.held_out.simulated is None
    torch.manual_seed(0)
    theta = PRIOR.sample((3000,))
    given = FMCPE(base, recipe=SMALL, simulations=(theta, simulate(theta))).fit(*pairs, **FIT)
    assert set(given.record.skipped) == {"residual_shift", "joint_flow"}
    assert given.held_out.simulated is not None  # they are the bank, for replay and ranges
    new = PRIOR.sample((200,))
    error = (given.sample_batched((100,), x=observe(new), seed=0).mean(0) - new).square().mean(0).sqrt()
    plain = (
        (baselines.NPE(base).fit().sample_batched((100,), x=observe(new), seed=0).mean(0) - new).square().mean(0).sqrt()
    )
    assert bool((error < plain).all())


def test_given_simulations_save_the_simulator_work(base, pairs):
    theta = PRIOR.sample((500,))
    method = FMCPE(base, simulate, simulations=(theta, simulate(theta)))
    assert method.num_simulations(30) == FMCPE(base, simulate).num_simulations(30) - 2000 == 16 * 30


# ------------------------------------------------------------------ arguments in the wrong place


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.manual_seed(0)
    theta = PRIOR.sample((300,))
    out = {}
    for name, prior in (("prior", PRIOR), ("none", None)):
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("logs"))  # sbi writes them to the working directory
            warnings.simplefilter("ignore")
            inference = NPE(prior=prior, show_progress_bars=False)
            inference.append_simulations(theta, simulate(theta))
            out[name] = inference, inference.train(max_num_epochs=1)
    return out


def test_parts_of_sbi_are_recognised(trained):
    inference, estimator = trained["prior"]
    with pytest.raises(TypeError, match=r"estimator that inference.train\(\) returns. Pass inference.build_posterior"):
        FMCPE(estimator, simulate)
    with pytest.raises(TypeError, match=r"estimator"):
        FMCPE(estimator, simulate, PRIOR)
    with pytest.raises(TypeError, match=r"the trainer NPE.*build_posterior\(\)"):
        FMCPE(inference, simulate)
    with pytest.raises(TypeError, match="depends on no data"):
        FMCPE(PRIOR, simulate)


@pytest.mark.filterwarnings("ignore:The passed prior has no support")
def test_an_npe_without_a_prior_is_asked_for_it(trained):
    posterior = trained["none"][0].build_posterior()
    with pytest.raises(ValueError, match=r"whose NPE was given none. Pass it: FMCPE\(posterior, simulator, prior="):
        FMCPE(posterior, simulate)
    assert FMCPE(posterior, simulate, PRIOR).base.prior is PRIOR


def test_swapped_arguments_are_recognised(base, pairs):
    theta, y = pairs
    with pytest.raises(TypeError, match=r"swapped: call FMCPE\(posterior, simulator\)"):
        FMCPE(simulate, base)
    with pytest.raises(TypeError, match=r"swapped: call train_npe\(simulator, prior\)"):
        train_npe(PRIOR, simulate)
    with pytest.raises(TypeError, match=r"FMCPE\(posterior, simulator, prior\)"):
        FMCPE(base, PRIOR)
    with pytest.raises(ValueError, match=r"swapped: call fit\(theta, y\)"):
        FMCPE(base, simulate).fit(y, theta)


def test_swapped_pairs_of_one_width_are_recognised_by_the_prior():
    prior = BoxUniform(torch.zeros(2), torch.ones(2))
    theta = prior.sample((20,))
    trained = train_npe(lambda t: 10 + t + 0.1 * torch.randn_like(t), prior, 500, **SHORT)
    with pytest.raises(ValueError, match="All of y lie inside: were they swapped"):
        FMCPE(trained, lambda t: 10 + t).fit(10 + theta, theta)


@pytest.mark.parametrize(
    ("turn", "hint"),
    [
        (lambda theta, y: (theta.T, y), "pass theta.T"),
        (lambda theta, y: (theta, y.T), "pass y.T"),
        (lambda theta, y: (theta.reshape(-1), y), "one row per calibration pair"),
        (lambda theta, y: (theta, y[:, :2]), "each row of y"),
    ],
)
def test_hints_never_mix_rows_up(base, pairs, turn, hint):
    with pytest.raises(ValueError, match=hint) as refused:
        FMCPE(base, simulate).fit(*turn(*pairs))
    assert "reshape" not in str(refused.value)


def test_rows_with_nan_are_named(base, pairs):
    y = pairs[1].clone()
    y[[4, 9]] = torch.nan
    with pytest.raises(ValueError, match=r"in row\(s\) 4, 9. Remove those rows from theta and y alike"):
        FMCPE(base, simulate).fit(pairs[0], y)
