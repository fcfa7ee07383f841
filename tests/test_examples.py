"""Each example runs with a small budget, corrects the error it is about, and ends with its picture and its sentence."""

import importlib.util
import re
from pathlib import Path

import pytest

import fmcpe

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def test_the_four_examples_are_there():
    assert EXAMPLES == ["epidemic", "lens", "projectile", "thermometer"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_corrects_and_says_so(name, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--quick", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.png"]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    summary, sentence = capsys.readouterr().out.rsplit("\n\n", 1)
    assert summary.startswith("Corrected posterior")
    assert f"fmcpe {fmcpe.__version__})" in sentence and sentence.endswith(".\n")
    errors = re.findall(r"from ([\d.]+) to ([\d.]+)", sentence)
    assert len(errors) == 2
    assert all(float(after) < float(before) for before, after in errors), sentence
    after, other, before, former = map(int, re.findall(r"(\d+)%", sentence))
    assert after > before + 20 and other > former, sentence
