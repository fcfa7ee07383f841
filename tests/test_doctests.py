"""The examples of the docstrings, which the API reference shows, run and print what they say."""

import doctest
import importlib
import pkgutil
import warnings

import pytest
import torch

import fmcpe
from fmcpe import candidates, tasks

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(fmcpe.__path__, "fmcpe.") if not module.name.endswith("__main__")
)
WITHOUT = {"FMCPEWarning", "Paper", *fmcpe._MODULES}  # `paper_settings` shows a Paper; modules show what is in them


def examples(name):
    """Docstrings of a module that have examples."""
    module = importlib.import_module(name)
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module, name) if test.examples]


FOUND = [test for name in MODULES for test in examples(name)]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What examples may use without saying where it comes from: the `offset` task and a posterior fitted to it."""
    task, fast = (
        tasks.get("offset"),
        fmcpe.Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()]),
    )
    base = fmcpe.train_npe(task.simulator, task.prior, 2000, seed=0, max_num_epochs=10, show_progress_bars=False)
    theta_cal, y_cal = task.calibration_set(30, seed=0)
    theta_test, y_test = task.test_set(50, seed=0)
    posterior = fmcpe.FMCPE(base, task.simulator, recipe=fast).fit(theta_cal, y_cal, seed=0, show_progress_bars=False)
    return {
        "fmcpe": fmcpe, "torch": torch, "base": base, "simulator": task.simulator, "prior": task.prior, "fast": fast,
        "theta_cal": theta_cal, "y_cal": y_cal, "theta_test": theta_test, "y_test": y_test, "y_obs": y_test[0],
        "posterior": posterior, "folder": tmp_path_factory.mktemp("doctests"),
    }  # fmt: skip


@pytest.mark.parametrize("test", FOUND, ids=lambda test: test.name)
def test_an_example_prints_what_it_says(test, names):
    torch.manual_seed(0)
    test.globs = dict(names)
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fmcpe.FMCPEWarning)
        failures = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append).failed
    assert not failures, "".join(said)
    assert not any(doctest.SKIP in example.options for example in test.examples), (
        "An example that is skipped shows nothing."
    )


def test_public_names_have_an_example():
    shown = {name for test in FOUND for name in test.name.split(".")}
    assert set(fmcpe.__all__) - WITHOUT <= shown
