"""What goes wrong in a laboratory: a fit either says so or copes, and leaves everything as it was."""

import signal
import sys
import threading

import pytest
import torch
from conftest import PRIOR, observe, simulate
from test_ambient import ambient

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Stack, _turns, as_base_posterior, candidates, train_npe

LIGHT = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
FIT = {"seed": 0, "show_progress_bars": False}


def rough(x):
    return torch.stack([x[:, 0], x[:, 1] / 4], dim=1) + 0.2 * torch.randn(len(x), 2)


BASE = as_base_posterior(rough, prior=PRIOR)


@pytest.fixture(autouse=True)
def nothing_else_changes():
    before, handler = ambient(), signal.getsignal(signal.SIGINT)
    yield
    now = ambient()
    assert now[:5] == before[:5] and now[6:8] == before[6:8]
    assert signal.getsignal(signal.SIGINT) is handler and not _turns._turns


def at_call(number, then):
    """A simulator that does something else from its n-th call on."""
    calls = []

    def simulator(theta):
        calls.append(len(theta))
        return then(theta) if len(calls) >= number else simulate(theta)

    return simulator


def raising(error):
    def then(theta):
        raise error

    return then


def generators():
    return ambient()[8:]


@pytest.mark.parametrize("error", [OSError("disk"), KeyError("k"), ConnectionError("gone"), KeyboardInterrupt()])
def test_an_error_at_the_third_call_passes_through_and_leaves_all_as_it_was(error, pairs):
    before = generators()
    with pytest.raises(type(error)):
        FMCPE(BASE, at_call(3, raising(error)), recipe=LIGHT, simulation_batch_size=500).fit(*pairs, **FIT)
    with pytest.raises(type(error)):
        train_npe(at_call(3, raising(error)), PRIOR, 500, simulation_batch_size=100, **FIT)
    assert generators() == before


def test_a_simulator_that_hangs_is_an_error_after_the_limit(pairs):
    seconds, ended = 0.2, threading.Event()

    def hang(theta):
        ended.wait(60)  # and then draws nothing: its thread outlives the call
        return theta

    for run in (
        lambda: FMCPE(BASE, at_call(3, hang), recipe=LIGHT, simulation_batch_size=500, simulation_timeout=seconds).fit(
            *pairs, **FIT
        ),
        lambda: train_npe(at_call(3, hang), PRIOR, 500, simulation_batch_size=100, simulation_timeout=seconds, **FIT),
        lambda: fmcpe.simulate(at_call(3, hang), pairs[0], batch_size=5, simulation_timeout=seconds, **FIT),
    ):
        with pytest.raises(
            TimeoutError, match=r"return within 0.2 s, got nothing for \d+ row.*Raise simulation_timeout"
        ):
            run()
    ended.set()
    with pytest.raises(ValueError, match="simulation_timeout to be a positive number, got 0"):
        FMCPE(BASE, simulate, simulation_timeout=0)


def test_a_limit_that_is_kept_changes_no_bit(pairs):
    runs = [fmcpe.simulate(simulate, pairs[0], batch_size=7, simulation_timeout=limit, **FIT) for limit in (None, 30)]
    assert torch.equal(*runs)


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_a_simulator_that_changes_its_shape_is_refused(pairs):
    narrow = at_call(3, lambda theta: simulate(theta)[:, :2])
    with pytest.raises(ValueError, match=r"return shape \(500, 3\).* got \(500, 2\)"):
        FMCPE(BASE, narrow, recipe=LIGHT, simulation_batch_size=500).fit(*pairs, **FIT)
    narrow = at_call(4, lambda theta: simulate(theta)[:, :2])
    with pytest.raises(ValueError, match=r"return shape \(100, 3\).* got \(100, 2\)"):
        train_npe(narrow, PRIOR, 500, simulation_batch_size=100, **FIT)
    with pytest.raises(
        ValueError, match=r"simulations of one shape, got \(3,\) from one batch and \(2,\) from another"
    ):
        fmcpe.simulate(at_call(3, lambda t: simulate(t)[:, :2]), pairs[0], batch_size=10, **FIT)


def test_rows_of_nan_are_dropped_up_to_the_share_and_refused_beyond(pairs):
    def failing(share):
        def simulator(theta):
            x = simulate(theta)
            x[theta[:, 1] < share] = torch.nan
            return x

        return simulator

    theta = pairs[0].clone()
    theta[:, 1] = theta[:, 1].clamp_min(0.75)
    with pytest.warns(FMCPEWarning, match="simulations that failed"):
        FMCPE(BASE, failing(0.3), recipe=LIGHT).fit(theta, observe(theta), **FIT)
    with pytest.raises(ValueError, match="at most 50% of 2000 rows"):
        FMCPE(BASE, failing(0.7), recipe=LIGHT).fit(theta, observe(theta), **FIT)


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_a_base_posterior_that_collapsed_gets_no_weight(pairs):
    """One point for every x: the prior, which is right on average, is better."""
    collapsed = as_base_posterior(lambda x: torch.tensor([[1.9, 0.99]]).expand(len(x), 2), prior=PRIOR)
    posterior = FMCPE(collapsed, simulate, recipe=LIGHT).fit(*pairs, **FIT)
    assert posterior.weights["prior"] > 0.8
    drawn = posterior.sample((400,), x=pairs[1][0], **FIT)
    assert bool(torch.isfinite(drawn).all()) and float(drawn[:, 0].std()) > 0.5


def test_a_loss_that_explodes_is_an_error_or_the_best_epoch_before():
    short = {"max_num_epochs": 3, **FIT}
    with pytest.raises(RuntimeError, match=r"finite validation loss .*it diverged. Lower the rate"):
        train_npe(lambda t: simulate(t) * 1e30, PRIOR, 600, learning_rate=1e30, **short)
    from fmcpe.nn.training import Training, train

    network = torch.nn.Linear(1, 1)
    target, calls = torch.linspace(-1, 1, 200)[:, None], []

    def loss(rows):
        calls.append(len(rows))
        value = (network(target[rows]) - 2 * target[rows]).square()[:, 0]
        return value * (torch.nan if len(calls) > 25 else 1.0)

    with pytest.warns(FMCPEWarning, match="the weights of the best epoch before are kept"):
        train(network, loss, 200, Training(max_num_epochs=20, training_batch_size=50, learning_rate=0.1), "a line")
    assert bool(torch.isfinite(network.weight).all())


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_an_interrupt_at_any_time_leaves_a_fit_as_if_it_had_not_begun(pairs):
    """A real SIGINT at so many calls of Python functions, wherever the fit then is."""
    method = FMCPE(BASE, simulate, recipe=LIGHT)
    reference = method.fit(*pairs, **FIT).sample((10,), x=pairs[1][0], **FIT)
    before, calls, at = ambient(), 0, -1

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"
        if event == "call" and calls == at:
            signal.raise_signal(signal.SIGINT)

    def fit():
        nonlocal calls
        calls = 0
        sys.setprofile(count)
        try:
            method.fit(*pairs, **FIT)
        finally:
            sys.setprofile(None)

    fit()
    whole = calls
    for k in range(12):
        at = 1 + whole * k // 14
        with pytest.raises(KeyboardInterrupt):
            fit()
        assert ambient() == before
        assert not _turns._turns
    assert torch.equal(reference, method.fit(*pairs, **FIT).sample((10,), x=pairs[1][0], **FIT))
