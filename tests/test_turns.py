"""Seeds with threads: concurrent draws and fits have the bits of serial ones, and nothing waits for ever."""

import multiprocessing
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import PRIOR, simulate
from sbi.inference.posteriors import DirectPosterior

from fmcpe import FMCPE, Stack, _interrupts, _random, _turns, as_base_posterior, candidates
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.npe import FlowSize, NPEPosterior, build_estimator

LIGHT = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()])
QUIET = {"show_progress_bars": False}
pytestmark = pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")


def rough(x):
    """A base posterior that is cheap: near the truth of `simulate`."""
    return torch.stack([x[:, 0], x[:, 1] / 4], dim=1) + 0.2 * torch.randn(len(x), 2)


@pytest.fixture(scope="module")
def rough_base():
    return as_base_posterior(rough, prior=PRIOR)


@pytest.fixture(scope="module")
def posterior(rough_base, pairs):
    return FMCPE(rough_base, simulate, recipe=LIGHT).fit(*pairs, seed=0, **QUIET)


@pytest.fixture(scope="module")
def untrained():
    """A posterior as `train_npe` returns it, without the training."""
    with seeded(0):
        theta = PRIOR.sample((100,))
        estimator = build_estimator(theta, simulate(theta), PRIOR, FlowSize(8, 1, 4), None)
        return NPEPosterior(estimator, PRIOR, FlowSize(8, 1, 4), None, {})


def state():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def in_threads(function, arguments, number=8):
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(function, arguments))


def test_draws_in_threads_have_the_bits_of_serial_ones(posterior, pairs):
    def draw(seed):
        return posterior.sample((40,), x=pairs[1][seed % 3], seed=seed % 6, **QUIET)

    serial, before = [draw(k) for k in range(6)], state()
    for k, drawn in enumerate(in_threads(draw, range(144))):
        assert torch.equal(drawn, serial[k % 6])
    assert state() == before


def test_fits_in_threads_have_the_bits_of_serial_ones(rough_base, pairs):
    def fit(seed):
        fitted = FMCPE(rough_base, simulate, recipe=LIGHT).fit(*pairs, seed=seed, **QUIET)
        return fitted.sample((50,), x=pairs[1][0], seed=1, **QUIET)

    before = state()
    serial = [fit(k) for k in (0, 1)]
    assert state() == before
    for k, drawn in enumerate(in_threads(fit, (0, 1, 0, 1), 4)):
        assert torch.equal(drawn, serial[k % 2])
    assert state() == before


def test_draws_without_a_seed_are_safe_beside_seeded_ones(posterior, pairs):
    """They would repeat themselves if they drew from the generators of a seeded section."""

    def draw(k):
        return posterior.sample((5,), x=pairs[1][0], seed=None if k % 2 else 0, **QUIET)

    drawn = in_threads(draw, range(60))
    assert all(torch.equal(each, drawn[0]) for each in drawn[::2])
    assert len(torch.cat(drawn[1::2]).unique(dim=0)) == 30 * 5


def test_draws_of_a_base_posterior_take_their_turn(posterior, rough_base, pairs):
    """They draw from the global generators, too, seeded or not."""
    before, done = sys.getswitchinterval(), threading.Event()

    def draw():
        return posterior.sample((40,), x=pairs[1][0], seed=0, **QUIET)

    def others():
        while not done.is_set():
            rough_base.sample(pairs[1][:5], 20)

    expected, workers = draw(), [threading.Thread(target=others) for _ in range(3)]
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        assert all(torch.equal(draw(), expected) for _ in range(40))
    finally:
        done.set()
        sys.setswitchinterval(before)
        for worker in workers:
            worker.join()


@pytest.mark.parametrize("name", ["sample", "sample_batched", "map", "log_prob"])
def test_draws_of_a_trained_posterior_wait_for_their_turn(name, untrained, monkeypatch):
    """A seeded section of another thread keeps the generators for itself; in one thread the bits are those of sbi."""
    x, entered, done = torch.zeros(1, 3), threading.Event(), threading.Event()
    untrained.set_default_x(x)
    arguments = {"sample": ((5,),), "sample_batched": ((5,), x), "map": (None, 2, 3), "log_prob": (PRIOR.mean[None],)}
    options = {
        "map": {"num_init_samples": 5, "force_update": True},
        "log_prob": {"leakage_correction_params": {"num_rejection_samples": 50, "force_update": True}},
    }.get(name, QUIET)

    def draw(kind=NPEPosterior):
        done.set()
        return getattr(kind, name)(untrained, *arguments[name], **options)

    torch.manual_seed(0)
    mine, after = draw(), torch.rand(3)
    torch.manual_seed(0)
    with monkeypatch.context() as patched:
        patched.setattr(NPEPosterior, "leakage_correction", DirectPosterior.leakage_correction)
        assert torch.equal(draw(DirectPosterior), mine) and torch.equal(torch.rand(3), after)
    done.clear()
    worker = threading.Thread(target=lambda: (entered.set(), draw()))
    with seeded(1):
        expected = torch.rand(3)
    with seeded(1):
        worker.start()
        assert entered.wait(20) and done.wait(20)
        worker.join(0.3)
        assert worker.is_alive(), "it did not wait"
        assert torch.equal(torch.rand(3), expected)
    worker.join(20)
    assert not worker.is_alive()


# ------------------------------------------------------------------ no deadlock


def finishes(function, seconds=20):
    """What the function returns, in a thread that may not hang."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]


def test_a_simulator_may_call_the_library_from_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(_turns, "PATIENCE", 0.1)

    def one(row):
        with seeded(int(1000 * abs(float(row[0])))):
            return torch.rand(3)

    def threaded(theta):
        with ThreadPoolExecutor(2) as pool:
            return torch.stack(list(pool.map(one, theta)))

    def run():
        with seeded(0):
            x = CheckedSimulator(threaded, None)(torch.arange(4.0)[:, None])
            return x, torch.rand(2)

    x, after = finishes(run)
    assert torch.equal(x, torch.stack([one(row) for row in torch.arange(4.0)[:, None]]))
    with seeded(0):
        assert torch.equal(after, torch.rand(2))  # the guests left the generators as they were


def test_a_limit_of_time_does_not_change_the_bits_and_nests():
    def nested(theta):
        with seeded(3):
            torch.rand(7)
        return theta + torch.rand_like(theta)

    theta = torch.zeros(4, 2)
    with seeded(0):
        plain = CheckedSimulator(nested, None)(theta)
    with seeded(0):
        assert torch.equal(finishes(lambda: plain), CheckedSimulator(nested, None, timeout=20)(theta))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_process_forked_beside_a_seeded_section_does_not_wait_for_it():
    entered, done = threading.Event(), threading.Event()

    def hold():
        with seeded(0):
            entered.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(20)
    child = multiprocessing.get_context("fork").Process(target=_in_child)
    child.start()
    child.join(20)
    done.set()
    holder.join()
    code = child.exitcode
    if code is None:
        child.kill()
    assert code == 0


def _in_child():
    with seeded(0):
        torch.rand(1)


# ------------------------------------------------------------------ interrupts


def places(block):
    """Every line of the library's own bookkeeping that runs in a block."""
    return _traced(block, None)[0]


def _traced(block, stop):
    """Run a block; send SIGINT at the line number `stop` of the bookkeeping. Lines that ran, and whether it was interrupted."""
    files, count, interrupted = {module.__file__ for module in (_interrupts, _random, _turns)}, [0], False

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files or frame.f_code is _interrupts._handle.__code__:
            return None
        if event in ("call", "line"):
            count[0] += 1
            if count[0] == stop:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        block()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sys.settrace(before)
    return count[0], interrupted


def test_an_interrupt_anywhere_leaves_the_generators_and_the_turn_as_they_were():
    def block():
        with seeded(0):
            torch.rand(3)
            with seeded(1):
                np.random.rand(2)
            random.random()

    before, handler, total = state(), signal.getsignal(signal.SIGINT), places(block)
    assert total > 50
    for stop in range(1, total + 1):
        assert _traced(block, stop)[1], f"the interrupt at line {stop} was lost"
        assert state() == before
        assert signal.getsignal(signal.SIGINT) is handler
        assert not _turns._turns


def test_an_interrupted_wait_for_the_turn_ends():
    entered, done = threading.Event(), threading.Event()

    def hold():
        with seeded(0):
            entered.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(20)
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt), seeded(1):
        pass
    assert not done.is_set()
    done.set()
    holder.join()
    assert not _turns._turns
