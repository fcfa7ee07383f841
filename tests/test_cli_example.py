"""The example that ``fmcpe init`` writes, fitted as its help says."""

import shlex

import numpy as np
import pytest

import fmcpe
from fmcpe import baselines
from fmcpe.cli import COMMANDS, main
from fmcpe.cli.init import HIGH, LOW, real_readings


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_the_example_is_a_good_one(tmp_path, monkeypatch):
    """Errors fall to less than a third, and 90 % intervals hold about 90 % of new truths."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    assert main(shlex.split(COMMANDS["fit"].EXAMPLES[0])[1:]) == 0
    posterior = fmcpe.load("model.fmcpe")
    rng = np.random.default_rng(12345)
    theta = rng.uniform(LOW, HIGH, (300, 2))
    y = real_readings(theta, rng)
    before = baselines.NPE(posterior.shared.base).fit()
    draws = [p.sample_batched((200,), x=y, seed=0, show_progress_bars=False).numpy() for p in (before, posterior)]
    errors = [np.abs(np.median(d, axis=0) - theta).mean(0) for d in draws]
    assert bool((errors[1] < errors[0] / 3).all())
    low, high = np.quantile(draws[1], [0.05, 0.95], axis=0)
    covered = ((low <= theta) & (theta <= high)).mean(0)
    assert bool(((covered > 0.8) & (covered < 0.99)).all())
