"""What is said of experiments that are partly done, and with which preset, from made-up numbers."""

import base64
import csv
import gzip
import io
import math
import re
import socket
import subprocess

import pytest
import torch
from bench_results import MACHINE, fill

from fmcpe import metrics
from fmcpe.bench import system, tables
from fmcpe.bench.claims import CLAIMS, Comparison, Verdict, _less
from fmcpe.bench.frontier import frontier_table, speed_table
from fmcpe.bench.keep import keep
from fmcpe.bench.plan import plan
from fmcpe.bench.report import SECTIONS, write_report
from fmcpe.bench.results import METRICS, Results
from fmcpe.bench.store import Store
from fmcpe.bench.units import titled
from fmcpe.bench.work import PACKAGE, versions
from fmcpe.cli import main

ALPHA = "gaussian-ci alpha=5.0"


def begun(unit):
    """The smaller sets of one task: what a run has early on."""
    return unit.task == "gaussian" and unit.pairs <= 10


@pytest.fixture
def partial(tmp_path):
    """Experiments that have begun, and one unit of `main` that failed."""
    fill(tmp_path, ["main", "frontier", "ablation"], wanted=begun)
    with Store(tmp_path) as store:
        failing = next(
            u for u in plan("main", "smoke") if u.task == "pendulum" and u.method == "rope" and u.pairs == 10
        )
        assert store.claim([failing.id])
        store.fail(failing.id, "ArithmeticError\n")
    return tmp_path


def test_a_verdict_says_by_how_much():
    """Ours over the other number: geometric mean and range; a difference of numbers that are not positive has no ratio."""
    assert _less(0.5, 1.0) == Comparison(True, 0.5) and _less(2.0, 1.0) == Comparison(False, 2.0)
    without = _less(-1e-4, 2e-4)
    assert without.agrees and math.isnan(without.ratio) and _less(math.nan, 1.0) is None
    verdict = Verdict(1, 3, ratios=(0.5, 2.0, 8.0))
    assert str(verdict) == "does not agree (1 of 3 comparisons; ratio 2 (0.5 to 8))"
    assert Verdict(1, 1, ratios=(0.5,)).by_how_much == "ratio 0.5"


def test_a_verdict_on_a_part_of_the_units_says_so_far(partial):
    assert str(Verdict(3, 3, "12 of 64 units done")) == "agrees so far (3 of 3 comparisons; 12 of 64 units done)"
    assert str(Verdict(0, 0, "12 of 64 units done")) == "not run (12 of 64 units done)"
    results = Results.read(partial)
    counts = results.so_far("main")
    assert re.fullmatch(r"\d+ of 70 units done, 1 failed", counts)
    beats = next(claim for claim in CLAIMS if "consistently outperforms" in claim.says)
    verdict = beats.verdict(results, "fmcpe")
    assert len(verdict.ratios) == 6 and max(verdict.ratios) < 1
    assert str(verdict) == f"agrees so far (6 of 6 comparisons; {verdict.by_how_much}; gaussian; {counts})"
    grows = next(claim for claim in CLAIMS if "All metrics decrease" in claim.says)
    assert grows.verdict(results, "fmcpe").of == 0
    fill(partial / "quick", ["main"], wanted=lambda unit: begun(unit) or unit.pairs == 50, preset="quick")
    verdict = grows.verdict(Results.read(partial / "quick"), "fmcpe")
    assert verdict.of == 0, "the most pairs are the plan's 1000, and they are not done"
    assert {section.key: section.experiment for section in SECTIONS}.items() >= {
        c.section: c.experiment for c in CLAIMS
    }.items()


def test_cells_that_are_not_run_or_failed_say_so(partial):
    results = Results.read(partial)
    table = tables.metric_table(results, "main", "joint_w2")
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert rows["fmcpe"]["gaussian, 10"] == "0.55" and rows["fmcpe"]["gaussian, 20"] == "not run"
    assert rows["rope"]["pendulum, 10"] == "failed" and rows["rope"]["light-tunnel-stand-in, 10"] == "not run"
    assert table.note.startswith(f"So far: {results.so_far('main')}. ")
    frontier = frontier_table(results)
    assert ["gaussian", "20", "all", "not run"] in [row[:4] for row in frontier.rows]
    as_good = frontier.header.index("as good")
    assert "units done" in frontier.note and {row[as_good] for row in frontier.rows} == {"", "yes"}

    fill(partial / "other", ["frontier"], wanted=lambda unit: begun(unit) and unit.method != "rope")
    frontier = frontier_table(Results.read(partial / "other"))
    assert {row[as_good] for row in frontier.rows} == {"", "yes, so far"}, "one of the others is missing"


def test_every_table_says_how_much_is_done(tmp_path):
    """One unit in three is done: all tables can be made, and none looks complete."""
    names = ("sbc", "independence", "timing", "sensitivity", "speed")
    fill(tmp_path, names, wanted=lambda unit: int(unit.id, 16) % 3 == 0)
    results = Results.read(tmp_path)
    made = [
        tables.sbc_table(results), tables.independence_table(results), tables.timing_table(results, "fit"),
        tables.breakdown_table(results), tables.sensitivity_table(results, "pendulum"), speed_table(results),
    ]  # fmt: skip
    for table in made:
        assert re.match(r"So far: \d+ of \d+ units done\. ", table.note), table.name
        assert any(cell.startswith("not run") for row in table.rows for cell in row), table.name
        assert {len(row) for row in table.rows} == {len(table.header)}
    text = write_report(tmp_path).read_text()
    assert text.count('<p class="missing">So far: ') == len(names) and " so far (" in text


def test_a_mean_over_some_of_the_sets_says_of_how_many(tmp_path):
    fill(tmp_path, ["independence"], wanted=lambda unit: unit.set < 2 or unit.method == "fmcpe", preset="quick")
    results = Results.read(tmp_path)
    assert results.cell("independence", ALPHA, "fmcpe-paper", None, "joint_c2st").endswith(" (2 of 3)")
    assert "of" not in results.cell("independence", ALPHA, "fmcpe", None, "joint_c2st")
    table = tables.independence_table(results)
    row = next(row for row in table.rows if row[:2] == ["5", "full"])
    assert row[table.header.index("jC2ST, ours")].endswith(" (2 of 3)")


def test_a_finished_run_says_nothing_of_the_kind(tmp_path):
    results = Results.read(fill(tmp_path, ["main"]))
    table = tables.metric_table(results, "main", "joint_w2")
    assert "So far" not in table.note and "not run" not in table.as_text()
    assert {claim.verdict(results, "fmcpe").so_far for claim in CLAIMS if claim.experiment == "main"} == {""}


def test_joint_mmd_is_the_unbiased_one_and_its_sign_is_explained(tmp_path):
    assert "joint_mmd2" not in METRICS and "unbiased" in METRICS["joint_mmd2_paired"][0]
    results = Results.read(fill(tmp_path, ["main", "sensitivity", "independence"]))
    for table in (
        tables.metric_table(results, "main", "joint_mmd2_paired"), tables.metric_table(results, "main", "mmd2"),
        tables.independence_table(results), tables.sensitivity_table(results, "pendulum"),
    ):  # fmt: skip
        assert "a negative value is zero within the error" in table.note and "standardised" in table.note, table.name
    # what the notes claim: the pairs' own copies lower the paper's formula by up to 2 / N
    torch.manual_seed(0)
    y, theta, exact = torch.randn(100, 40, 2), torch.randn(100, 40, 1), torch.randn(100, 40, 1)
    made = [metrics.joint(theta[i], exact[i], y[i]) for i in range(100)]
    plain, unbiased = (
        sum(metrics.mmd2(a, b, bandwidth=1.0, paired=paired) for a, b in made) / 100 for paired in (False, True)
    )
    assert -2 / 40 <= plain < -0.01 and abs(unbiased) < 0.005


def test_a_larger_preset_that_has_begun_hides_no_finished_one(tmp_path, capsys):
    fill(tmp_path, ["frontier", "speed"])
    fill(
        tmp_path,
        ["frontier", "speed"],
        wanted=lambda unit: unit.kind == "base" and unit.task == "gaussian",
        preset="quick",
    )
    results = Results.read(tmp_path)
    assert results.presets == {"frontier": "smoke", "speed": "smoke"}
    assert Results.read(tmp_path, "quick").presets == {"frontier": "quick", "speed": "quick"}
    text = write_report(tmp_path).read_text()
    assert "frontier, preset smoke" in text and "Also in this directory: frontier with preset quick, 1 of " in text
    assert main(["bench", "report", "--preset", "quick", "--out", str(tmp_path)]) == 0
    assert "speed, preset quick" in (tmp_path / "report.html").read_text()

    fill(tmp_path, ["frontier", "speed"], preset="quick")
    assert Results.read(tmp_path).presets == {"frontier": "quick", "speed": "quick"}, "of equals the larger"
    for name, header in (("frontier", "target"), ("speed", "fit time by part")):
        for preset, pairs in (("smoke", "20"), ("quick", "1000")):
            capsys.readouterr()
            assert main(["bench", name, "--preset", preset, "--out", str(tmp_path)]) == 0
            out = capsys.readouterr().out
            sizes = set(re.findall(r"^pendulum +(\d+)", out, re.MULTILINE))
            assert header in out and sizes & {"20", "1000"} == {pairs}


def test_the_csv_of_sbc_has_its_statistics(tmp_path):
    fill(tmp_path, ["sbc"], wanted=lambda unit: unit.method != "rope")
    text = write_report(tmp_path).read_text()
    (content,) = re.findall(r'download="sbc.csv" href="data:text/plain;charset=utf-8;base64,([^"]+)"', text)
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(content).decode())))
    row = next(row for row in rows if row["method"] == "fmcpe")
    assert {row["seed"], row["status"], row["seconds"]} == {"0", "done", "1.0"}
    assert (row["sbc.KS statistic.b"], row["sbc.p-value.a"], row["sbc.scale.a"]) == ("0.25", "0.5", "1.0")
    assert row["sbc.verdict.a"] == "calibrated: no miscalibration detected" and row["sbc.observations"] == "40"
    assert {row["status"] for row in rows if row["method"] == "rope"} == {"not run"}


def test_notes_say_how_many_sets_each_method_has(tmp_path):
    results = Results.read(fill(tmp_path, ["main"], preset="quick"))
    note = tables.metric_table(results, "main", "energy").note
    assert note.startswith("Mean ± std over 3 calibration sets; npe, npe-randomised, nnpe, reference: one fit,")


def test_the_commit_is_recorded_where_git_keeps_the_code(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, "-C", str(tmp_path), *words], check=True, capture_output=True)

    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "code.py").write_text("1")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "code.py").write_text("1")
    system.commit.cache_clear()
    assert system.commit(tmp_path / "ours") == "", "no git, no commit"
    git("init")
    git("add", "ours")
    git("commit", "-m", "first")
    system.commit.cache_clear()
    clean = system.commit(tmp_path / "ours")
    assert re.fullmatch("[0-9a-f]{40}", clean)
    assert system.commit(tmp_path / "installed") == "", "an installed package is not the checkout's"
    (tmp_path / "ours" / "code.py").write_text("2")
    system.commit.cache_clear()
    assert system.commit(tmp_path / "ours") == clean + " + changes"
    assert versions().get("commit", "") == system.commit(PACKAGE)
    monkeypatch.setenv("PATH", str(tmp_path))
    system.commit.cache_clear()
    assert system.commit(tmp_path / "ours") == "" and "commit" not in versions(), "without git nothing fails"
    system.commit.cache_clear()


def test_the_report_shows_the_machine_but_not_its_name(tmp_path):
    assert f"Machine: {MACHINE}.</p>" in write_report(fill(tmp_path, ["speed"])).read_text()
    assert re.fullmatch(r".+, \d+ cores, \d+ GiB of memory, .+", system.machine())
    assert socket.gethostname() not in system.machine()


def test_what_is_kept_is_every_table_and_every_number(tmp_path, capsys):
    fill(tmp_path / "run", ["frontier", "speed"])
    assert main(["bench", "report", "--out", str(tmp_path / "run"), "--keep", str(tmp_path / "kept")]) == 0
    assert "Kept:" in capsys.readouterr().out
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"report.html", "tables.txt", "frontier-frontier.csv", "frontier-units.csv", "speed-speed.csv"} <= kept
    assert not any(name.startswith("main") for name in kept)  # it was not run
    rows = (tmp_path / "kept" / "frontier-units.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(unit.kind == "fit" for unit in plan("frontier", "smoke"))
    assert "[frontier] Accuracy of the default recipe" in (tmp_path / "kept" / "tables.txt").read_text()


def test_every_table_and_file_names_a_stand_in_as_one(tmp_path):
    fill(tmp_path / "run", ["main", "sbc", "timing", "speed"])
    files = keep(tmp_path / "run", tmp_path / "kept")
    for path in files:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        assert "stand-in" in text or "tunnel" not in text, path.name
        if path.suffix in (".csv", ".txt"):
            assert not re.search(r"(wind|light)-tunnel(?!-stand-in|-prior)", text), path.name
    with Store(tmp_path / "run") as store:
        labels = [row.unit.label for row in store.rows().values()]
    assert not [label for label in labels if re.search(r"(wind|light)-tunnel(?!-stand-in|-prior)", label)]
    assert titled("gaussian-ci alpha=2") == "gaussian-ci alpha=2"
    assert titled("wind-tunnel data=0123") == "wind-tunnel-measured"
