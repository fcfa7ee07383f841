"""Whatever torch's settings are: fits work, have the same bits, and leave the settings as they were."""

import contextlib
import copy
import logging
import os
import random
import threading
import time
import typing
import warnings

import numpy as np
import pytest
import torch
from conftest import PRIOR, observe, simulate

from fmcpe import FMCPE, Stack, _ambient, candidates, diagnostics, load, train_npe
from fmcpe._disk import write_whole
from fmcpe._random import seeded
from fmcpe.diagnostics.conformal import median_and_width

LIGHT = Stack(
    [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.FineTuned(steps=4)],
    folds=2,
    repeats=1,
)
QUIET = {"seed": 0, "show_progress_bars": False}


@contextlib.contextmanager
def double():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SETTINGS = {
    "float64": double,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "three threads": lambda: threads(3),
}


def ambient():
    return (
        torch.get_default_dtype(), torch.is_grad_enabled(),
        (torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")), torch.get_num_threads(),
        torch.distributions.Distribution._validate_args, [*warnings.filters], logging.getLogger().level,
        [*logging.getLogger().handlers], torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate(),
    )  # fmt: skip


def everything(theta, y):
    """Train, fit, draw, density; with what the simulator saw."""
    seen = set()

    def watching(theta):
        seen.add((torch.get_default_dtype(), torch.get_num_threads()))
        return simulate(theta)

    base = train_npe(watching, PRIOR, 300, max_num_epochs=1, **QUIET)
    posterior = FMCPE(base, watching, recipe=LIGHT).fit(theta, y, **QUIET)
    draws = posterior.sample((20,), x=y[0], **QUIET)
    return seen, draws, posterior.log_prob(draws, x=y[0])


@pytest.fixture(scope="module")
def plain(pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return everything(*pairs)[1:]


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
@pytest.mark.parametrize("name", SETTINGS)
def test_any_setting_gives_the_same_bits_and_is_left_as_it_was(name, plain, pairs):
    with SETTINGS[name]():
        theta, y = (each.clone() for each in pairs)  # tensors of the caller's mode
        before, own = ambient(), (torch.get_default_dtype(), torch.get_num_threads())
        seen, *found = everything(theta, y)
        assert ambient() == before
        assert seen == {own}  # a simulator runs with the caller's settings
    for one, other in zip(plain, found, strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_file_loads_under_any_setting(name, posteriors, pairs, tmp_path):
    posterior, (theta, y) = posteriors("fine_tuned"), pairs
    path = posterior.save(tmp_path / "run.fmcpe")
    with SETTINGS[name]():
        before = ambient()
        loaded = load(path)
        assert ambient() == before
        inside = loaded.sample((20,), x=y[0], **QUIET)
    assert {each.dtype for each in loaded.inner.state_dict().values() if each.is_floating_point()} == {torch.float32}
    for draws in (inside, loaded.sample((20,), x=y[0], **QUIET)):
        assert torch.equal(draws, posterior.sample((20,), x=y[0], **QUIET))
    theta = theta[:3].clone().requires_grad_()
    loaded.log_prob(theta, x=y[0], track_gradients=True).sum().backward()
    assert bool(theta.grad.abs().sum() > 0)


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_intervals_and_suspects_do_not_depend_on_the_default_dtype(base, pairs):
    wrong = pairs[1].clone()
    wrong[7] *= 10
    recipe = Stack([candidates.Prior(), candidates.ResidualShift()])
    posterior = FMCPE(base, simulate, recipe=recipe).fit(pairs[0], wrong, **QUIET)
    with seeded(0):
        theta = PRIOR.sample((20,))
        y = observe(theta)

    def found():
        interval = posterior.conformalize(theta, y, num_samples=50, seed=0).interval(0.8, x=y[:2])
        return interval.low, interval.high, str(diagnostics.suspects(posterior))

    plain = found()
    with double():
        inside = found()
    assert torch.equal(inside[0], plain[0]) and torch.equal(inside[1], plain[1])
    assert inside[2] == plain[2] and "pair=7" in plain[2]


def test_small_data_are_fitted_with_one_thread_and_images_with_the_callers():
    with threads(3):
        with _ambient.settled(10):
            assert torch.get_num_threads() == 1
            with _ambient.user_code():
                assert torch.get_num_threads() == 3
            assert torch.get_num_threads() == 1
        with _ambient.settled(_ambient.LARGE):
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 3


class Watched(torch.nn.Linear):
    """An embedding that notes how many threads it runs with, but for one or two rows that show its shapes."""

    seen: typing.ClassVar[set[int]] = set()

    def forward(self, x):
        if len(x) > 2:
            self.seen.add(torch.get_num_threads())
        return super().forward(x)


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_networks_for_small_data_run_with_one_thread_whatever_is_set(pairs):
    """So that two threads cannot be slower than one."""
    with threads(3):
        base = train_npe(simulate, PRIOR, 300, Watched(3, 3), max_num_epochs=1, **QUIET)
        posterior = FMCPE(base, simulate, recipe=LIGHT).fit(*pairs, **QUIET)
        draws = posterior.sample((20,), x=pairs[1][0], **QUIET)
        posterior.log_prob(draws, x=pairs[1][0])
    assert Watched.seen == {1}


def test_gradients_of_the_density_survive(posteriors, pairs):
    theta = PRIOR.sample((3,)).requires_grad_()
    posteriors("npe").log_prob(theta, x=observe(pairs[0])[0], track_gradients=True).sum().backward()
    assert bool(theta.grad.abs().sum() > 0)


def test_threads_that_silence_warnings_leave_the_filters_as_they_were(posteriors):
    """The block that begins first ends first, unless it keeps the turn: then the other would restore its filters."""
    posterior, before, at_work = posteriors("residual_shift"), [*warnings.filters], threading.Event()
    y = observe(PRIOR.sample((3,)))

    class Slow(type(posterior)):
        def sample_batched(self, *arguments, **options):
            at_work.set()
            time.sleep(0.05)
            return super().sample_batched(*arguments, **options)

    def work():
        for _ in range(5):
            median_and_width(slow, y, 20, 0)

    slow = copy.copy(posterior)
    slow.__class__ = Slow
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    at_work.wait(10)
    for worker in workers:
        worker.join()
    assert [*warnings.filters] == before


def test_a_save_does_not_touch_the_umask(tmp_path, monkeypatch):
    """It belongs to the process: to read it is to set it, and files of other threads would be open to everybody meanwhile."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", None)
            write_whole(tmp_path / "file", b"content")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
