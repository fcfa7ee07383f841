"""Importing, the command line, and what a run leaves behind."""

import logging
import subprocess
import sys

import pytest
import torch

import fmcpe
from fmcpe.cli import main


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_does_nothing():
    """No torch, no sbi, no output: names are imported when they are used."""
    assert python("import fmcpe, sys; print('torch' in sys.modules, 'sbi' in sys.modules)").split() == [
        "False",
        "False",
    ]


def test_the_zoo_is_found_without_an_import_of_its_own():
    assert python("from fmcpe import tasks; print(tasks.zoo.names()[0])") == "zoo/linear-none\n"


@pytest.mark.parametrize("command", [[], ["demo"], ["download"], ["init"], ["fit"], ["sample"], ["diagnose"]])
def test_help_does_not_wait_for_torch(command):
    out = python(
        f"import sys, fmcpe.cli\ntry: fmcpe.cli.main({[*command, '--help']})\nexcept SystemExit: pass\n"
        "assert not {'torch', 'sbi', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    assert all(name in out for name in ("demo", "download")) if not command else "usage: fmcpe " + command[0] in out


def test_the_package_runs_as_a_module():
    """Where the script is not on the path."""
    command = [sys.executable, "-m", "fmcpe"]
    version, nothing = (
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        for arguments in (["--version"], [])
    )
    assert (version.returncode, version.stdout) == (0, f"fmcpe {fmcpe.__version__}\n")
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("usage: fmcpe ")


def test_using_a_name_changes_only_what_sbi_changes():
    before_and_after = """
import logging, random, numpy, torch
import sbi.inference, sbi.utils.metrics
state = lambda: (torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled(),
                 torch.distributions.Distribution._validate_args, torch.get_num_threads(), random.getstate(),
                 numpy.random.get_state()[1].tolist(), logging.getLogger().level, logging.getLogger().handlers)
before = state()
import fmcpe, fmcpe.diagnostics.plots
[getattr(fmcpe, name) for name in fmcpe.__all__]
assert state() == before
"""
    python(before_and_after)


@pytest.mark.parametrize("module", [fmcpe, fmcpe.tasks])
def test_every_public_name_exists(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))
    assert callable(fmcpe.tasks.download)  # and not a module of that name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense


def test_the_demo_prints_a_table_and_draws_a_picture(tmp_path, capsys):
    options = ["--simulations", "1000", "--pairs", "20", "--test", "30", "--out", str(tmp_path)]
    before, handlers = torch.get_rng_state(), list(logging.getLogger().handlers)
    assert main(["demo", "offset", *options]) == 0
    out = capsys.readouterr().out
    for word in ("uncorrected", "corrected", "80 %", "90 %", "energy", "seconds"):
        assert word in out
    assert (tmp_path / "offset.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["offset.png"]
    assert torch.equal(before, torch.get_rng_state())
    assert logging.getLogger().handlers == handlers


def test_wrong_commands_say_what_to_type(capsys, tmp_path):
    assert main(["demo", "pendulums", "--out", str(tmp_path)]) == 2
    assert "pendulum" in capsys.readouterr().err
    assert main(["demo", "offset", "--pairs", "1", "--simulations", "200", "--out", str(tmp_path)]) == 2
    assert "at least 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
    assert list(tmp_path.iterdir()) == []
