"""The report, its claims and its tables, from made-up numbers whose verdicts are known; and in a real browser."""

import base64
import csv
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from bench_results import fill, made_up

from fmcpe.bench import figures, paper
from fmcpe.bench.claims import CLAIMS, Verdict, before
from fmcpe.bench.compare import compare
from fmcpe.bench.frontier import frontier_table, speed_table
from fmcpe.bench.plan import EXPERIMENTS, plan
from fmcpe.bench.report import SECTIONS, write_report
from fmcpe.bench.results import Results, number, spread
from fmcpe.bench.store import Store
from fmcpe.bench.table import Table
from fmcpe.bench.tables import independence_table, metric_table, sensitivity_table, timing_table
from fmcpe.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Every experiment."""
    return fill(tmp_path_factory.mktemp("run"), EXPERIMENTS)


def test_claims_are_counted_from_the_numbers(run, tmp_path):
    results = Results.read(run)
    verdicts = {claim.says: claim.verdict(results, "fmcpe-paper") for claim in CLAIMS}
    for says, verdict in verdicts.items():
        assert verdict.word == "agrees", (says, verdict)
    slow = next(claim for claim in CLAIMS if "longer to train" in claim.says)
    assert slow.verdict(results, "fmcpe").word == "does not agree", "the default recipe is the fastest here"

    with Store(tmp_path) as store:
        store.add("main", "smoke", plan("main", "smoke"))
    empty = Results.read(tmp_path)
    assert {claim.verdict(empty, "fmcpe").word for claim in CLAIMS} == {"not run"}


def test_a_verdict_says_how_many():
    assert str(Verdict(3, 3)) == "agrees (3 of 3 comparisons)"
    assert str(Verdict(2, 3)) == "agrees in part (2 of 3 comparisons)"
    assert str(Verdict(1, 3)) == "does not agree (1 of 3 comparisons)"
    assert str(Verdict(0, 0)) == "not run"


def test_the_papers_numbers_stand_beside_ours(run):
    results = Results.read(run)
    table = independence_table(results)
    row = next(row for row in table.rows if row[0] == "5" and row[1] == "T_X only")
    full, alone = (
        results.mean("independence", "gaussian-ci alpha=5.0", method, None, "joint_c2st")
        for method in ("fmcpe-paper", "fmcpe-paper-x-only")
    )
    assert row[2:6] == ["0.709 ± 0.168", "+30.1 %", number(alone), f"{100 * (alone / full - 1):+.1f} %"]
    assert "standardised" in table.note and paper.SPACE in table.note
    grid = sensitivity_table(results, "pendulum")
    assert grid.rows[2][:3] == ["0.001", "1", "(2.6 ± 0.52)e-3"] and "none" in {row[1] for row in grid.rows}
    fits = timing_table(results, "fit")
    assert next(row for row in fits.rows if row[:2] == ["10", "fmcpe-paper"])[2] == "20 [28.35]"
    assert next(row for row in speed_table(results).rows)[4] == "20.0", "the ratio of the two recipes' fits"
    assert {row[0] for row in frontier_table(results).rows} == {"gaussian", "pendulum"}


def test_tables_take_every_form():
    table = Table("t", "A & B", ["a_1", "θ"], [["50 %", "1 ± 2"], ["50 %", "<3>"]], "note")
    assert list(csv.reader(io.StringIO(table.as_csv()))) == [["a_1", "θ"], ["50 %", "1 ± 2"], ["50 %", "<3>"]]
    assert r"A \& B" in table.as_latex() and r"a\_1 & $\theta$ \\" in table.as_latex()
    assert "&lt;3&gt;" in table.as_html() and table.as_text().splitlines()[1].startswith("a_1")
    assert (spread([]), spread([1.0]), spread([1.0, 3.0])) == ("", "1", "2 ± 1.4")


SOME = ("gaussian", "pendulum", "gaussian-ci", "gaussian-prior", "zoo/linear-gain-offset")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of every experiment, while the slower half of the tasks is still to be done."""
    return write_report(fill(tmp_path_factory.mktemp("half"), EXPERIMENTS, wanted=lambda unit: unit.task in SOME))


def test_the_report_is_one_file_in_the_papers_order(report):
    text = report.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text), "the page would fetch something"
    assert not re.findall(r"url\(|@import|<script", text)
    positions = [text.index(f'<section id="{section.key}">') for section in SECTIONS]
    assert positions == sorted(positions) and 'id="repeat"' in text
    assert "Not run." not in text and "stand-in" in text and "means nothing" not in text
    assert "its numbers and verdicts are meaningless" in text, "a smoke run has to say that it is one"
    assert "fmcpe bench run all --preset smoke" in text
    files = dict(re.findall(r'download="([^"]+)" href="data:text/plain;charset=utf-8;base64,([^"]+)"', text))
    assert {"main.csv", "independence-independence.tex", "timing-timing-fit.csv"} <= set(files)
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(files["main.csv"]).decode())))
    units = [unit for unit in plan("main", "smoke") if unit.kind == "fit"]
    assert [row["status"] for row in rows] == ["done" if unit.task in SOME else "not run" for unit in units]
    assert {"unit", "task", "method", "joint_w2", "coverage.0.9.0"} <= set(rows[0])


def test_what_was_not_run_is_said(tmp_path):
    text = write_report(fill(tmp_path, ["speed"])).read_text()
    assert text.count('<p class="missing">Not run. ') == len(SECTIONS) - 1
    assert '<span class="badge none">not run</span>' in text


BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), None)


@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is installed on this machine")
def test_the_report_opens_in_a_browser(report, tmp_path):
    """Every picture is drawn and nothing is fetched, with the network out of reach."""
    watched = tmp_path / "watched.html"
    script = """<script>addEventListener("load", () => {
      const images = [...document.images], broken = images.filter(i => !i.complete || !i.naturalWidth).length
      const fetched = performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).length
      document.body.dataset.seen = `${images.length} images ${broken} broken ${fetched} fetched`
    })</script>"""
    watched.write_text(report.read_text().replace("</head>", script + "</head>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    browser = [BROWSER, *options, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    page = subprocess.run(
        [*browser, "--dump-dom", watched.as_uri()], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    images, broken, fetched = re.search(r'data-seen="(\d+) images (\d+) broken (\d+) fetched"', page).groups()
    assert int(images) >= 10 and (broken, fetched) == ("0", "0")
    assert "How to reproduce" in page and "agrees (" in page


def test_comparing_two_runs_shows_what_changed(run, tmp_path, capsys):
    other = fill(tmp_path / "other", ["main"], shift=0.5)
    text = compare(run, other)
    assert "only A has ablation (smoke)" in text
    line = next(line for line in text.splitlines() if re.match(r"gaussian +fmcpe +10 +energy", line))
    assert line.split()[4:7] == ["0.55", "1.05", "+90.9"]
    assert "coverage_90" not in text, "what is the same is not listed"
    assert main(["bench", "compare", str(run), str(run)]) == 0
    assert ", 0 changed" in capsys.readouterr().out


def test_status_and_report_from_the_command_line(run, tmp_path, capsys):
    assert main(["bench", "status", "--out", str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"main \(smoke\) +70 +0 +0 +0", out) and "no active run" in out
    small = fill(tmp_path, ["speed"])
    assert main(["bench", "report", "--out", str(small)]) == 0
    assert (small / "report.html").is_file()
    assert main(["bench", "status", "--out", str(run / "nowhere")]) == 2
    assert "fmcpe bench run" in capsys.readouterr().err


def test_frontier_prints_its_table_and_does_nothing_twice(run, capsys):
    assert main(["bench", "frontier", "--preset", "smoke", "--out", str(run)]) == 0
    out = capsys.readouterr().out
    assert "0 now" in out and "target" in out and "fmcpe-paper" in out


def test_like_is_compared_with_like(tmp_path):
    """The order of settings is compared where pairs, epochs, test pairs and simulations are the paper's, and nowhere else."""
    for preset, compared in (("smoke", False), ("quick", False), ("paper", True)):
        results = Results.read(fill(tmp_path / preset, ["sensitivity"], preset=preset))
        table = sensitivity_table(results, "pendulum")
        assert ("Rank correlation" in table.note) == compared
    assert len(table.rows) == 16 + 1


def test_every_table_states_both_budgets_and_the_base_posteriors(tmp_path):
    results = Results.read(fill(tmp_path, EXPERIMENTS, preset="quick"))
    for section in SECTIONS:
        for _, item in section.content(results):
            if isinstance(item, Table):
                assert "Ours: " in item.note and " pairs, " in item.note, item.name
                assert ("Paper: " in item.note) == (section.where != "not in the paper"), item.name
                assert "Base posterior: " in item.note, item.name
    note = metric_table(results, "main", "energy").note
    assert (
        "Ours: 10, 50, 200 and 1000 pairs, 3 sets, 300 test pairs with 60 draws each, 200 epochs of the paper's" in note
    )
    assert "recipe, 50000 simulations for the base posterior." in note
    assert (
        "Paper: 10, 50, 200 and 1000 pairs, 5 calibration sets, 2000 test pairs; epochs not stated; 50000 simulations."
        in note
    )
    assert (
        "plain simulations (npe, mf-npe, rope, fmcpe-paper); domain-randomised simulations (npe-randomised, fmcpe); vectors"
        in note
    )
    assert "300 test pairs with 1 draw each" in metric_table(results, "main", "joint_w2").note
    posterior = metric_table(results, "main", "c2st").note
    assert "3 observations with 1000 draws each, 3-fold C2ST" in posterior and "5000 draws each" in posterior


def test_a_claim_is_checked_only_if_every_part_of_it_was_measured(tmp_path):
    claim = next(claim for claim in CLAIMS if claim.section == "prior")
    whole = Results.read(fill(tmp_path / "whole", ["prior"]))
    assert claim.verdict(whole, "fmcpe").word == "agrees"
    one_size = Results.read(fill(tmp_path / "part", ["prior"], wanted=lambda unit: unit.pairs != 20))
    verdict = claim.verdict(one_size, "fmcpe")
    assert verdict.word == "not checked" and "improving with pairs was not measured" in str(verdict)
    assert verdict.of > 0, "the other part was"


def test_figures_have_what_the_papers_have(run, monkeypatch):
    """Metrics of the posterior on gaussian in figure 2, RoPE in the wind tunnel's corners, both recipes before and after."""
    results, drawn, boxes = Results.read(run), [], []
    monkeypatch.setattr(figures, "corners", lambda _, task, size, methods: drawn.append((task, methods)))
    sections = {section.key: section for section in SECTIONS}
    list(sections["corner"].content(results))
    assert {task for task, methods in drawn if "rope" in methods} == {"wind-tunnel"}
    drawn.clear()
    list(sections["before-after"].content(results))
    assert {methods for _, methods in drawn} == {("npe", "fmcpe-paper", "npe-randomised", "fmcpe", "reference")}
    monkeypatch.setattr(
        figures, "_boxes", lambda axes, results, experiment, task, metric, *_: boxes.append((task, metric))
    )
    next(sections["main"].content(results))
    assert {("gaussian", "w2"), ("gaussian", "c2st"), ("pendulum", "joint_w2"), ("pendulum", "joint_c2st")} <= set(
        boxes
    )
    assert ("gaussian", "joint_w2") not in boxes


def test_boxes_over_observations_are_of_each_observation(run):
    results = Results.read(run)
    values = figures._by_observation(results, "main", "gaussian", "fmcpe", 10, "c2st")
    assert values == pytest.approx([0.55, 1.1 * 0.55, 1.2 * 0.55])


def test_a_claim_that_names_methods_needs_all_of_them(tmp_path):
    """With one baseline measured, nothing is said of a claim about three."""
    with Store(tmp_path) as store:
        units = plan("main", "smoke", methods=["fmcpe", "dpe"])
        store.add("main", "smoke", units)
        while claimed := store.claim([unit.id for unit in units]):
            store.finish(claimed, made_up(store.rows([claimed])[claimed].unit))
    results = Results.read(tmp_path)
    words = {claim.says: claim.verdict(results, "fmcpe") for claim in CLAIMS if claim.experiment == "main"}
    beats = next(verdict for says, verdict in words.items() if "consistently outperforms" in says)
    assert beats.word == "not checked"
    assert "the comparison with mf-npe and the comparison with rope was not measured" in str(beats)
    assert {verdict.word for says, verdict in words.items() if "additional baselines" in says} == {"not checked"}
    assert {verdict.word for says, verdict in words.items() if "known posterior" in says} == {"not checked"}


def test_the_default_recipe_is_compared_with_its_own_base_posterior(run):
    results = Results.read(run)
    assert before(results, "pendulum", "fmcpe") == "npe-randomised"
    assert before(results, "pendulum", "fmcpe-paper") == before(results, "gaussian", "fmcpe") == "npe"


def test_the_posterior_level_figure_has_boxes_over_observations(run, monkeypatch):
    seen = []
    monkeypatch.setattr(figures, "_by_observation", lambda *arguments: seen.append(arguments[1:]) or np.ones(3))
    section = next(section for section in SECTIONS if section.key == "posterior-level")
    next(section.content(Results.read(run)))
    assert ("main", "gaussian", "fmcpe", 10, "c2st") in seen


def test_measured_wind_tunnels_have_rope_in_their_corner_plots(tmp_path, monkeypatch):
    drawn = []
    units = plan("main", "smoke", ["wind-tunnel"], ["rope"], {"wind-tunnel": "0123"})
    with Store(tmp_path) as store:
        store.add("main", "smoke", units)
        while claimed := store.claim([unit.id for unit in units]):
            store.finish(claimed, made_up(store.rows([claimed])[claimed].unit))
    monkeypatch.setattr(figures, "corners", lambda _, task, size, methods: drawn.append(methods))
    list(next(section for section in SECTIONS if section.key == "corner").content(Results.read(tmp_path)))
    assert drawn and all("rope" in methods for methods in drawn)
