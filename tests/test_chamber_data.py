"""Measured chamber data: reading a folder in the published layout, and its split."""

from __future__ import annotations

import socket
import sys

import numpy as np
import pytest
import torch
from chamber_files import write_images, write_impulses

from fmcpe import tasks
from fmcpe.tasks.chambers import IMAGES, IMPULSES, Measurements


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whoever opens a connection fails the test."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_measured_impulses_are_what_is_in_the_file(tmp_path):
    path, hatch, pressure = write_impulses(tmp_path)
    before = set(sys.modules)
    for place in (tmp_path, path.parent, path):
        task = tasks.get("wind-tunnel", data=place)
        assert task.real_side == "measured"
        theta, y = task.calibration_set(18, seed=0)
        test_theta, test_y = task.test_set(12, seed=0)
        rows = torch.cat([torch.cat([theta, test_theta]), torch.cat([y, test_y])], 1)
        expected = torch.tensor(np.concatenate([hatch[:, :1].clip(0, 45), pressure - pressure[:, :1]], 1)).float()
        assert sorted(rows.tolist()) == sorted(expected.tolist())
    assert not any(name.startswith("causalchamber") for name in set(sys.modules) - before)
    assert task.prior.support.check(theta).all()
    assert "measured" in task.plot().get_suptitle()
    assert task.simulator(theta).shape == y.shape
    assert task.reference_posterior(y[0], side="simulator").sample((5,)).shape == (5, 1)
    with pytest.raises(NotImplementedError, match="no reference posterior on the real side"):
        task.reference_posterior(y[0])
    with pytest.raises(NotImplementedError, match="calibration_set"):
        task.observe(theta)
    with pytest.raises(ValueError, match=r"^Expected at most 12 test pairs.*, got n=13\. Pass n=12"):
        task.test_set(13, seed=0)


def test_measured_images_are_what_is_in_the_folder(tmp_path):
    folder, values, pixels = write_images(tmp_path)
    for place in (tmp_path, tmp_path / IMAGES[0], folder):
        task = tasks.get("light-tunnel", data=place)
        theta, y = task.calibration_set(12, seed=1)
        assert y.shape == (12, 64, 64, 3)
        assert y.dtype == torch.float32
        for row, image in zip(theta, y, strict=True):
            i = int((torch.tensor(pixels[:, 0, 0]) / 255 - image[0, 0]).abs().sum(1).argmin())
            assert torch.equal(image, torch.tensor(pixels[i]) / 255)
            alpha = np.cos(np.deg2rad(values["pol_1"][i] - values["pol_2"][i])) ** 2
            expected = [float(values[c][i]) for c in ("red", "green", "blue")] + [alpha]
            assert row.tolist() == pytest.approx(expected, abs=1e-5)
    assert task.prior.support.check(theta).all()
    assert "measured" in task.plot().get_suptitle()


@pytest.mark.parametrize(("total", "pools", "tests"), [(5000, 3, 2000), (10_000, 6, 4000)])
def test_measured_sets_are_nested_and_never_overlap(total, pools, tests):
    measured = Measurements("some/impulses.csv", torch.arange(float(total))[:, None], lambda rows: rows)
    moved = Measurements("elsewhere/impulses.csv", measured.theta, measured.read)
    calibration = [measured.pairs(1000, "calibration", seed)[1] for seed in range(pools)]
    test = [measured.pairs(tests, "test", seed)[1] for seed in range(3)]
    assert len(torch.cat([*calibration, test[0]]).unique()) == total
    assert all(set(rows.tolist()) == set(test[0].tolist()) for rows in test)
    assert not torch.equal(test[0], test[1])
    again = measured.pairs(1000, "calibration", pools)[1]  # the same pool as seed 0, in another order
    assert set(again.tolist()) == set(calibration[0].tolist())
    assert not torch.equal(again[:20], calibration[0][:20])
    for n in (1, 10, 999):
        assert torch.equal(measured.pairs(n, "calibration", 2)[1], calibration[2][:n])
        assert torch.equal(moved.pairs(n, "calibration", 2)[1], calibration[2][:n])


def test_wrong_impulses_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^Expected the folder .+nowhere, which does not exist\. Pass"):
        tasks.get("wind-tunnel", data=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=rf"^Expected {IMPULSES[0]}.+, got nothing\. Pass"):
        tasks.get("wind-tunnel", data=tmp_path)
    cases = {
        "no column 'pressure_downwind'": {"columns": ("hatch",)},
        "impulses of 50 rows .*, got 1499 rows": {"rows": 1499},
        "number in column 'hatch', line 3 .*, got 'x'": {"edit": lambda lines: [*lines[:2], "1,0,x,96000", *lines[3:]]},
        "number in column 'pressure_downwind', line 3 .*, got 'nan'": {
            "edit": lambda lines: [*lines[:2], "1,0,1,nan", *lines[3:]]
        },
        "4 values in line 4 .*, got a truncated line": {"edit": lambda lines: [*lines[:3], "2,0"]},
        "one hatch position each": {"edit": lambda lines: [*lines[:2], "1,0,17,96000", *lines[3:]]},
        "hatch from 0 to 45 .*, got 50": {
            "edit": lambda lines: [*lines[:51], *(f"{i},0,50.0,96000" for i in range(50))]
        },
        "got a header without rows": {"edit": lambda lines: lines[:1]},
    }
    for number, (message, options) in enumerate(cases.items()):
        write_impulses(tmp_path / str(number), **options)
        with pytest.raises(ValueError, match=message):
            tasks.get("wind-tunnel", data=tmp_path / str(number))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_files_of_spreadsheets_are_read(tmp_path, newline):
    """They may start with a byte-order mark, have quotes, and end their lines otherwise."""
    path, _, _ = write_impulses(tmp_path, columns=("hatch", "pressure_downwind"), first_column="hatch")
    expected = tasks.get("wind-tunnel", data=tmp_path).test_set(12, seed=0)
    lines = path.read_text().splitlines()
    lines[0] = ",".join(f'"{name}"' for name in lines[0].split(","))
    path.write_bytes(newline.join(lines).encode("utf-8-sig"))
    assert path.read_bytes().startswith(b'\xef\xbb\xbf"hatch"')
    assert all(map(torch.equal, tasks.get("wind-tunnel", data=tmp_path).test_set(12, seed=0), expected))


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\x00", "hatch,pressure_downwind\n1,2\n".encode("utf-16")])
def test_files_that_are_no_text_are_refused(tmp_path, content):
    path, _, _ = write_impulses(tmp_path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^Expected a csv file in UTF-8, got .+\(byte 0 is 0x(89|ff)\)\. Save"):
        tasks.get("wind-tunnel", data=tmp_path)


def test_wrong_images_are_refused(tmp_path):
    write_images(tmp_path / "a", columns=("red", "green", "blue", "pol_1", "image_file"))
    with pytest.raises(ValueError, match="no column 'pol_2'"):
        tasks.get("light-tunnel", data=tmp_path / "a")
    write_images(tmp_path / "b", size=32)
    with pytest.raises(ValueError, match=r"^Expected 64 by 64 pixels, got 32 by 32"):
        tasks.get("light-tunnel", data=tmp_path / "b").test_set(1, seed=0)
    folder, _, _ = write_images(tmp_path / "c")
    (folder / "images_64" / "im_03.png").write_bytes(b"not a picture")
    task = tasks.get("light-tunnel", data=tmp_path / "c")
    with pytest.raises(ValueError, match=r"^Expected a readable image, got .+im_03\.png"):
        task.test_set(8, seed=0), task.calibration_set(12, seed=0)
    (folder / "images_64" / "im_03.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"got 1 of 20 images missing, the first 'im_03\.png'\. Unpack"):
        tasks.get("light-tunnel", data=tmp_path / "c")
    (folder / "images_64").rename(folder / "images_100")
    with pytest.raises(FileNotFoundError, match=r"images_64, got no such folder\. Unpack"):
        tasks.get("light-tunnel", data=tmp_path / "c")
