"""One bar with the time left for long steps, nothing for short ones, and nothing in logs."""

import io

import pytest
import torch
import tqdm.std

from fmcpe import FMCPE, Stack, candidates
from fmcpe._progress import Progress, advance


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = [1000.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])

    def pass_by(seconds):
        now[0] += seconds

    return pass_by


def run(clock, seconds, stream, monkeypatch, show=True):
    """A step of a hundred parts that takes so long."""
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(100, "simulating", show) as progress:
        for _ in range(100):
            clock(seconds / 100)
            progress.update()
    return stream.getvalue()


@pytest.mark.parametrize("seconds", [0.1, 1.9, 3.9])
def test_a_short_step_shows_nothing(clock, monkeypatch, seconds):
    assert run(clock, seconds, Screen(), monkeypatch) == ""


def test_a_long_step_shows_the_time_left_and_cleans_up(clock, monkeypatch):
    seen = run(clock, 20.0, Screen(), monkeypatch)
    assert "simulating:  10 %" in seen and "00:02 elapsed, 00:18 left" in seen  # first seen after two seconds
    assert seen.split("\r")[-1] == "" and seen.split("\r")[-2].strip() == ""  # the line is empty at the end


def test_a_log_stays_empty(clock, monkeypatch):
    assert run(clock, 20.0, io.StringIO(), monkeypatch) == ""


def test_bars_can_be_switched_off(clock, monkeypatch):
    assert run(clock, 20.0, Screen(), monkeypatch, show=False) == ""


def test_a_step_inside_of_a_step_moves_its_bar_and_shows_none(clock, monkeypatch):
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with Progress(10, "outer") as outer, outer.part(8):
        with Progress(4, "inner") as inner:
            for _ in range(2):
                clock(5.0)
                inner.update()
        assert outer._bar.n == pytest.approx(4.0)  # half of the inner step is half of its eight parts
        advance(6)
        assert outer._bar.n == pytest.approx(6.0)
    assert outer._bar.n == pytest.approx(8.0)
    assert "outer" in screen.getvalue() and "inner" not in screen.getvalue()


def test_a_fit_writes_nothing_to_a_log(base, pairs, capfd):
    recipe = Stack([candidates.Uncorrected(), candidates.FineTuned(steps=10)], folds=2, repeats=1)
    posterior = FMCPE(base, lambda theta: torch.randn(len(theta), 3), recipe=recipe).fit(*pairs, seed=0)
    posterior.sample_batched((10,), x=pairs[1])
    assert capfd.readouterr() == ("", "")
