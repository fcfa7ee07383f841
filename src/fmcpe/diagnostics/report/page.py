"""HTML of the trust report: one file, inline SVG, no script and no request."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcpe._disk import as_path, write_whole
from fmcpe.diagnostics.cross_validated import calibration
from fmcpe.diagnostics.report.content import Content, gather
from fmcpe.diagnostics.report.sections import SECTIONS, parameter_table, verdict_block, weight_table
from fmcpe.diagnostics.report.verdict import judge
from fmcpe.diagnostics.suspects import suspects
from fmcpe.problem import groups_of

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #59636e; --line: #d5dbe1; --paper: #fff; --soft: #f4f6f8;
  --band: #d9dde2; --link: #0b5cad; --green: #1a7f4b; --amber: #b26a00; --red: #b3261e; --grey: #6b7480 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --quiet: #a3adb8; --line: #3a424b; --paper: #14181c;
  --soft: #1e242a; --band: #3d464f; --link: #6cb2ff; --green: #4cc38a; --amber: #f0b04a; --red: #ff8a80; --grey: #9aa4af } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 1000px; margin: 0 auto; padding: 1rem 1rem 4rem }
h1 { font-size: 1.5rem; margin: .6rem 0 } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; border-top: 1px solid var(--line);
  padding-top: 1.2rem } p, ul { margin: .45rem 0 } ul { padding-left: 1.2rem } a { color: var(--link) }
.quiet { color: var(--quiet); font-size: .875rem }
.verdict { border-left: .5rem solid var(--grey); background: var(--soft); padding: .8rem 1rem; margin: 1rem 0 }
.verdict.green { border-color: var(--green) } .verdict.amber { border-color: var(--amber) }
.verdict.red { border-color: var(--red) }
.light { display: inline-block; width: .9em; height: .9em; border-radius: 50%; background: var(--grey); margin-right: .5em;
  vertical-align: -.05em }
.green .light { background: var(--green) } .amber .light { background: var(--amber) } .red .light { background: var(--red) }
.verdict b { font-size: 1.1rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--quiet); font-weight: 600; white-space: normal; vertical-align: bottom }
th:first-child, td:first-child, .text { text-align: left }
td.text { white-space: normal; min-width: 14rem }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: .4rem 0; flex: 1 1 300px; min-width: 0 }
figure svg { width: 100%; height: auto; display: block }
figure svg text { fill: currentColor } figcaption { color: var(--quiet); font-size: .85rem }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; font-size: .82rem } code { font-size: .9em }
nav { font-size: .875rem } nav a { margin-right: .9rem; white-space: nowrap; display: inline-block }
@media (max-width: 480px) { table { font-size: .8rem } th, td { padding-right: .6rem } td.text { min-width: 8rem }
  td:first-child { white-space: normal } }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --soft: #f2f2f2; --band: #ddd; --line: #bbb;
  --quiet: #444; --link: #000 } nav { display: none } figure, table, .verdict { break-inside: avoid }
  h2, h2 + * { break-after: avoid } .scroll { overflow: visible } th, td { white-space: normal } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(
    posterior: CorrectedPosterior, path: str | Path, x: Any = None, learning_curve: Any = None, *, seed: int = 0
) -> Path:
    """Write the report as HTML, and every number of it as JSON beside; arguments as for `gather`."""
    path = as_path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f'Expected a file name that ends in .html, got {path}. Try posterior.report("report.html").')
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Expected a folder that exists, got {path.parent}. Create it first.")
    content = gather(posterior, x, learning_curve, seed=seed)
    numbers = json.dumps(content.numbers(), indent=1, ensure_ascii=False, allow_nan=False)
    for target, text in ((path, html_of(content)), (path.with_suffix(".json"), numbers + "\n")):
        write_whole(target, text.encode())
    return path


def html_of(content: Content) -> str:
    """The whole page."""
    made = [(key, title, body) for key, title, make in SECTIONS if (body := make(content))]
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in made)
    body = "".join(f'<section id="{key}"><h2>{escape(title)}</h2>{text}</section>' for key, title, text in made)
    record = content.posterior.record
    about = (
        f"Parameters: {', '.join(content.labels)}. {record.num_pairs} calibration pairs, "
        f"observations of shape {tuple(content.posterior.observation_shape)}. Method: {record.method}, "
        f"fitted in {record.seconds:.0f} s."
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>How far to trust this posterior</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main><h1>How far to trust this posterior</h1>"
        f'<p class="quiet">{escape(about)}</p>{verdict_block(content.verdict)}<nav>{links}</nav>{body}</main></body></html>\n'
    )


def short_html(posterior: CorrectedPosterior) -> str:
    """Verdict, parameters and weights, for notebooks; no style of it reaches the rest of the page."""
    record, held_out = posterior.record, posterior.held_out
    known = held_out is not None and groups_of(held_out.theta)[1] >= 3
    verdict = judge(record, calibration(posterior) if known else None, suspects(posterior) if known else [])
    colors = {"green": "#1a7f4b", "amber": "#b26a00", "red": "#b3261e", "grey": "#6b7480"}
    edge = f"border-left:.5rem solid {colors[verdict.light]};padding:.1rem .8rem"
    shape = "display:inline-block;width:.9em;height:.9em;border-radius:50%"
    dot = f'class="light" style="{shape};background:{colors[verdict.light]}"'
    block = verdict_block(verdict).replace('class="light"', dot)
    return f'<div style="{edge}">{block}{parameter_table(record)}{weight_table(record)}</div>'
