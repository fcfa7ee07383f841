"""Options of tasks: from Python, from text, and those that make no sense."""

from __future__ import annotations

import inspect
import math
import typing

import pytest
import torch
from chamber_files import write_impulses

from fmcpe import tasks
from fmcpe.tasks.light_tunnel_model import Camera
from fmcpe.tasks.options import from_text


def options_of_type(kind) -> list[tuple[str, str]]:
    return [
        (name, option)
        for name in tasks.names()
        for option, parameter in inspect.signature(tasks.find(name), eval_str=True).parameters.items()
        if kind in (parameter.annotation, typing.get_origin(parameter.annotation))
    ]


def test_names_are_those_of_the_classes():
    assert all(tasks.find(name).name == name for name in tasks.names())
    assert {("gaussian-ci", "alpha"), ("gaussian-prior", "delta"), ("wind-tunnel-prior", "tau")} <= set(
        options_of_type(float)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "option"), options_of_type(float))
def test_numbers_that_are_none_are_refused(name, option, value):
    with pytest.raises(ValueError, match=f"{option}={value}"):
        tasks.get(name, **{option: value})


@pytest.mark.parametrize("value", [(0.0, math.inf), (math.nan, 1.0), (0.0, math.nan), (2.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize(("name", "option"), options_of_type(tuple))
def test_ranges_that_are_none_are_refused(name, option, value):
    with pytest.raises(ValueError, match=rf"^Expected a finite range .*, got {option}=\("):
        tasks.get(name, **{option: value})


def test_no_damping_is_a_range_and_one_amplitude_is_not():
    assert tasks.get("pendulum", damping_range=(0.0, 0.0)).damping_range == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"range 0 <= low < high, got amplitude_range=\(1\.0, 1\.0\)\. Pass"):
        tasks.get("pendulum", amplitude_range=(1.0, 1.0))


@pytest.mark.parametrize("constant", ["exposure", "blur", "dark", "shot", "read"])
def test_cameras_that_cannot_be_are_refused(constant):
    with pytest.raises(ValueError, match=f"{constant}=nan"):
        Camera(**{constant: math.nan})


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("wind-tunnel-prior", ["tau=0.5"], {"tau": 0.5}),
        ("gaussian-ci", ["alpha=2", "seed=3"], {"alpha": 2.0, "seed": 3}),
        ("gaussian-prior", ["delta=-1", "alpha=1e1"], {"delta": -1.0, "alpha": 10.0}),
        ("pendulum", ["omega_range=0.5,2", "noise_std=.2"], {"omega_range": (0.5, 2.0), "noise_std": 0.2}),
        ("offset", ["num_measurements=4"], {"num_measurements": 4}),
        ("gaussian", [], {}),
    ],
)
def test_options_from_text_are_those_of_python(name, text, options):
    read = from_text(tasks.find(name), text)
    assert read == options
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in options.items()}
    pairs = [tasks.get(name, **given).calibration_set(5, seed=0) for given in (read, options)]
    assert all(map(torch.equal, *pairs))


def test_data_from_text_are_a_path_with_any_sign_in_it(tmp_path):
    write_impulses(tmp_path / "a=b")
    read = from_text(tasks.find("wind-tunnel"), [f"data={tmp_path / 'a=b'}"])
    assert tasks.get("wind-tunnel", **read).real_side == "measured"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pendulum", "tau=1", r"'pendulum', got 'tau'\. Its options.* are omega_range \(0\.0,3\.0\), .*noise_std \(0\.1\)"),
        ("gaussian-ci", "data=somewhere", r"task 'gaussian-ci', got 'data'\. .* alpha \(1\.0\), seed \(0\)"),
        ("light-tunnel", "camera=1", r"got 'camera'\. .* are data \(PATH\)\."),  # no text makes a camera
        ("wind-tunnel-prior", "tau", r"got option 'tau' without a value\. Type tau=VALUE"),
        ("wind-tunnel-prior", "tau=much", r"^Expected a value like 1\.0 for option tau, got 'much'\. Type tau=1\.0"),
        ("wind-tunnel", "seed=1.5", r"a value like 0 for option seed, got '1\.5'"),
        ("pendulum", "omega_range=1", r"a value like 0\.0,3\.0 for option omega_range, got '1'"),
    ],
)  # fmt: skip
def test_wrong_texts_say_what_to_type(name, text, message):
    with pytest.raises(ValueError, match=message):
        from_text(tasks.find(name), [text])
