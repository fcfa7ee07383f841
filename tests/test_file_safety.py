"""Files from elsewhere: sizes that lie, damage, every format, mutations at random, and disks that fail."""

import argparse
import errno
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from file_edits import edit

import fmcpe
from fmcpe import _disk
from fmcpe.cli import init
from fmcpe.diagnostics.report import page

FILES = Path(__file__).parent / "files"
NEWEST = FILES / "format-7.fmcpe"
Y = torch.tensor([1.0, 0.5, 1.2])


def draws(path):
    return fmcpe.load(path).sample((4,), x=Y, seed=0)


def copied(path, to):
    to.write_bytes(path.read_bytes())
    return to


# ------------------------------------------------------------------ what a file says


@pytest.mark.parametrize("number", [5, 6, 7])
def test_stored_files_of_each_readable_format_give_the_draws_they_gave(number):
    """The bits of this version, and the moments, which no version may change: within Monte-Carlo error."""
    path, stored = FILES / f"format-{number}.fmcpe", json.loads((FILES / "draws.json").read_text())
    assert torch.allclose(draws(path), torch.tensor(stored["draws"]), atol=1e-4)
    many = fmcpe.load(path).sample((10_000,), x=Y, seed=1)
    std = torch.tensor(stored["std"])
    assert bool(((many.mean(0) - torch.tensor(stored["mean"])).abs() < 0.05 * std).all())
    assert bool(((many.std(0) / std).log().abs() < 0.05).all())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_older_formats_say_which_version_reads_them(number):
    with pytest.raises(fmcpe.FileError, match=rf"of format {number}\. Fit .* check out commit [0-9a-f]+"):
        fmcpe.load(FILES / f"format-{number}.fmcpe")


WRONG = {
    "x_shape": lambda m, t: m.update(x_shape=[100_000_000]),
    "x_shape of another network": lambda m, t: m.update(x_shape=[4]),
    "x_shape of two": lambda m, t: m.update(x_shape=[1000, 100_000]),
    "theta_dim": lambda m, t: m.update(theta_dim=3),
    "width of the flow": lambda m, t: m["base"]["flow"].update(hidden_features=5000),
    "transforms": lambda m, t: m["base"]["flow"].update(num_transforms=100_000_000),
    "dim": lambda m, t: m["posterior"]["inner"].update(dim=300_000_000),
    "ranges": lambda m, t: m["posterior"]["ranges"].__setitem__(0, [3, 3, 10**9]),
    "directions": lambda m, t: m["posterior"]["inner"]["inner"]["members"][-1].update(directions=[3, 4]),
    "degree": lambda m, t: m["posterior"]["inner"]["inner"]["members"][-1].update(degree=10**6),
    "members": lambda m, t: m["posterior"]["inner"]["inner"]["members"].pop(),
    "depth": lambda m, t: m["report"].update(history=json.loads("[" * 200 + "]" * 200)),
    "report": lambda m, t: m["report"].update(weights="none"),
    "not a number": lambda m, t: m["posterior"].update(half=float("nan")),
    "a tensor is gone": lambda m, t: t.pop("pool"),
    "another shape": lambda m, t: t.update(pool=t["pool"][:, :1].contiguous()),
    "another type": lambda m, t: t.update(pool=t["pool"].to(torch.uint8)),
    "a description that is no object": lambda m, t: m.update(base=[]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_sizes_are_refused_before_they_take_memory(what, tmp_path):
    path = edit(copied(NEWEST, tmp_path / "run.fmcpe"), WRONG[what])
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(fmcpe.FileError, match=r"^Expected .* got "):
        fmcpe.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "kB"
    assert time.process_time() - started < 10


def giant(content):
    """A file that is much longer than its tensors, most of it a hole."""
    return content, 600_000_000


def bomb(content):
    """A header of a million empty lists, which take twenty times their length in memory."""
    header = b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,0],"x":[' + b"[]," * 9_000_000 + b"0]}}"
    return len(header).to_bytes(8, "little") + header, 0


def manifest_bomb(content):
    """The same in the manifest, which is a text of the header; its brackets are escaped there."""
    text = '{"format":7,"x":[' + "[]," * 2_000_000 + "0]}"
    header = ('{"__metadata__":{"fmcpe":' + json.dumps(text).replace("[", "\\u005b") + "}}").encode()
    return len(header).to_bytes(8, "little") + header, 0


@pytest.mark.parametrize("make", [giant, bomb, manifest_bomb], ids=lambda make: make.__name__)
def test_long_files_are_refused_before_they_take_memory(make, tmp_path):
    path = tmp_path / "run.fmcpe"
    content, length = make(NEWEST.read_bytes())
    with path.open("wb") as file:
        file.write(content)
        file.truncate(max(length, len(content)))
    del content
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(fmcpe.FileError, match=r"^Expected a whole file .*(more or fewer bytes|more values)"):
        fmcpe.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "kB"


def test_networks_larger_than_their_weights_are_refused_while_they_are_built():
    """Numbers that each fit some tensor may still multiply to gigabytes: the budget stops them."""
    from fmcpe.serialization.limits import Budget

    with Budget({"a": torch.zeros(1000)}):
        torch.nn.Linear(100, 100)
        with pytest.raises(fmcpe.FileError, match="Expected networks as large"):
            torch.nn.Linear(100_000, 100_000)
        with pytest.raises(fmcpe.FileError, match="Expected networks as large"):
            torch.zeros(10**12)
        with pytest.raises(fmcpe.FileError, match="Expected networks as large"):
            [torch.nn.Linear(500, 500) for _ in range(10_000)]


def test_no_single_flip_changes_draws(tmp_path):
    content, path = NEWEST.read_bytes(), tmp_path / "run.fmcpe"
    rng = random.Random(0)
    for _ in range(200):
        place, bit = rng.randrange(len(content)), rng.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        with pytest.raises(fmcpe.FileError):
            fmcpe.load(path)


def fuzz(number, seed, *files):
    script = Path(__file__).parent / "fuzz_files.py"
    command = [sys.executable, str(script), str(number), str(seed), *map(str, files)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["bad"], found
    assert found["outcomes"]["damage FileError"] > 0.6 * number and found["slowest"] < 10
    assert found["grown_mb"] < 200, found  # beside torch and sbi, which take most of a process of 550 MB
    return found


def test_mutations_give_a_file_error_or_the_same_draws():
    fuzz(1000, 0, NEWEST)


@pytest.mark.nightly
def test_ten_thousand_mutations(posteriors, tmp_path):
    files = [posteriors(kind).save(tmp_path / f"{kind}.fmcpe") for kind in ("joint", "default", "npe", "rope")]
    fuzz(10_000, 1, NEWEST, *files)


# ------------------------------------------------------------------ disks


@pytest.fixture(scope="module")
def posterior():
    return fmcpe.load(NEWEST)


@pytest.mark.parametrize(
    ("call", "number"),
    [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EACCES), ("open", errno.EACCES)],
)
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_else(posterior, tmp_path, monkeypatch, call, number):
    path = copied(FILES / "format-6.fmcpe", tmp_path / "run.fmcpe")
    old, calls = path.read_bytes(), []
    real = getattr(os, call)

    def failing(*arguments):
        calls.append(arguments)
        if call == "write" and len(calls) == 1:
            return real(arguments[0], bytes(arguments[1])[:100])  # a nearly full disk takes a part first
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"fmcpe._disk.os.{call}", failing)
    with pytest.raises(OSError, match=rf"Expected to write .* {path}, got: .*Nothing was changed") as refused:
        posterior.save(path)
    assert refused.value.errno == number
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


WRITERS = {
    "run.fmcpe": lambda posterior, path: posterior.save(path),
    "draws.csv": lambda posterior, path: posterior.draws(20, x=Y).save(path),
    "draws.npz": lambda posterior, path: posterior.draws(20, x=Y).save(path),
    "report.html": lambda posterior, path: posterior.report(path),
    "example": lambda posterior, path: init.run(argparse.Namespace(folder=path, pairs=5, seed=0)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_whatever_is_written_a_full_disk_leaves_the_old_file_and_nothing_else(name, posterior, tmp_path, monkeypatch):
    path, calls = tmp_path / name, []
    monkeypatch.setattr(page, "gather", lambda *_, **__: SimpleNamespace(numbers=dict))
    monkeypatch.setattr(page, "html_of", lambda _: "a page")
    path.mkdir() if name == "example" else path.write_bytes(b"old")
    real = os.write

    def full(*arguments):
        calls.append(arguments)
        if name == "example" and len(calls) < 3:
            return real(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fmcpe._disk.os.write", full)
    with pytest.raises(OSError, match=r"Expected to write .*Nothing was changed. Free space"):
        WRITERS[name](posterior, path)
    monkeypatch.undo()
    assert [each.name for each in tmp_path.rglob("*")] == [name]
    assert name == "example" or path.read_bytes() == b"old"


def test_a_file_larger_than_the_system_allows(posterior, tmp_path):
    """A true refusal by the system, in the middle of the file."""
    path, child = tmp_path / "run.fmcpe", os.fork()
    if child == 0:
        status = 1
        try:
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
            posterior.save(path)
        except OSError as error:
            status = 0 if "Nothing was changed" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_read_only(posterior, tmp_path, monkeypatch):
    if os.geteuid() == 0:  # whom no permission stops

        def refusing(*_):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr("fmcpe._disk.os.open", refusing)
    else:
        tmp_path.chmod(0o555)
    with pytest.raises(OSError, match="choose a folder that you may write to"):
        posterior.save(tmp_path / "run.fmcpe")
    tmp_path.chmod(0o755)
    assert not list(tmp_path.iterdir())


def killed_at(step, posterior, path):
    """Save in a child that is killed with -9 at that call into the system; whether it got there."""
    child = os.fork()
    if child == 0:
        try:
            left = [step]

            def counted(real):
                def call(*arguments):
                    if left[0] == 0:
                        os.kill(os.getpid(), 9)
                    left[0] -= 1
                    return real(*arguments)

                return call

            for name in ("write", "fsync", "replace"):
                setattr(os, name, counted(getattr(os, name)))
            _disk.CHUNK = 1000
            posterior.save(path)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def test_a_kill_at_every_tenth_write_leaves_the_old_file(posterior, tmp_path):
    path = copied(FILES / "format-6.fmcpe", tmp_path / "run.fmcpe")
    old, new = path.read_bytes(), posterior.save(tmp_path / "new")
    steps, killed = new.stat().st_size // 1000 + 3, 0
    for step in [*range(0, steps, 10), *range(steps - 3, steps)]:
        killed += killed_at(step, posterior, path)
        assert path.read_bytes() == old
    assert killed >= steps // 10
    left = [each for each in tmp_path.iterdir() if each.suffix == ".tmp"]
    assert len(left) == killed
    for each in left:
        os.utime(each, (0, 0))  # as on the next day
    posterior.save(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "run.fmcpe"]
    assert torch.equal(draws(path), draws(new))


# ------------------------------------------------------------------ names that are no plain files


def test_a_link_keeps_its_place_and_its_target_is_written(posterior, tmp_path):
    target, link = tmp_path / "disk" / "run.fmcpe", tmp_path / "run.fmcpe"
    target.parent.mkdir()
    link.symlink_to(target)
    for _ in range(2):  # a target that is missing, and one that is there
        assert posterior.save(link) == link
        assert link.is_symlink() and target.is_file() and not target.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk", "run.fmcpe"]


@pytest.mark.parametrize(("kind", "make"), [("pipe", os.mkfifo), ("device", lambda path: path.symlink_to(os.devnull))])
def test_a_pipe_or_a_device_is_refused_and_stays(kind, make, posterior, tmp_path):
    path = tmp_path / "node"
    make(path)
    before = path.stat()
    with pytest.raises(ValueError, match=rf"^Expected a regular file, got a {kind} at .* Pass a file name\."):
        posterior.save(path)
    assert path.stat().st_mode == before.st_mode and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_its_permissions(mode, posterior, tmp_path):
    path, umask = copied(NEWEST, tmp_path / "run.fmcpe"), os.umask(0o022)
    path.chmod(mode)
    try:
        posterior.save(path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == mode


WRONG_PATHS = {
    "number": (3, TypeError, "Expected a file name, got 3. Pass text"),
    "nothing": (None, TypeError, "Expected a file name, got None. Pass text"),
    "long": ("a" * 300 + ".csv", OSError, "Expected a path .*, got aaa.* Pass another path"),
    "NUL": ("a\0b.csv", ValueError, r"Expected a file name, got 'a\\x00b.csv' .*\. Pass another name"),
}


@pytest.mark.parametrize("what", WRONG_PATHS)
def test_what_is_no_path_is_one_clear_error(what, posterior, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, error, words = WRONG_PATHS[what]
    for call in (posterior.save, fmcpe.load, posterior.draws(2, x=Y).save, posterior.report):
        with pytest.raises(error, match=words):
            call(path)
    assert not list(tmp_path.iterdir())


def test_a_long_name_that_the_disk_takes_is_written(posterior, tmp_path):
    assert posterior.save(tmp_path / ("a" * 255)).is_file()


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = copied(NEWEST, tmp_path / "run.fmcpe")

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refused)  # root may read all files
    with pytest.raises(
        PermissionError, match=rf"Expected a file that can be read, got {path} .*Change its permissions"
    ):
        fmcpe.load(path)
