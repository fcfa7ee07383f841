"""The trust report: every section, every number in JSON, no script and no request; opened in a real browser if there is one."""

import json
import re
import shutil
import subprocess
from dataclasses import fields, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import PRIOR, SMALL, observe, simulate
from matplotlib.backends.backend_agg import FigureCanvasAgg

import fmcpe
from fmcpe import FMCPE, Stack, candidates, diagnostics
from fmcpe.diagnostics.calibration import PASSED
from fmcpe.diagnostics.cross_validated import calibration_of_draws
from fmcpe.diagnostics.report import figures
from fmcpe.diagnostics.report.content import LEVELS, Content, gather
from fmcpe.diagnostics.report.sections import SECTIONS
from fmcpe.diagnostics.report.verdict import judge
from fmcpe.diagnostics.span import spans
from fmcpe.record import Note

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Ids, links and elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.targets, self.tags, self.unlabelled = [], [], set(), 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.targets += [found["href"][1:]] if found.get("href", "").startswith("#") else []
        self.unlabelled += tag == "svg" and not found.get("aria-label")


@pytest.fixture(scope="module")
def written(posteriors, tmp_path_factory):
    """The report of a loaded posterior, with three observations, one of them far from all pairs."""
    folder = tmp_path_factory.mktemp("report")
    posterior = fmcpe.load(posteriors("default").save(folder / "a.fmcpe"))
    torch.manual_seed(3)
    x = observe(torch.tensor([[0.0, 0.5], [1.0, 0.2], [-1.0, 0.8]]))
    x[2] += 1000
    return posterior, posterior.report(folder / "report.html", x)


def test_every_section_is_there_and_nothing_is_fetched(written):
    text = written[1].read_text()
    page = Page(text)
    assert {key for key, _, _ in SECTIONS} <= set(page.ids) and "verdict" in page.ids
    assert set(page.targets) <= set(page.ids) and len(set(page.ids)) == len(page.ids)
    assert "script" not in page.tags and not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "svg" in page.tags and page.unlabelled == 0
    assert written[1].stat().st_size < 2_000_000


def test_the_pictures_give_the_coverage_of_the_table(written, tmp_path, monkeypatch):
    """Of draws, ranks are spread at random: two pairs of forty at the edge made 75 % in the table 80 % in the picture."""
    posterior = written[0]
    lines = [
        replace(line, coverage=(0.123 + 0.1 * k, 0.9), coverage_before=(0.456 + 0.1 * k, 0.9))
        for k, line in enumerate(posterior.record.parameters)
    ]
    monkeypatch.setattr(posterior, "record", replace(posterior.record, parameters=tuple(lines)))
    text = posterior.report(tmp_path / "report.html").read_text()
    assert re.findall(r"corrected: (\d+) % inside", text) == ["46", "12", "56", "22"]


@pytest.mark.parametrize(("number", "word"), [(30, "too few pairs to tell"), (200, "calibrated")])
def test_the_table_calls_a_parameter_calibrated_only_where_the_headline_does(number, word):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(number, 2, generator=generator)
    truth, draws = (mean + torch.randn(*size, number, 2, generator=generator) for size in ((), (64,)))
    found = calibration_of_draws(draws.movedim(0, 1), truth, None, ("a", "b"))
    curve = diagnostics.coverage(draws, truth, levels=LEVELS, region=None, names=("a", "b"))
    section = {key: write for key, _, write in SECTIONS}["calibration"]
    others = dict.fromkeys(field.name for field in fields(Content))
    text = section(Content(**others | {"calibration": found, "curve": curve}))
    assert found.verdict.startswith("Calibrated") == (word == "calibrated")
    assert re.findall(r'<td class="text">([^<]*)</td>', text) == [word] * 2
    said = found.numbers()
    assert all(each.startswith(word) for each in said["verdicts"].values()) and said["verdict"].lower().startswith(word)
    assert said["conclusive"] == (word == "calibrated") and not said["refuted"] and found.sbc.calibrated
    assert ("calibrated: no miscalibration" in found.summary()) == (word == "calibrated")
    if word != "calibrated":
        assert f"bias below {found.detectable_bias:.2f}" in said["verdicts"]["a"]


@pytest.mark.parametrize("number", [1, 3, 7])
def test_labels_of_the_weights_stay_inside_their_figure(number):
    figure = figures.weights(
        [f"a_candidate_of_mine_{k}" for k in range(number)], [1 / number] * number, [1.0] * number, 1.0
    )
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        label = axes.xaxis.label.get_window_extent(canvas.get_renderer())
        assert label.x0 >= 0 and label.x1 <= figure.bbox.x1 and label.y0 >= 0


def test_numbers_beside_the_page(written):
    posterior, path = written
    found = json.loads(path.with_suffix(".json").read_text(), parse_constant=pytest.fail)
    assert found["candidates"]["weights"] == posterior.weights
    assert found["verdict"]["light"] in ("green", "amber", "red") and len(found["verdict"]["lines"]) == 3
    assert [p["name"] for p in found["parameters"]] == found["names"]
    assert found["observations"]["pairs"][2] < 1e-3 < found["observations"]["pairs"][0]
    low, middle, high = torch.tensor(found["observations"]["quantiles_5_50_95"])
    assert bool((low < middle).all()) and bool((middle < high).all())
    assert len(found["coverage"]["levels"]) == len(found["coverage"][found["names"][0]])


def test_settings_are_those_of_the_fit(written):
    posterior, path = written
    found = json.loads(path.with_suffix(".json").read_text())["settings"]
    assert found["recipe"]["kind"] == "Stack" and found["recipe"]["folds"] == SMALL.folds
    assert found["recipe"]["out_of_range"] == SMALL.out_of_range and found["seed"] == 0
    assert set(found["candidates"]) >= set(posterior.weights)
    assert "seed 0" in path.read_text() and f"folds {SMALL.folds}" in path.read_text()


@pytest.mark.parametrize(
    ("kind", "word"), [("coverage", "refute it"), ("information", "better than the prior"), ("design", "with care")]
)
def test_the_headline_names_the_reason(posteriors, kind, word):
    posterior = posteriors("default")
    record = replace(posterior.record, notes=(Note(kind, "..."),))
    found = replace(diagnostics.calibration(posterior), sbc=SimpleNamespace(verdicts=(PASSED,)))
    assert word in judge(record, found, []).headline


def test_a_far_observation_does_not_squeeze_the_map():
    generator = torch.Generator().manual_seed(0)
    seen, simulated = (torch.randn(n, 2, generator=generator).numpy() for n in (30, 200))
    asked = np.array([[0.0, 0.0], [1e6, -1e6]])
    (axes,) = figures.plane(seen, simulated, asked).axes
    assert axes.get_xlim()[1] < 10 and axes.get_ylim()[0] > -10
    drawn = axes.collections[-1].get_offsets()
    assert tuple(drawn[0]) == (0.0, 0.0) and tuple(drawn[1]) == (axes.get_xlim()[1], axes.get_ylim()[0])


def test_a_learning_curve_is_drawn(posteriors, base, pairs, tmp_path):
    stack = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=3, repeats=1)
    curve = diagnostics.learning_curve(FMCPE(base, simulate), *pairs, repeats=2, fractions=(0.5, 1), recipe=stack)
    path = posteriors("default").report(tmp_path / "report.html", learning_curve=curve)
    found = json.loads(path.with_suffix(".json").read_text())["learning_curve"]
    assert found["sizes"] == [15, 30] and found["doubled"]["num_pairs"] == 60
    assert "is expected to lower the score" in path.read_text()


def test_promises_of_intervals_are_shown(written, tmp_path):
    posterior = fmcpe.load(written[0].save(tmp_path / "a.fmcpe"))
    torch.manual_seed(4)
    theta = PRIOR.sample((12,))
    posterior.conformalize(theta, observe(theta))
    y = observe(torch.tensor([[0.0, 0.5], [1.0, 0.2]]))
    path = posterior.report(tmp_path / "report.html", y)
    everything = json.loads(path.with_suffix(".json").read_text())
    shown = torch.tensor(everything["observations"]["intervals_90"])
    assert torch.allclose(shown[0], posterior.interval(0.9, x=y).low, atol=1e-5)
    found = everything["conformal"]
    assert [row["level"] for row in found] == [0.5, 0.5, 0.8, 0.8, 0.9, 0.9]  # twelve pairs cannot promise 95 %
    assert all(row["coverage_5"] < row["guaranteed"] == row["level"] for row in found)
    assert "12 held-out pairs are exchangeable" in path.read_text()


def test_many_observations_and_pairs_stay_on_a_small_page(posteriors, tmp_path):
    torch.manual_seed(5)
    y = observe(PRIOR.sample((150,)))
    path = posteriors("default").report(tmp_path / "report.html", y)
    text = re.search(r'<section id="range">(.*?)</section>', path.read_text(), re.S).group(1)
    assert text.count("<tr>") == 101 and "The first 100 of 150 observations" in text
    assert len(json.loads(path.with_suffix(".json").read_text())["observations"]["pairs"]) == 150
    prior = torch.linspace(0, 1, 500)[:, None]
    found = spans(torch.rand(1000, 1), prior, ("a",))
    marks = figures.spans(found, prior.numpy()).axes[0].lines[-1].get_xdata()
    assert len(marks) == 200 and marks[0] < 0.05 and marks[-1] > 0.95


def test_warnings_are_where_they_belong(posteriors, tmp_path):
    posterior = posteriors("default")
    kept = posterior.record
    posterior.record = replace(kept, notes=tuple(Note(kind, f"says {kind}") for kind in ("coverage", "outliers")))
    try:
        text = posterior.report(tmp_path / "report.html").read_text()
    finally:
        posterior.record = kept
    parts = {key: re.search(rf'<section id="{key}">(.*?)</section>', text, re.S).group(1) for key, _, _ in SECTIONS}
    assert {key for key, part in parts.items() if "says coverage" in part} == {"parameters"}
    assert {key for key, part in parts.items() if "says outliers" in part} == {"suspects"}
    assert "The pairs span the prior" in parts["design"]


def test_bands_count_repeats_at_one_theta_once(posteriors):
    posterior = posteriors("default")
    kept = posterior.held_out
    rows = torch.arange(10).repeat_interleave(3)
    posterior.held_out = replace(
        kept, **{name: value[rows] for name, value in kept.tensors().items() if len(value) == 30}
    )
    try:
        found = gather(posterior)
    finally:
        posterior.held_out = kept
    assert found.curve.num_observations == len(found.calibration.sbc.ranks) == 10


def test_two_pairs_are_too_few(base, pairs, tmp_path):
    few = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    with pytest.warns(fmcpe.FMCPEWarning):
        posterior = FMCPE(base, simulate, recipe=few).fit(
            *(each[:2] for each in pairs), seed=0, show_progress_bars=False
        )
    path = posterior.report(tmp_path / "report.html")
    verdict = json.loads(path.with_suffix(".json").read_text())["verdict"]
    assert verdict["light"] == "grey" and "2 pairs with different θ are too few" in verdict["lines"][0]


def test_pairs_at_two_settings_are_too_few(base, pairs, tmp_path):
    """Thirty pairs, two values of θ: the report and the short form say so."""
    few = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()], folds=2, repeats=1)
    theta = pairs[0][:2].repeat(15, 1)
    with pytest.warns(fmcpe.FMCPEWarning):
        posterior = FMCPE(base, simulate, recipe=few).fit(theta, observe(theta), seed=0, show_progress_bars=False)
    path = posterior.report(tmp_path / "report.html")
    assert "2 pairs with different θ are too few" in path.read_text()
    assert "2 pairs with different θ are too few" in posterior._repr_html_()


def test_a_method_without_held_out_draws_says_so(posteriors, tmp_path):
    path = posteriors("joint").report(tmp_path / "paper.html")
    found = json.loads(path.with_suffix(".json").read_text())
    assert found["verdict"]["light"] == "grey" and "keeps no draws for held-out pairs" in path.read_text()


def test_notebooks_show_the_short_form(posteriors):
    posterior = posteriors("default")
    text = posterior._repr_html_()
    assert all(name in text for name in posterior.weights) and 'id="verdict"' in text and "<style" not in text
    assert "Not checked" in posteriors("joint")._repr_html_()


def test_wrong_names_are_refused(posteriors, tmp_path):
    posterior = posteriors("default")
    with pytest.raises(ValueError, match=r"ends in .html.*posterior.report"):
        posterior.report(tmp_path / "report.pdf")
    with pytest.raises(FileNotFoundError, match="Create it first"):
        posterior.report(tmp_path / "missing" / "report.html")
    with pytest.raises(ValueError, match="shape"):
        posterior.report(tmp_path / "report.html", torch.zeros(2, 7))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_in_a_browser_without_errors_or_requests(written, tmp_path):
    log = tmp_path / "net.json"
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run", "--disable-default-apps", "--enable-logging=stderr", "--log-level=0",
        f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", "--dump-dom",
    ]  # fmt: skip
    ran = subprocess.run(
        [BROWSER, *options, written[1].as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert {key for key, _, _ in SECTIONS} <= set(Page(ran.stdout).ids)
    assert "CONSOLE" not in ran.stderr
    # the page's own requests have it as initiator; a browser's housekeeping has none
    asked = re.findall(r'"initiator":"file://[^"]*"[^{}]*"url":"([^"]+)"', log.read_text()) if log.exists() else []
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
