"""BayesFlow 2 approximators as base posteriors, with the torch backend."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import PRIOR

from fmcpe import FMCPEWarning
from fmcpe.base_posteriors.bayesflow import from_bayesflow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def installed():
    if importlib.util.find_spec("bayesflow") is None:
        pytest.skip("bayesflow is not installed: pip install 'fmcpe[bayesflow]'")


@pytest.fixture(scope="module")
def found(installed, tmp_path_factory):
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path_factory.mktemp("bayesflow")
    environment = os.environ | {
        "KERAS_BACKEND": "torch", "KERAS_HOME": str(folder), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(HERE / "bayesflow_check.py")],
        capture_output=True, text=True, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("FOUND"))


@pytest.mark.slow
def test_draws_and_densities(found):
    assert (found["backend"], found["kind"]) == ("torch", "BayesFlowBase")
    assert (found["names"], found["data"]) == (["gain", "mass"], "x")
    assert found["inside"] and found["repeats"] and found["explicit"] == [2, 2, 2]
    # θ_0 is measured directly with noise 0.3, θ_1 with 0.075
    assert found["means"] == [pytest.approx([0.5, 0.5], abs=0.2), pytest.approx([-1.0, 0.15], abs=0.2)]
    assert found["masses"] == pytest.approx([1, 1], abs=0.08)


@pytest.mark.slow
def test_gradients_are_on_where_we_need_them(found):
    """BayesFlow has switched them off: fits train all the same, and leave the process as BayesFlow wants it."""
    assert not found["gradients_after_import"] and not found["gradients_after_fit"]
    assert found["energy"][1] < 0.7 * found["energy"][0]
    assert found["train_npe"]
    assert found["parameters"] == ["gain", "mass"] and len(found["log_prob"]) == 3


@pytest.mark.slow
def test_files_and_errors(found):
    assert "posterior=" in found["save_says"] and found["loads"]
    assert "prior=BoxUniform" in found["without_prior"]
    assert "over 2 parameter(s) (gain, mass)" in found["wrong_prior"]


@pytest.mark.nightly
def test_the_page_runs(installed, tmp_path):
    page = (HERE.parent / "docs" / "tutorials" / "bayesflow.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M))
    (tmp_path / "page.py").write_text(code + "\nassert posterior.names == base.names\n")
    paths = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "page.py"], capture_output=True, text=True, cwd=tmp_path, check=False,
        env=os.environ | {"PYTHONPATH": paths, "KERAS_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Corrected posterior of amplitude, rate" in done.stdout
    assert "no density estimator to fine-tune" in done.stdout


def test_approximators_that_ignore_the_seed_are_warned_of():
    class Before:  # as in BayesFlow 2.0.10
        def sample(self, *, num_samples, conditions, **options): ...
        def log_prob(self, data): ...

    class Now(Before):
        def sample(self, *, num_samples, conditions, seed=None, **options): ...

    with pytest.warns(FMCPEWarning, match=r"2\.0\.11"):
        from_bayesflow(Before(), PRIOR, ["gain", "mass"], "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_bayesflow(Now(), PRIOR, ["gain", "mass"], "x")


def test_importing_fmcpe_does_not_import_bayesflow():
    script = "import sys, fmcpe; fmcpe.as_base_posterior; sys.exit(bool({'bayesflow', 'keras'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
