"""``fmcpe init``, ``fit``, ``sample`` and ``diagnose``: the examples of their help, end to end, and answers to wrong input."""

import argparse
import pickle
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PRIOR, simulate

import fmcpe
from fmcpe import CorrectedPosterior, Stack, candidates
from fmcpe import method as method_module
from fmcpe.cli import COMMANDS, main, parser
from fmcpe.io.pairs import read_observations
from fmcpe.io.tables import read_table

FEW = ["--num-simulations", "1000"]
FIT = ["fit", "--prior", "prior.toml", "--calibration", "pairs.csv"]
SIMULATOR = ["--simulator", "model.py:simulate"]


@pytest.fixture(scope="module", autouse=True)
def small_stack():
    """What is tested is what is read, said and written; `test_the_example_is_a_good_one` tests how good it is."""
    few = [candidates.Uncorrected(), candidates.ResidualShift(), candidates.JointFlow(steps=2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method_module, "_as_recipe", lambda given: given if given != "default" else Stack(few, 2, 1))
        yield


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example folder with a fitted model, made by the examples of the help."""
    place = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(shlex.split(COMMANDS["init"].EXAMPLES[0])[1:]) == 0
        patch.chdir(place / "thermometer")
        assert main([*shlex.split(COMMANDS["fit"].EXAMPLES[0])[1:], *FEW]) == 0
    return place / "thermometer"


@pytest.fixture
def folder(example, tmp_path, monkeypatch):
    """A copy of it, as the working directory."""
    shutil.copytree(example, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def every_parser(whole):
    yield whole
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from every_parser(each)


def test_every_help_ends_with_an_example_that_is_understood(monkeypatch):
    for command in COMMANDS.values():
        monkeypatch.setattr(command, "run", lambda options: 0)
    found = list(every_parser(parser()))
    assert len(found) > 12
    for each in found:
        text = each.format_help()
        assert re.search(r"^examples?:\n  fmcpe ", text, re.M), each.prog
        for line in re.findall(r"^  (fmcpe .*)$", text, re.M):
            assert main(shlex.split(line)[1:]) == 0, line


def test_the_next_commands_that_init_prints_are_those_of_the_help(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "there"]) == 0
    said = capsys.readouterr().out
    for name in ("fit", "sample", "diagnose"):
        assert COMMANDS[name].EXAMPLES[0] in said
        assert COMMANDS[name].EXAMPLES[0] in (tmp_path / "there" / "README.md").read_text()
    assert (tmp_path / "there" / "pairs.csv").read_text() == (example / "pairs.csv").read_text()
    assert main(["init", "there"]) == 2
    assert "Expected a new folder, got there" in capsys.readouterr().err


def test_the_example_of_sample_runs_and_names_the_observation_that_is_out_of_range(folder, capsys):
    assert main(shlex.split(COMMANDS["sample"].EXAMPLES[0])[1:]) == 0
    out = capsys.readouterr().out
    assert "1 of 6 observation(s) are out of range (fahrenheit; p < 0.001" in out
    assert [line.split()[0] for line in out.splitlines()[1:7]] == [*(f"run-{k}" for k in range(1, 6)), "fahrenheit"]
    table = read_table("draws.csv")
    parameters = ["bath_temperature", "time_constant"]
    assert list(table.columns) == ["observation", "draw", *parameters, "p_value", "out_of_range"]
    assert len(table.text("observation")) == 6 * 1000
    truth = read_table("truth.csv").numbers("bath_temperature")
    medians = np.median(table.numbers("bath_temperature").reshape(6, 1000), axis=1)
    assert np.abs(medians - truth)[:5].max() < 8  # the prior's range is 60


def test_the_example_of_diagnose_runs(folder, capsys):
    assert main(shlex.split(COMMANDS["diagnose"].EXAMPLES[0])[1:]) == 0
    out = capsys.readouterr().out
    assert "report.html" in out and "bath_temperature" in out
    assert "<html" in (folder / "report.html").read_text() and (folder / "report.json").is_file()


def test_diagnose_writes_the_report_of_the_posterior(folder, capsys, monkeypatch):
    def report(self, path):
        path.write_text(", ".join(self.names))
        return path

    monkeypatch.setattr(CorrectedPosterior, "report", report, raising=False)
    assert main(["diagnose", "model.fmcpe", "--out", "r.html"]) == 0
    assert (folder / "r.html").read_text() == "bath_temperature, time_constant"
    assert main(["diagnose", "model.fmcpe", "--out", "r.pdf"]) == 2
    assert "Try --out report.html" in capsys.readouterr().err


def test_fit_says_what_it_will_run_and_keeps_names_and_columns(example, folder, capsys):
    np.random.seed(7)  # the simulator draws from numpy's global generator
    assert main([*FIT, *SIMULATOR, *FEW, "--out", "again.fmcpe"]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no bars in a log
    assert "Simulations that will be run: 1000 to train the base posterior, then 2640 for the correction" in out
    assert out.index("will be run") < out.index("Training")
    assert "bath_temperature: uniform, low 30, high 90 °C" in out and "40 pairs of shape (12,) from pairs.csv" in out
    posterior = fmcpe.load("again.fmcpe")
    assert posterior.names == ("bath_temperature", "time_constant")
    assert posterior.record.data_names[:2] == ("T_2s", "T_4s")
    # the same seed gives the same model, numpy's generator in the simulator included
    y = read_observations("observations.csv", posterior.record.data_names, (12,))[1][0]
    assert torch.equal(posterior.sample((5,), x=y, seed=0), fmcpe.load("model.fmcpe").sample((5,), x=y, seed=0))


@pytest.mark.parametrize("ending", ["npz", "nc", "csv"])
def test_draws_are_written_in_three_formats(folder, capsys, ending):
    if ending == "nc":
        pytest.importorskip("h5netcdf")
    assert main(["sample", "model.fmcpe", "--observations", "observations.csv", "-n", "7", "--out", f"d.{ending}"]) == 0
    assert f"Draws: d.{ending}, 7 for each of 6" in capsys.readouterr().out
    assert (folder / f"d.{ending}").stat().st_size > 0


def test_simulations_in_place_of_the_simulator(folder, capsys):
    rng = np.random.default_rng(0)
    theta = rng.uniform((30, 4), (90, 15), (1500, 2))
    from fmcpe.cli.sources import find_simulator

    textbook = find_simulator("model.py:simulate")
    x = textbook(theta)
    x[3] = np.nan
    np.savez("sims.npz", theta=theta, x=x)
    assert main([*FIT, "--simulations", "sims.npz", "--out", "s.fmcpe"]) == 0
    out = capsys.readouterr().out
    assert "0 to train the base posterior, then 0 for the correction" in out and "1500 existing simulations" in out
    assert "joint_flow           not fitted: it needs a simulator" in out
    assert "Note: Expected a simulator or paired simulations" in out and "1 of 1500 simulations that failed" in out
    pairs = read_table("pairs.csv")
    at_pairs = np.stack([pairs.numbers(name) for name in ("bath_temperature", "time_constant")], axis=1)
    np.savez("at.npz", x=textbook(at_pairs))
    assert main([*FIT, "--simulations", "sims.npz", "--paired-simulations", "at.npz", "--out", "p.fmcpe"]) == 0
    assert "not fitted" not in capsys.readouterr().out
    np.savez("at.npz", x=textbook(at_pairs)[:9])
    assert main([*FIT, "--simulations", "sims.npz", "--paired-simulations", "at.npz"]) == 2
    assert "one simulation for each of 40 pairs in at.npz, got 9" in capsys.readouterr().err


def test_an_sbi_posterior_needs_trust(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with open("posterior.pkl", "wb") as file:
        pickle.dump(base, file)
    torch.manual_seed(0)
    theta = PRIOR.sample((20,))
    rows = np.concatenate([theta.numpy(), simulate(theta).numpy() + 0.5], axis=1)
    np.savetxt("pairs.csv", rows, delimiter=",", header="offset,gain,a,b,c", comments="")
    fit = ["fit", "--posterior", "posterior.pkl", "--calibration", "pairs.csv", "--names", "offset,gain"]
    assert main(fit) == 2
    assert "can run any code" in capsys.readouterr().err
    with open("other.pkl", "wb") as file:
        pickle.dump({"theta": 1}, file)
    assert main(["fit", "--posterior", "other.pkl", "--trust-pickle", "--calibration", "pairs.csv"]) == 2
    assert "in other.pkl, got a dict" in capsys.readouterr().err
    assert main([*fit, "--trust-pickle"]) == 0
    np.savetxt("y.csv", rows[:2, 2:], delimiter=",", header="a,b,c", comments="")
    sample = ["sample", "model.fmcpe", "--observations", "y.csv", "-n", "5"]
    assert main([*sample, "--posterior", "posterior.pkl", "--trust-pickle"]) == 0
    assert "offset [90 % interval]" in capsys.readouterr().out
    assert main([*sample, "--posterior", "posterior.pkl"]) == 2
    assert "--trust-pickle" in capsys.readouterr().err


def test_series_get_an_embedding_by_their_shape(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prior.toml").write_text('[rate]\ndistribution = "loguniform"\nlow = 0.1\nhigh = 2.0\n')
    (tmp_path / "model.py").write_text(
        "import numpy as np\nT = np.linspace(0, 5, 60)\n"
        "def simulate(theta):\n    x = np.exp(-np.asarray(theta) * T)\n    return x + 0.05 * np.random.normal(size=x.shape)\n"
    )
    theta = np.exp(np.random.default_rng(0).uniform(np.log(0.1), np.log(2), (20, 1)))
    np.savez("pairs.npz", theta=theta, y=np.exp(-theta * np.linspace(0, 5, 60)) + 0.1)
    fit = ["fit", "--prior", "prior.toml", "--calibration", "pairs.npz", *SIMULATOR, "--num-simulations", "600"]
    assert main(fit) == 0
    embedding = fmcpe.load("model.fmcpe").shared.base.embedding
    assert any(isinstance(layer, torch.nn.Conv1d) for layer in embedding.modules())
    assert main([*fit, "--embedding", "none"]) == 0
    assert fmcpe.load("model.fmcpe").shared.base.embedding is None
    np.savez("y.npz", y=np.exp(-0.5 * np.linspace(0, 5, 60)) + 0.1)
    assert main(["sample", "model.fmcpe", "--observations", "y.npz", "-n", "50"]) == 0
    assert "rate [90 % interval]" in capsys.readouterr().out


def test_the_python_of_the_tutorial_does_the_same(folder, monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "docs" / "own-data.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.syspath_prepend(str(folder))
    exec(compile(block.replace("10_000", "600"), "own-data.md", "exec"), {})
    assert "bath_temperature in °C [90 % interval]" in capsys.readouterr().out
    assert fmcpe.load("model.fmcpe").names == ("bath_temperature", "time_constant")
    assert read_table("draws.csv").text("observation")[-1] == "3"


WRONG = {
    "no source": ([], [], ["--simulator FILE.py:FUNCTION", "fmcpe init"]),
    "no such file": (["--simulator", "modell.py:simulate"], [], ["modell.py", "does not exist"]),
    "no colon": (["--simulator", "model.py"], [], ["FILE.py:FUNCTION", "'model.py'", "--simulator model.py:simulate"]),
    "no function": (["--simulator", "model.py:simulat"], [], ["'simulat' in model.py", "it has simulate"]),
    "an error in the file": (SIMULATOR, [("model.py", "import numpy", "import numpi")], ["model.py", "numpi"]),
    "other shape": (
        SIMULATOR,
        [("model.py", "25.0", "21.0")],
        ["(10,) from model.py:simulate", "(12,) from pairs.csv", "T_2s"],
    ),
    "fails": (SIMULATOR, [("model.py", "np.asarray(theta)", "1 / 0")], ["fails at all", "ZeroDivisionError"]),
    "another error": (
        SIMULATOR,
        [("model.py", "np.asarray(theta)", "{}['key']")],
        ["KeyError: 'key' (line ", "of model.py)"],
    ),
    "no argument": (
        SIMULATOR,
        [("model.py", "simulate(theta)", "simulate()")],
        ["takes 0 positional", "def simulate(theta)"],
    ),
    "outside the prior": (
        SIMULATOR,
        [("pairs.csv", "68.22", "168.22")],
        ["pairs.csv", "bath_temperature = 168.22 in line 2"],
    ),
    "not a number": (SIMULATOR, [("pairs.csv", "23.58", "hot")], ["pairs.csv", "'T_2s'", "'hot' in line 2", "12.5"]),
    "no column": (SIMULATOR, [("pairs.csv", "time_constant", "tau")], ["pairs.csv", "no 'time_constant'", "tau"]),
    "no prior key": (SIMULATOR, [("prior.toml", "low = 30.0", "")], ["prior.toml", "[bath_temperature]", "low = 0.0"]),
    "exits": (
        SIMULATOR,
        [("model.py", "TIMES =", "raise SystemExit(3)\nTIMES =")],
        ["model.py", "SystemExit: 3", "__main__"],
    ),
    "names twice": ([*SIMULATOR, "--names", "a,b"], [], ["no --names beside --prior", "a,b"]),
    "share": ([*SIMULATOR, "--max-failed", "5"], [], ["--max-failed between 0 and 1", "got 5"]),
    "reserved name": (SIMULATOR, [("prior.toml", "time_constant", "draw")], ["'draw'", "prior.toml", "draw_0"]),
    "no folder": ([*SIMULATOR, "--out", "none/m.fmcpe"], [], ["none/m.fmcpe", "Create the folder"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_answered_before_anything_runs(folder, capsys, case):
    arguments, changes, words = WRONG[case]
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))
    before = (folder / "model.fmcpe").read_bytes()
    assert main([*FIT, *FEW, *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("fmcpe fit: Expected") and all(word in err for word in words), err
    assert "Training" not in out and (folder / "model.fmcpe").read_bytes() == before


def test_a_single_pair_is_refused_before_anything_runs(folder, capsys):
    lines = (folder / "pairs.csv").read_text().splitlines()
    (folder / "pairs.csv").write_text("\n".join(lines[:2]))
    assert main([*FIT, *FEW, *SIMULATOR]) == 2
    out, err = capsys.readouterr()
    assert not out and "Expected 2 or more pairs in pairs.csv" in err


def test_init_answers_a_file_and_a_negative_seed(folder, capsys):
    for arguments, words in (
        (["model.py"], "which is a file"),
        (["new", "--seed", "-1"], "Expected a seed of at least 0"),
    ):
        assert main(["init", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_wrong_observations_are_answered(folder, capsys):
    for arguments, words in (
        (["--observations", "nowhere.csv"], ["nowhere.csv", "does not exist"]),
        (["--observations", "truth.csv"], ["truth.csv", "no 'T_2s'", "T_2s,T_4s"]),
        (["--observations", "observations.csv", "--out", "none/draws.csv"], ["none/draws.csv", "Create the folder"]),
        (["--observations", "observations.csv", "--out", "draws.xlsx"], [".csv, .npz or .nc"]),
        (["--observations", "observations.csv", "-n", "0"], ["-n of at least 1"]),
    ):
        assert main(["sample", "model.fmcpe", *arguments]) == 2
        out, err = capsys.readouterr()
        assert all(word in err for word in words), err
        assert not out, "nothing is drawn before the input is known to be right"
    assert main(["sample", "pairs.csv", "--observations", "observations.csv"]) == 2
    assert "pairs.csv" in capsys.readouterr().err
