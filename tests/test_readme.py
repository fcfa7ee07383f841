"""The README's snippet runs as it is pasted, and corrects what it says it corrects."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from fmcpe._random import seeded
from fmcpe.cli import main

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.filterwarnings("ignore")
def test_the_snippet_of_the_readme_runs_when_pasted(tmp_path, monkeypatch, capsys):
    """Names are defined, files are written, and corrected draws are closer to the truth than uncorrected ones."""
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict = {}
    with seeded(0):
        exec(compile(snippet, str(README), "exec"), names)
    assert names["samples"].shape == (1000, 2)
    assert (tmp_path / "report.html").is_file() and (tmp_path / "run.fmcpe").is_file()
    assert "amplitude" in capsys.readouterr().out
    with seeded(1):
        theta = names["prior"].sample((50,))
        y = names["experiment"](theta)
    errors = {}
    for name in ("base", "posterior"):
        draws = fmcpe_draws(names[name], y)
        errors[name] = float((draws.mean(0) - theta).square().mean().sqrt())
    assert errors["posterior"] < 0.7 * errors["base"]


def test_the_numbers_of_the_readme_are_those_of_the_committed_results(capsys):
    root = README.parent
    spec = importlib.util.spec_from_file_location("zoo_numbers", root / "benchmarks" / "zoo_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(root / "docs/results/zoo/zoo.json"))
    out, text = capsys.readouterr().out.split("30 pairs or more")[0], README.read_text(encoding="utf-8")
    settings, problems, parameters = re.search(r"(\d+) settings of (\d+) problems, (\d+) parameters", out).groups()
    assert f"({settings} settings," in text and problems == "9" and f"of {parameters} parameters" in text
    mean, better, worse = re.search(r"mean ([\d.]+), .*\n  better in (\d+)%, .* in (\d+)%", out).groups()
    assert f"**{mean}**; better for {better} %, more than 5 % worse for {worse} %" in text
    for middle, low, high in re.findall(r"median ([\d.]+), .* percentile ([\d.]+) to ([\d.]+)", out):
        assert f"{middle}, {low}–{high}" in text
    table = (root / "docs/results/zoo/tables.txt").read_text(encoding="utf-8").split("reporting half")[1]
    shown = re.search(r"energy score, .* \| ([\d.]+) \| \*\*([\d.]+)\*\* \|", text).groups()
    for method, number in zip(("npe", "fmcpe"), shown, strict=True):
        assert re.search(rf"^{method} +36 +([\d.]+)", table, flags=re.MULTILINE)[1] == number


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
def test_the_coverage_below_the_picture_is_that_of_the_demo(tmp_path, capsys):
    """Within two points: other processors round differently."""
    text = README.read_text(encoding="utf-8")
    said = re.search(r"Before, (\d+) % and (\d+) % of .* after, (\d+) %\nand (\d+) %", text).groups()
    assert main(["demo", "--out", str(tmp_path)]) == 0
    shown = re.findall(r"(?:uncorrected|corrected) +\S+ +\S+ +(\d+)% (\d+)%", capsys.readouterr().out)
    assert [int(n) for row in shown for n in row] == pytest.approx([int(n) for n in said], abs=2)


def fmcpe_draws(posterior, y):
    """Draws (200, B, p); uncorrected ones may lie outside of the prior, where sbi's rejection loop would not end."""
    estimator = getattr(posterior, "posterior_estimator", None)
    if type(posterior).__name__ == "CorrectedPosterior":
        return posterior.sample_batched((200,), x=y, seed=0, show_progress_bars=False)
    with seeded(0), torch.no_grad():
        return estimator.sample((200,), condition=y)
