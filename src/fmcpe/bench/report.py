"""The report: one self-contained HTML page in the paper's order, with a verdict on each claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmcpe._disk import write_whole
from fmcpe.bench import figures, frontier, paper, stack, tables, zoo
from fmcpe.bench.claims import CLAIMS, VARIANTS
from fmcpe.bench.numbers import all_numbers
from fmcpe.bench.page import (
    badge,
    download,
    escape,
    figure_block,
    gallery_block,
    opening,
    page,
    repeat,
    table_block,
    title_of,
)
from fmcpe.bench.results import Results
from fmcpe.bench.table import Table
from fmcpe.bench.units import titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOINT = ("joint_w2", "joint_c2st")
SBC_METHODS = ("npe", "fmcpe", "fmcpe-paper", "mf-npe", "rope", "dpe")
CORNER_METHODS = ("reference", "dpe", "mf-npe", "fmcpe-paper", "fmcpe")
WITH_ROPE = ("wind-tunnel",)
"""Tasks whose corner plots include RoPE, as in the paper."""


NOTES = {
    "main": "The paper's NPE in this figure is trained on the calibration pairs alone, like dpe here; npe is the uncorrected "
    "base posterior. On gaussian the figure shows W2 and C2ST to the exact posterior, as in the paper; the tables show the "
    "joint metrics of every task. Joint W2 has a floor above zero: the line of the reference posterior.",
    "corner": "RoPE (except on the wind tunnel), NNPE, J-NPE and the uncorrected posterior are omitted: they hide the others.",
    "sbc": "∪ means too narrow (over-confident) and ∩ too wide; the paper's text swaps the two.",
    "sensitivity": "Paper's space: " + paper.SPACE + ". " + paper.SCALE,
    "timing": "The paper trained on a GPU (RTX 3060), we on one CPU thread: compare ratios within a column, not columns.",
}

BEYOND = ("zoo", "frontier", "speed")
"""Sections beyond the paper."""

PICTURES = (
    "Simulations (blue) and one real observation (orange, dashed) at a low, a medium and a high first parameter. Images: "
    "simulation on the left (blue frame), real observation on the right (orange frame)."
)


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Args:
        key: Anchor, which claims refer to.
        title: Heading.
        where: Place in the paper.
        experiment: The experiment that it shows.
        content: Figures and tables, each with a caption.
    """

    key: str
    title: str
    where: str
    experiment: str
    content: Callable[[Results], Iterator[tuple[str, Figure | Table | None]]]


def _main(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    methods = ("npe", "dpe", "mf-npe", "rope", "fmcpe-paper", "fmcpe", "reference")
    caption = (
        "Boxes over calibration sets; lower is better. Gaussian: against the exact posterior, mean over observations."
    )
    yield caption, figures.box_plots(results, "main", JOINT, methods, as_figure_2=True)
    for metric in JOINT:
        yield "", tables.metric_table(results, "main", metric)
    yield "", stack.weights_table(results, "main")


def _corner(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    for task in results.tasks("main"):
        for size in [size for size in results.sizes("main") if size <= 200]:
            caption = f"{titled(task)}, {size} pairs: first test observation, first calibration set."
            rope = ("rope",) if task.split()[0] in WITH_ROPE else ()
            yield caption, figures.corners(results, task, size, (*CORNER_METHODS, *rope))


def _sbc(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    for task in results.tasks("sbc"):
        for size in results.sizes("sbc"):
            yield f"{titled(task)}, {size} pairs.", figures.ranks(results, task, size, SBC_METHODS)
    yield "", tables.sbc_table(results)


def _posterior_level(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    metrics = ("c2st", "w2", "mmd2")
    caption = "Against the reference posterior. Boxes over test observations, each averaged over calibration sets."
    yield caption, figures.box_plots(results, "main", metrics, over_observations=True)
    for metric in metrics:
        yield "", tables.metric_table(results, "main", metric)


def _all_metrics(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    metrics = ("joint_w2", "joint_c2st", "joint_mmd2_paired", "mse", "energy", "coverage_90")
    yield "All methods, all metrics.", figures.box_plots(results, "main", metrics)
    for metric in metrics[2:]:
        yield "", tables.metric_table(results, "main", metric)


def _before_after(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    size = max(results.sizes("main"), default=0)
    for task in results.tasks("main"):
        yield (
            f"{titled(task)}, {size} pairs: before (npe) and after (fmcpe-paper); with the domain-randomised base posterior, "
            "before (npe-randomised) and after (fmcpe).",
            figures.corners(results, task, size, ("npe", "fmcpe-paper", "npe-randomised", "fmcpe", "reference")),
        )


def _ablation(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    yield "Joint training (fmcpe-paper) and its ablations.", figures.box_plots(results, "ablation", (*JOINT, "energy"))
    for metric in (*JOINT, "energy"):
        yield "", tables.metric_table(results, "ablation", metric)


def _independence(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    yield "", tables.independence_table(results)


def _prior(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    metrics = ("joint_c2st", "joint_mmd2_paired", "joint_w2")
    yield "Mean and standard deviation over calibration sets.", figures.lines(results, "prior", metrics)
    for metric in metrics:
        yield "", tables.metric_table(results, "prior", metric)


def _timing(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    yield "", tables.timing_table(results, "fit")
    yield "", tables.timing_table(results, "inference")
    yield "Fit time by part.", figures.breakdown(results)
    yield "", tables.breakdown_table(results)


def _sensitivity(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    for task in results.tasks("sensitivity"):
        yield f"{titled(task)}.", figures.sensitivity(results, task)
        yield "", tables.sensitivity_table(results, task)


def _zoo(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    found = zoo.scores(results)
    if not found:
        return
    yield (
        "Performance profiles: the share of problems on which a method is within a factor τ of the best.",
        zoo.profiles(found),
    )
    for half in (None, "development", "reporting"):
        if any(half in (None, score.half) for score in found):
            yield "", zoo.ratio_table(found, results, half)
    yield (
        "Coverage: a dot per problem, for the parameter furthest from nominal; the band contains 95 % of single parameters if "
        "all intervals are calibrated.",
        zoo.coverage_plot(found),
    )
    yield "Accuracy against fit time.", zoo.cost_plot(found)
    for by in zoo.BREAKDOWNS:
        yield "", zoo.breakdown_table(found, by, results)
    for half in ("development", "reporting"):
        if any(half == score.half for score in found):
            yield "", stack.hindsight_table(found, results, half)
    yield "", stack.more_pairs_table(found, results)
    yield "", stack.ablation_table(results, "development")
    yield "", zoo.worst_table(found, results)


def _frontier(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    yield (
        "Energy score and coverage of every method.",
        figures.box_plots(results, "frontier", ("energy", "coverage_90")),
    )
    yield "", frontier.frontier_table(results)


def _speed(results: Results) -> Iterator[tuple[str, Figure | Table | None]]:
    yield "", frontier.speed_table(results)


SECTIONS = (
    Section("main", "Accuracy by number of pairs", "Figure 2", "main", _main),
    Section(
        "corner", "Posteriors of one observation", "Figure 3, and the appendix's for both tunnels", "main", _corner
    ),
    Section("sbc", "Posterior calibration", "Appendix, Posterior Calibration", "sbc", _sbc),
    Section("posterior-level", "Against the true posterior", "Appendix, Additional results", "main", _posterior_level),
    Section("all-metrics", "All metrics, all methods", "Appendix, Additional results", "main", _all_metrics),
    Section("before-after", "Before and after", "Appendix, Additional results", "main", _before_after),
    Section("ablation", "Ablation", "Appendix, Impact of joint learning", "ablation", _ablation),
    Section("independence", "Conditional independence", "Appendix, table of α", "independence", _independence),
    Section("prior", "Wrong priors", "Appendix, Prior Misspecification", "prior", _prior),
    Section("timing", "Training and inference times", "Appendix, three tables", "timing", _timing),
    Section("sensitivity", "Hyper-parameters", "Appendix, two tables and figures", "sensitivity", _sensitivity),
    Section("zoo", "Beyond the paper: the misspecification zoo", "not in the paper", "zoo", _zoo),
    Section("frontier", "Beyond the paper: accuracy of the default recipe", "not in the paper", "frontier", _frontier),
    Section("speed", "Beyond the paper: speed of the default recipe", "not in the paper", "speed", _speed),
)


def write_report(directory: str | Path, preset: str | None = None) -> Path:
    """Write DIR/report.html for one preset, or for the most complete preset of each experiment."""
    results = Results.read(directory, preset)
    path = Path(directory) / "report.html"
    write_whole(path, whole_page(results).encode())
    path.chmod(0o644)
    return path


def whole_page(results: Results) -> str:
    """The page as text."""
    shown = [section for section in SECTIONS if results.presets.get(section.experiment)]
    missing = [section for section in SECTIONS if section not in shown]
    links = [(section.key, section.title) for section in shown] + [("repeat", "How to reproduce")]
    of_paper = [section for section in shown if section.key not in BEYOND]
    body = [opening(results), _summary(results) if of_paper or not shown else ""]
    body += [_section(results, section) for section in shown]
    if missing:
        rest = "".join(_section(results, section) for section in missing)
        folded = "" if shown else " open"
        body.append(f"<details{folded}><summary>Not run: {len(missing)} sections</summary>{rest}</details>")
    return page(title_of(results), links, "".join([*body, repeat(results)]))


def claims_table(results: Results) -> Table:
    """Each claim of the paper that was measured, with the verdicts: what the summary of the page shows."""
    rows = []
    for claim in CLAIMS:
        cells = [str(claim.verdict(results, v)) if v in claim.variants else "not asked" for v in VARIANTS]
        if results.done(claim.experiment):
            rows.append((claim.section, claim.says, *cells, claim.counts))
    header = ("section", "the paper says", *(f"with {v}" for v in VARIANTS.values()), "compared")
    return Table("claims", "The paper's claims, and whether our numbers agree", header, rows)


def _summary(results: Results) -> str:
    rows = []
    for claim in CLAIMS:
        cells = []
        for variant in VARIANTS:
            asked = variant in claim.variants
            cells.append(badge(claim.verdict(results, variant)) if asked else '<span class="quiet">not asked</span>')
        link = f'<a href="#{claim.section}">{escape(claim.says)}</a>'
        rows.append(f"<tr class=new><td>{link}</td><td>{cells[0]}</td><td>{cells[1]}</td></tr>")
    head = "".join(f"<th>{escape(text)}</th>" for text in ("The paper says", *(f"with {v}" for v in VARIANTS.values())))
    return (
        '<section id="summary"><h2>Do our numbers agree?</h2>'
        f"<table class=claims><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        '<p class="note">Counted from the numbers below: "agrees" if every comparison does, "in part" if half or more do, '
        '"not checked" if a part of the claim was not measured. '
        '"So far": units of the experiment are missing, so the verdict may change. '
        "Comparisons use unrounded numbers, with no tolerance unless the claim states one. The ratio is ours over the other "
        "number: geometric mean of the comparisons (lowest to highest).</p></section>"
    )


def _other_presets(results: Results, experiment: str) -> list[str]:
    """A line for each preset of an experiment in the directory that is not shown."""
    others = [p for name, p in results.plans if name == experiment and p != results.presets.get(experiment)]
    return [
        f"Also in this directory: {experiment} with preset {preset}, {results.so_far(experiment, preset) or 'all done'}; "
        f"fmcpe bench report --preset {preset} shows it."
        for preset in others
    ]


def _section(results: Results, section: Section) -> str:
    parts = [f'<section id="{section.key}"><h2>{escape(section.title)}</h2>']
    preset = results.presets.get(section.experiment)
    done = results.done(section.experiment)
    state = f"{section.experiment}, preset {preset}" if preset else f"{section.experiment}: not run"
    parts.append(f'<p class="where">{escape(section.where)} · {escape(state)}</p>')
    if done and results.so_far(section.experiment):
        parts.append(f'<p class="missing">So far: {escape(results.so_far(section.experiment))}.</p>')
    parts += [f'<p class="note">{escape(text)}</p>' for text in _other_presets(results, section.experiment)]
    for claim in CLAIMS:
        if claim.section == section.key:
            verdicts = "".join(
                f"<li>with {escape(VARIANTS[variant])}: {badge(claim.verdict(results, variant))}</li>"
                for variant in claim.variants
            )
            parts.append(
                f'<div class="claim"><p><b>The paper:</b> {escape(claim.says)}</p><ul>{verdicts}</ul>'
                f'<p class="note">Compared: {escape(claim.counts)}.</p></div>'
            )
    if section.key in NOTES:
        parts.append(f'<p class="note">{escape(NOTES[section.key])}</p>')
    if not done:
        command = f"fmcpe bench run {section.experiment}"
        state = f"{results.so_far(section.experiment)}. " if preset else ""
        parts.append(
            f'<p class="missing">Not run. {state}<code>{command} --preset quick --out DIR</code></p></section>'
        )
        return "".join(parts)
    for caption, item in section.content(results):
        if isinstance(item, Table):
            parts.append(table_block(item, f"{section.key}-{item.name}") if item.rows else "")
        elif item is not None:
            parts.append(figure_block(item, caption))
    if section.key == "zoo":
        parts.append(gallery_block(zoo.pictures(results), PICTURES))
    name = f"{section.experiment}.csv"
    link = download(name, all_numbers(results, section.experiment), "all units and numbers of this experiment (CSV)")
    return "".join([*parts, f"<p>{link}</p></section>"])
