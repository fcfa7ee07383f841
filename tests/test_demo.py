"""``fmcpe demo`` on measured data, on a stand-in, and with options: what it prints and what its files say."""

from __future__ import annotations

import pytest
from chamber_files import write_impulses
from conftest import TINY
from PIL import Image

from fmcpe import method as method_module
from fmcpe import tasks
from fmcpe.cli import main
from fmcpe.tasks import plots

SHORT = ["--simulations", "200", "--pairs", "10", "--test", "12"]


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    """What is tested is what is said, not how well it is done."""
    method = method_module.FMCPE
    monkeypatch.setattr(method_module, "FMCPE", lambda *args, recipe: method(*args, recipe=TINY))


def demo(capsys, folder, *arguments):
    assert main(["demo", *arguments, *SHORT, "--out", str(folder)]) == 0
    (picture,) = folder.iterdir()
    return capsys.readouterr().out, picture


def description(picture) -> str:
    with Image.open(picture) as image:
        return image.text["Description"]


def test_measured_data_have_no_reference_row_and_no_note_on_it(tmp_path, capsys):
    write_impulses(tmp_path / "chambers")
    out, picture = demo(capsys, tmp_path / "out", "wind-tunnel", "--data", str(tmp_path / "chambers"))
    assert "reference" not in out
    assert "stand-in" not in out
    assert "real side: measured data" in out
    assert picture.name == "wind-tunnel-measured.png"
    assert description(picture) == "simulated data and measured data"


def test_a_stand_in_is_named_so_in_every_output(tmp_path, capsys):
    out, picture = demo(capsys, tmp_path / "out", "wind-tunnel", "--option", "seed=1")
    assert out.startswith("wind-tunnel-stand-in seed=1: training")
    assert "real side: a stand-in for real data" in out
    assert out.count("reference") == 2  # the row, and the note on it
    assert "(first 12 observations)" in out
    assert picture.name == "wind-tunnel-stand-in.png"
    assert description(picture) == "simulated data and a stand-in for real data"


def test_options_reach_the_task(tmp_path, capsys, monkeypatch):
    made = []
    get = tasks.get
    monkeypatch.setattr(tasks, "get", lambda name, **options: made.append(get(name, **options)) or made[-1])
    out, picture = demo(capsys, tmp_path / "out", "gaussian-prior", "--option", "delta=1", "--option", "alpha=2")
    assert (made[0].delta, made[0].alpha) == (1.0, 2.0)
    assert "stand-in" not in out
    assert picture.name == "gaussian-prior.png"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pendulum", "--data", "x"], "Expected an option of task 'pendulum', got 'data'."),
        (["wind-tunnel", "--data", "nowhere/at/all"], "got nowhere/at/all, which does not exist."),
        (["gaussian-ci", "--option", "alpha=nan"], "Expected a finite number, got alpha=nan."),
        (["gaussian-ci", "--option", "alpha"], "Type alpha=VALUE"),
        (["wind-tunnels", "--option", "tau=1"], "got 'wind-tunnels'. Try"),
    ],
)
def test_wrong_options_say_what_to_type(tmp_path, capsys, arguments, message):
    assert main(["demo", *arguments, *SHORT, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_task(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    out = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    assert ", ".join(tasks.names()) in out


def test_pictures_of_the_documentation_say_stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "names", lambda: ("wind-tunnel", "offset"))
    assert plots.main([str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["offset.png", "wind-tunnel-stand-in.png"]
    assert description(tmp_path / "wind-tunnel-stand-in.png") == "simulated data and a stand-in for real data"


@pytest.mark.parametrize("name", tasks.names())
def test_the_demo_works_for_each_task(name, tmp_path, capsys):
    arguments = ["--simulations", "200", "--pairs", "10", "--test", "3", "--out", str(tmp_path)]
    assert main(["demo", name, *arguments]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{tasks.get(name).label}.png"]
    assert ("stand-in" in capsys.readouterr().out) == (tasks.get(name).real_side == "stand-in")
