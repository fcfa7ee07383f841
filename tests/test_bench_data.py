"""Measured data in the experiments: from the command line through plan, workers and report."""

from concurrent.futures import Future
from dataclasses import replace

import pytest
from chamber_files import write_images, write_impulses

from fmcpe.bench.plan import plan
from fmcpe.bench.progress import Progress
from fmcpe.bench.results import Results
from fmcpe.bench.run import _Loop, run
from fmcpe.bench.store import Result, Store
from fmcpe.bench.units import Unit
from fmcpe.bench.work import perform, task_of
from fmcpe.cli import main
from fmcpe.tasks.chambers import fingerprint

METHODS = ("npe", "dpe", "fmcpe-paper", "reference")


@pytest.fixture
def folder(tmp_path):
    """Enough impulses for the smoke preset."""
    write_impulses(tmp_path / "data", runs=100)
    return tmp_path / "data"


def command(folder, out, *more):
    words = ["bench", "run", "main", "--preset", "smoke", "--task", "wind-tunnel", "--data", f"wind-tunnel={folder}"]
    return [*words, *(word for method in METHODS for word in ("--method", method)), "--out", str(out), *more]


def test_measured_data_go_through_plan_workers_and_report(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(command(folder, out, "--jobs", "1")) == 0
    results = Results.read(out)
    fits = results.done("main")
    assert {row.unit.data for row in fits} == {fingerprint(folder, "wind-tunnel")}
    assert {row.metrics["real_side"] for row in fits} == {"measured"}
    assert {row.unit.data for row in results.rows.values() if row.unit.kind == "base"} == {""}, (
        "simulations are simulations"
    )
    assert all("unknown" in row.metrics for row in fits if row.unit.method == "reference")
    assert main(["bench", "report", "--out", str(out), "--keep", str(tmp_path / "kept")]) == 0
    page, table = (out / "report.html").read_text(), (tmp_path / "kept" / "tables.txt").read_text()
    assert "wind-tunnel-measured, 10" in table and "stand-in" not in table
    assert f"wind-tunnel ({fingerprint(folder, 'wind-tunnel')})" in page
    assert "--data wind-tunnel=FOLDER" in page and str(folder) not in page, "no path of this machine"
    capsys.readouterr()
    folder.rename(tmp_path / "elsewhere")
    assert main(command(tmp_path / "elsewhere", out, "--jobs", "1")) == 0
    assert " 0 now" in capsys.readouterr().out, "the same data in another folder are the same units"


def test_workers_of_a_cluster_are_told_where_the_data_are(folder, tmp_path):
    distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")
    units = plan("main", "smoke", ["wind-tunnel"], ["dpe"], {"wind-tunnel": fingerprint(folder, "wind-tunnel")})
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        outcome = run(
            tmp_path / "run",
            {("main", "smoke"): units},
            dask=cluster.scheduler_address,
            data={"wind-tunnel": str(folder)},
        )
    assert (outcome.done, outcome.failed) == (len(units), 0)
    with Store(tmp_path / "run", read_only=True) as store:
        assert {row.metrics["real_side"] for row in store.rows().values()} == {"measured"}


def test_a_folder_goes_with_the_units_that_are_about_it(tmp_path):
    seen = []

    class Here:
        """A pool that does everything at once."""

        shared_fate = False

        def slots(self):
            return 1

        def submit(self, function, *arguments):
            future = Future()
            future.set_result(function(*arguments))
            return future

    def recording(unit, base=None, *folder):
        seen.append((unit.task, folder))
        return Result({}, 0.1, {}, {})

    units = [Unit("fit", "gaussian", "dpe", pairs=10), Unit("fit", "wind-tunnel", "dpe", pairs=10, data="0123")]
    with Store(tmp_path) as store:
        store.add("main", "smoke", units)
        _Loop(store, units, Here(), recording, Progress("test"), {"wind-tunnel": "folder"}).go()
    assert seen == [("gaussian", ()), ("wind-tunnel", ("folder",))]


def test_other_data_than_the_units_are_refused(folder, tmp_path):
    write_impulses(tmp_path / "other", runs=101)
    unit = Unit("fit", "wind-tunnel", "dpe", pairs=10, data=fingerprint(folder, "wind-tunnel"))
    assert task_of(unit, str(folder)).real_side == "measured"
    with pytest.raises(ValueError, match="Expected measured data with fingerprint"):
        perform(unit, None, str(tmp_path / "other"))
    with pytest.raises(ValueError, match="--data wind-tunnel=FOLDER"):
        perform(unit)


def test_a_fingerprint_is_of_the_content(tmp_path):
    write_images(tmp_path / "a")
    write_images(tmp_path / "b")
    first = fingerprint(tmp_path / "a", "light-tunnel")
    assert fingerprint(tmp_path / "b", "light-tunnel") == first
    image = next((tmp_path / "b").rglob("im_03.png"))
    (image.parent / ".DS_Store").write_bytes(b"0")
    assert fingerprint(tmp_path / "b", "light-tunnel") == first, "files that are no data do not count"
    content = bytearray(image.read_bytes())
    content[-20] ^= 1
    image.write_bytes(bytes(content))
    assert fingerprint(tmp_path / "b", "light-tunnel") != first, "a change of the same size is seen"


@pytest.mark.parametrize("experiment", ["timing", "sensitivity"])
def test_experiments_that_ask_for_more_than_was_measured_use_what_there_is(folder, experiment):
    """40 test impulses: fewer than are timed, and than `sensitivity` has test pairs."""
    data = {"wind-tunnel": fingerprint(folder, "wind-tunnel")}
    unit = next(u for u in plan(experiment, "smoke", ["wind-tunnel"], data=data) if u.pairs == 20 or u.method == "dpe")
    unit = replace(
        unit, method="dpe", evaluation=replace(unit.evaluation, test=60, timed=60 if experiment == "timing" else 0)
    )
    metrics = perform(unit, None, str(folder)).metrics
    assert metrics["inference_seconds"] > 0 if experiment == "timing" else metrics["test_pairs"] == 40


def test_data_that_no_unit_uses_are_refused(folder, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    data = f"wind-tunnel={folder}"
    for words in (["main", "--preset", "quick"], ["independence", "--preset", "smoke"]):
        assert main(["bench", "run", *words, "--data", data, *out]) == 2
        assert "Add --task wind-tunnel" in capsys.readouterr().err
    assert main(["bench", "run", "main", "--task", "wind-tunnel", "--data", data, "--data", data, *out]) == 2
    assert "Give --data wind-tunnel=FOLDER once" in capsys.readouterr().err
    with pytest.raises(ValueError, match="wind-tunnel or light-tunnel"):
        plan("main", "quick", ["pendulum"], [], {"pendulum": "abc"})
    (tmp_path / "readme.md").write_text("not a table")
    assert (
        main(["bench", "run", "main", "--task", "wind-tunnel", "--data", f"wind-tunnel={tmp_path / 'readme.md'}", *out])
        == 2
    )
    assert "column" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "nothing was begun"


@pytest.mark.parametrize("word", ["wind-tunnel", "pendulum=folder", "wind-tunnel=", "=folder"])
def test_wrong_words_are_refused(word, tmp_path, capsys):
    assert main(["bench", "run", "main", "--data", word, "--out", str(tmp_path)]) == 2
    assert "Expected --data TASK=FOLDER" in capsys.readouterr().err
    assert main(["bench", "run", "main", "--data", "wind-tunnel=nowhere", "--out", str(tmp_path)]) == 2
    assert "nowhere, which does not exist. Pass data=" in capsys.readouterr().err
