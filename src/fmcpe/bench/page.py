"""HTML of the report: one self-contained page without external resources."""

from __future__ import annotations

import base64
import html
import io
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from fmcpe.bench.claims import Verdict
from fmcpe.bench.plan import EXPERIMENTS
from fmcpe.bench.presets import PRESETS
from fmcpe.bench.results import Results
from fmcpe.bench.system import machine
from fmcpe.bench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST_VECTOR, _DPI = 60_000, 120
"""Largest figure in bytes to embed as SVG, and dots per inch of the PNG otherwise."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #5a6572; --line: #d9dee4; --paper: #ffffff; --soft: #f4f6f8;
  --link: #0b5cad; --warn: #fdf3dc; --good: #d5ecdf; --on-good: #0b5137; --part: #fdeecb; --on-part: #6b4700; --bad: #f9d9d2;
  --on-bad: #8a2206; --none: #e6e9ed; --on-none: #4a545e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --quiet: #a3adb8; --line: #3a424b; --paper: #14181c;
  --soft: #1f252b; --link: #7db7f0; --warn: #3b3115; --good: #143d2b; --on-good: #a9e2c5; --part: #46360f; --on-part: #f3d68d;
  --bad: #4f1e13; --on-bad: #f5b9aa; --none: #2c343c; --on-none: #b8c1cb } }
* { box-sizing: border-box }
html { scroll-padding-top: 5rem }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
nav { position: sticky; top: 0; z-index: 1; background: var(--soft); border-bottom: 1px solid var(--line); padding: .5rem 1rem;
      display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: 13px }
main { max-width: 1400px; margin: 0 auto; padding: 1rem 1.2rem 4rem }
p, ul { max-width: 75rem; overflow-wrap: anywhere }
a { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
h1 { font-size: 1.7rem; margin: 1rem 0 .3rem } h2 { font-size: 1.3rem; margin: 0 0 .2rem } h3 { font-size: 1rem; margin: 0 }
section { border-top: 2px solid var(--line); margin-top: 2.2rem; padding-top: 1.2rem }
.where, .note, .quiet { color: var(--quiet); font-size: 13.5px } .where { margin: 0 0 .8rem } .note { margin: .3rem 0 }
.claim { border-left: 4px solid var(--line); background: var(--soft); padding: .5rem .9rem; margin: .6rem 0 }
.claim p { margin: .1rem 0 } .claim ul { margin: .2rem 0; padding-left: 1.2rem }
.badge { border-radius: .3rem; padding: .05rem .45rem; font-size: 13.5px; white-space: nowrap }
.agrees { background: var(--good); color: var(--on-good) } .part { background: var(--part); color: var(--on-part) }
.differs { background: var(--bad); color: var(--on-bad) } .none { background: var(--none); color: var(--on-none) }
.scroll { overflow-x: auto; margin: .4rem 0 }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--paper) }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .18rem .7rem .18rem 0; vertical-align: top; white-space: nowrap }
th { border-bottom: 1.5px solid var(--ink); font-weight: 600 } tr.new td { border-top: 1px solid var(--line) }
table.claims { width: 100% } table.claims td { white-space: normal } table.claims td:first-child { width: 46% }
table.claims .badge { display: inline-block; white-space: normal }
figure { margin: 1rem 0 } figure img { max-width: 100%; height: auto; background: #fff }
figcaption { color: var(--quiet); font-size: 13.5px }
figure.narrow { display: inline-block; width: 32%; vertical-align: bottom; margin-right: 1% }
@media (max-width: 800px) { html { scroll-padding-top: 0 } nav { position: static } figure.narrow { width: 100% }
  .badge { white-space: normal } table.claims, table.claims tbody, table.claims tr,
  table.claims td { display: block; width: auto !important }
  table.claims thead { display: none } table.claims tr { padding: .4rem 0 }
  table.claims td:nth-child(2)::before { content: "paper: " }
  table.claims td:nth-child(3)::before { content: "default: " } }
.gallery { display: flex; flex-wrap: wrap; gap: .6rem 1rem } figure.small { margin: 0; width: 312px; max-width: 100% }
figure.small:target { outline: 2px solid var(--link) }
details { margin: .5rem 0; border: 1px solid var(--line); border-radius: .3rem; padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600; font-size: 14.5px }
.missing, .warning { background: var(--warn); padding: .5rem .9rem }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: 12.5px } code { font-size: 90% }
@media print { :root { color-scheme: light } nav { display: none } details { border: 0 } }
"""


def escape(text: object) -> str:
    """Text, escaped for HTML."""
    return html.escape(str(text))


def page(title: str, links: Sequence[tuple[str, str]], body: str) -> str:
    """A whole document."""
    bar = "".join(f'<a href="#{key}">{escape(text)}</a>' for key, text in links)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><nav>{bar}</nav><main>{body}</main></body></html>\n'
    )


def badge(verdict: Verdict) -> str:
    """A verdict as a coloured label."""
    kinds = {"agrees": "agrees", "agrees in part": "part", "does not agree": "differs"}
    kind = kinds.get(verdict.word, "none")
    return f'<span class="badge {kind}">{escape(verdict)}</span>'


def download(name: str, content: str, text: str) -> str:
    """A link that contains the file."""
    encoded = base64.b64encode(content.encode()).decode()
    return f'<a download="{escape(name)}" href="data:text/plain;charset=utf-8;base64,{encoded}">{escape(text)}</a>'


def table_block(table: Table, name: str) -> str:
    """A table with its downloads, folded if it is large."""
    links = f"{download(name + '.csv', table.as_csv(), 'CSV')} · {download(name + '.tex', table.as_latex(), 'LaTeX')}"
    state = " open" if len(table.rows) <= 40 else ""
    return (
        f"<details{state}><summary>{escape(table.title)}</summary>{table.as_html()}<p class=note>{links}</p></details>"
    )


def figure_block(figure: Figure, caption: str) -> str:
    """An embedded figure: SVG, or PNG if the SVG is too large. Narrow figures are side by side."""
    vector, kind = io.BytesIO(), "svg+xml"
    figure.savefig(vector, format="svg")
    if len(vector.getvalue()) > _LARGEST_VECTOR:
        vector, kind = io.BytesIO(), "png"
        figure.savefig(vector, format="png", dpi=_DPI)
    source = f"data:image/{kind};base64,{base64.b64encode(vector.getvalue()).decode()}"
    width = round(96 * figure.get_figwidth())
    shape = " class=narrow" if width < 900 and figure.get_figheight() > 0.8 * figure.get_figwidth() else ""
    return (
        f'<figure{shape}><img alt="{escape(caption)}" width="{width}" src="{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def gallery_block(pictures: Sequence[tuple[str, str, bytes]], note: str) -> str:
    """Small pictures side by side, each with an anchor and a caption."""
    figures = "".join(
        f'<figure class=small id="{escape(anchor)}"><img alt="{escape(caption)}" '
        f'src="data:image/png;base64,{base64.b64encode(content).decode()}"><figcaption>{escape(caption)}</figcaption></figure>'
        for anchor, caption, content in pictures
    )
    return f'<h3>Pictures</h3><p class="note">{escape(note)}</p><div class="gallery">{figures}</div>' if figures else ""


def title_of(results: Results) -> str:
    """Title of the page."""
    return (
        "fmcpe: the misspecification zoo"
        if set(results.presets) == {"zoo"}
        else "The paper's experiments, run with fmcpe"
    )


def opening(results: Results) -> str:
    """Title, progress and warnings."""
    states = [row.status for row in results.rows.values()]
    missing = [name for name in EXPERIMENTS if name not in results.presets]
    parts = [
        f"<h1>{escape(title_of(results))}</h1>",
        f'<p class="where">{states.count("done")} units done, {states.count("failed")} failed, '
        f"{len(states) - states.count('done') - states.count('failed')} open. Written {time.strftime('%Y-%m-%d %H:%M')}.</p>",
    ]
    if "smoke" in results.presets.values():
        names = ", ".join(name for name, preset in results.presets.items() if preset == "smoke")
        parts.append(
            f'<p class="warning">Preset <b>smoke</b> ({escape(names)}): networks are barely trained. This page shows that '
            "everything runs; its numbers and verdicts are meaningless.</p>"
        )
    if results.stand_ins():
        parts.append(
            f'<p class="warning">{escape(", ".join(results.stand_ins()))}: the real side is a <b>stand-in</b> for '
            "measurements, not the measured data of the paper.</p>"
        )
    if results.measured():
        named = ", ".join(f"{task} ({data})" for task, data in results.measured())
        parts.append(f'<p class="where">Measured data, by task and fingerprint: {escape(named)}.</p>')
    if missing and set(results.presets) != {"zoo"}:
        parts.append(f'<p class="missing">Not run: {escape(", ".join(missing))}.</p>')
    return "".join(parts)


def repeat(results: Results) -> str:
    """Commands, versions, seeds and budgets."""
    commands = list(dict.fromkeys(owner["command"] for owner in results.owners if owner["command"]))
    versions = sorted({json.dumps(row.versions, sort_keys=True) for row in results.rows.values() if row.versions})
    used = sorted(set(results.presets.values()))
    budgets = {name: asdict(PRESETS[name]) for name in used}
    failed = [(key, row) for key, row in results.rows.items() if row.status == "failed"]
    seconds = sum(row.seconds or 0 for row in results.rows.values())
    parts = [
        '<section id="repeat"><h2>How to reproduce</h2>',
        f"<pre>{escape(chr(10).join(['pip install -c constraints.txt fmcpe', *commands]))}</pre>",
        f"<p>{seconds / 3600:.1f} hours of computation, summed over workers. {escape(_machines(results))}</p>",
        "<p>Seeds: base posteriors are trained with seed 0; calibration set <i>i</i> is the task's stream with seed <i>i</i>, "
        "smaller sets are its prefixes, and the fit has seed <i>i</i>; test pairs come from the test stream with seed 0. "
        "Settings and seeds of each unit are in <code>bench.sqlite</code>.</p>",
        f"<p>Versions{'' if len(versions) < 2 else ' (several: the numbers may not be comparable)'}:</p>",
        *(f"<pre>{escape(text)}</pre>" for text in versions),
        f"<details><summary>Budgets of {escape(', '.join(used))}</summary>"
        f"<pre>{escape(json.dumps(budgets, indent=1))}</pre></details>",
    ]
    if failed:
        rows = "".join(
            f"<details><summary>{escape(key)} {escape(row.unit.label)}</summary><pre>{escape(row.traceback)}</pre></details>"
            for key, row in failed
        )
        parts.append(f"<h3>Failed units</h3>{rows}")
    return "".join([*parts, "</section>"])


def _machines(results: Results) -> str:
    """The machines of the run, with the number of units on each if there are several."""
    found = Counter(row.metrics["machine"] for row in results.rows.values() if "machine" in row.metrics)
    if not found:
        return f"The machine was not recorded; page written on: {machine()}."
    if len(found) == 1:
        return f"Machine: {next(iter(found))}."
    return "Machines: " + "; ".join(f"{name} ({count} units)" for name, count in found.most_common()) + "."
