"""Measured chamber data: reading a folder in the published layout, its split, and downloads that fail or do not."""

from __future__ import annotations

import contextlib
import hashlib
import io
import socket
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from fmcpe import tasks
from fmcpe.tasks.chambers import IMAGES, IMPULSES, Measurements

NUM_RUNS, NUM_IMAGES = 30, 20


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whoever opens a connection fails the test."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_impulses(root, columns=("hatch", "pressure_downwind"), rows=NUM_RUNS * 50, edit=lambda lines: lines):
    rng = np.random.default_rng(0)
    hatch = np.repeat(rng.integers(0, 451, NUM_RUNS) / 10, 50)
    hatch[:50], hatch[50:100] = 0.0, 45.05  # the stepper motor may pass a bound by less than a step
    values = {"counter": np.arange(len(hatch)), "hatch": hatch, "load_in": 0 * hatch}
    values["pressure_downwind"] = 96_000 + rng.normal(size=len(hatch)).round(2) + np.arange(len(hatch)) % 50
    names = ["counter", "load_in", *columns]
    lines = [",".join(names)] + [",".join(str(values[n][i]) for n in names) for i in range(rows)]
    folder = root / IMPULSES[0]
    folder.mkdir(parents=True)
    path = folder / f"{IMPULSES[1]}.csv"
    path.write_text("\n".join(edit(lines)) + "\n")
    return path, hatch.reshape(-1, 50), values["pressure_downwind"].reshape(-1, 50)


def write_images(root, size=64, columns=("red", "green", "blue", "pol_1", "pol_2", "image_file")):
    rng = np.random.default_rng(0)
    folder = root / IMAGES[0] / IMAGES[1]
    (folder / "images_64").mkdir(parents=True)
    values = {name: rng.integers(0, 256, NUM_IMAGES) for name in ("red", "green", "blue")}
    values |= {name: rng.integers(-1800, 1801, NUM_IMAGES) / 10 for name in ("pol_1", "pol_2")}
    values["pol_1"][0] = values["pol_2"][0]
    values["image_file"] = np.array([f"im_{i:02d}.png" for i in range(NUM_IMAGES)])
    pixels = rng.integers(0, 256, (NUM_IMAGES, size, size, 3), dtype=np.uint8)
    for name, image in zip(values["image_file"], pixels, strict=True):
        Image.fromarray(image).save(folder / "images_64" / name)
    lines = [",".join(columns)] + [",".join(str(values[n][i]) for n in columns) for i in range(NUM_IMAGES)]
    (folder / f"{IMAGES[1]}.csv").write_text("\n".join(lines) + "\n")
    return folder, values, pixels


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
    with pytest.raises(ValueError, match="has 12 for one seed"):
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
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        tasks.get("wind-tunnel", data=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=f"holds nothing, but {IMPULSES[0]}"):
        tasks.get("wind-tunnel", data=tmp_path)
    cases = {
        "no column 'pressure_downwind'": {"columns": ("hatch",)},
        "1499 rows that are not runs of 50": {"rows": 1499},
        "'x' in column 'hatch', line 3": {"edit": lambda lines: [*lines[:2], "1,0,x,96000", *lines[3:]]},
        "'nan' in column 'pressure_downwind', line 3": {"edit": lambda lines: [*lines[:2], "1,0,1,nan", *lines[3:]]},
        "breaks off in line 4": {"edit": lambda lines: [*lines[:3], "2,0"]},
        "one hatch position each": {"edit": lambda lines: [*lines[:2], "1,0,17,96000", *lines[3:]]},
        "hatch = 50": {"edit": lambda lines: [*lines[:51], *(f"{i},0,50.0,96000" for i in range(50))]},
        "no rows": {"edit": lambda lines: lines[:1]},
    }
    for number, (message, options) in enumerate(cases.items()):
        write_impulses(tmp_path / str(number), **options)
        with pytest.raises(ValueError, match=message):
            tasks.get("wind-tunnel", data=tmp_path / str(number))


def test_wrong_images_are_refused(tmp_path):
    write_images(tmp_path / "a", columns=("red", "green", "blue", "pol_1", "image_file"))
    with pytest.raises(ValueError, match="no column 'pol_2'"):
        tasks.get("light-tunnel", data=tmp_path / "a")
    write_images(tmp_path / "b", size=32)
    with pytest.raises(ValueError, match="32 by 32 pixels, but 64 by 64"):
        tasks.get("light-tunnel", data=tmp_path / "b").test_set(1, seed=0)
    folder, _, _ = write_images(tmp_path / "c")
    (folder / "images_64" / "im_03.png").write_bytes(b"not a picture")
    task = tasks.get("light-tunnel", data=tmp_path / "c")
    with pytest.raises(ValueError, match=r"im_03\.png is not a readable image"):
        task.test_set(8, seed=0), task.calibration_set(12, seed=0)
    (folder / "images_64" / "im_03.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 20 images .* 'im_03\.png'"):
        tasks.get("light-tunnel", data=tmp_path / "c")
    (folder / "images_64").rename(folder / "images_100")
    with pytest.raises(FileNotFoundError, match="images_64 is not there"):
        tasks.get("light-tunnel", data=tmp_path / "c")


class Reply:
    """What `requests` would return."""

    status_code = 200

    def __init__(self, content: bytes, fail_after: int | None = None):
        self.content, self.fail_after, self.headers = content, fail_after, {"content-length": str(len(content))}

    def iter_content(self, _size):
        yield self.content[: self.fail_after]
        if self.fail_after is not None:
            raise ConnectionResetError("the connection broke")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The causalchamber package with the network replaced: the archive it serves can be spoilt."""
    requests = pytest.importorskip("requests")
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip("causalchamber")
    write_impulses(tmp_path / "source")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "source").rglob("*.csv"):
            file.write(path, path.relative_to(tmp_path / "source"))
    state = {"archive": archive.getvalue(), "md5": hashlib.md5(archive.getvalue()).hexdigest(), "fail_after": None}

    def get(url, **_kwargs):
        if state["archive"] is None:
            raise requests.ConnectionError("no route to host")
        if url.endswith("directory.yaml"):
            return Reply(f"datasets:\n  {IMPULSES[0]}: {{url: https://x/wt.zip, md5: '{state['md5']}'}}".encode())
        return Reply(state["archive"], state["fail_after"])

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(requests, "head", get)
    for name in [name for name in sys.modules if name.startswith("causalchamber.datasets")]:
        monkeypatch.delitem(sys.modules, name)  # its list of data sets is fetched on import
    yield state
    for name in [name for name in sys.modules if name.startswith("causalchamber.datasets")]:
        del sys.modules[name]


def test_download_announces_fetches_and_checks(server, tmp_path, capsys):
    said: list[str] = []
    folder = tasks.download("wind-tunnel", tmp_path / "data", say=said.append)
    assert folder == tmp_path / "data" / IMPULSES[0]
    assert f"Fetching {IMPULSES[0]}" in said[0]
    assert f"https://x/wt.zip ({len(server['archive']) / 1e6:.1f} MB)" in said[0]
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == [IMPULSES[0]]
    assert tasks.get("wind-tunnel", data=tmp_path / "data").calibration_set(3, seed=0)[1].shape == (3, 50)
    server["archive"] = None  # what is there is not fetched again
    assert tasks.download("wind-tunnel", tmp_path / "data") == folder
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("spoil", ["checksum", "interrupted", "not an archive", "other folder"])
def test_failed_downloads_leave_nothing(server, tmp_path, spoil):
    if spoil == "checksum":
        server["md5"] = "0" * 32
    elif spoil == "interrupted":
        server["fail_after"] = 100
    elif spoil == "not an archive":
        server |= {"archive": b"<html>", "md5": hashlib.md5(b"<html>").hexdigest()}
    else:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("something/else.csv", "a\n")
        server |= {"archive": archive.getvalue(), "md5": hashlib.md5(archive.getvalue()).hexdigest()}
    with pytest.raises(RuntimeError, match="Nothing was kept"):
        tasks.download("wind-tunnel", tmp_path / "data", say=lambda _text: None)
    assert list((tmp_path / "data").iterdir()) == []


def test_downloads_without_network_or_package_say_so(server, tmp_path, monkeypatch):
    server["archive"] = None
    with pytest.raises(ConnectionError, match="a network was expected"):
        tasks.download("wind-tunnel", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(ValueError, match="no measurements to download for 'pendulum'"):
        tasks.download("pendulum", tmp_path)
    monkeypatch.setitem(sys.modules, "causalchamber", None)
    with pytest.raises(ImportError, match=r"fmcpe\[chambers\]"):
        tasks.download("wind-tunnel", tmp_path / "data")
