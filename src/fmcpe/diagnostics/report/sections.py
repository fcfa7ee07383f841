"""Sections of the trust report, in the order of the page; a section that has nothing to say returns an empty string."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcpe.diagnostics.cross_validated import physical
from fmcpe.diagnostics.report import figures
from fmcpe.diagnostics.report.content import LEVELS, Content, versions
from fmcpe.diagnostics.report.html import percent, picture, pictures, quiet, table
from fmcpe.diagnostics.report.verdict import Verdict
from fmcpe.diagnostics.suspects import FEWEST

if TYPE_CHECKING:
    from fmcpe.record import Record


SHOWN = 100
"""Observations on the page, which stays small; the JSON file has all."""


def verdict_block(verdict: Verdict) -> str:
    """Traffic light, headline and three lines."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in verdict.lines)
    return (
        f'<div class="verdict {verdict.light}" id="verdict"><p><span class="light" role="img" '
        f'aria-label="{verdict.light} light"></span><b>{escape(verdict.headline)}.</b></p>{lines}</div>'
    )


def parameter_table(record: Record) -> str:
    """Coverage and error of every parameter on held-out pairs, before and after, in physical units."""
    if not record.parameters:
        return ""
    head = ["parameter", "median error", "inside 80\u00a0%", "inside 90\u00a0%", "range of the pairs"]
    rows = [
        [
            label,
            f"{line.error_before:.3g} → {line.error:.3g}",
            *(f"{percent(b)} → {percent(a)}" for b, a in zip(line.coverage_before, line.coverage, strict=True)),
            f"{line.low:.4g} to {line.high:.4g}",
        ]
        for line, label in zip(record.parameters, record.labels, strict=True)
    ]
    return table(head, rows)


def weight_table(record: Record) -> str:
    """Stacking weight and cross-validated score of every candidate."""
    if not record.weights:
        return ""
    rows = [[name, percent(share), f"{record.scores[name]:.3f}"] for name, share in record.weights.items()]
    rows += [["stack", "", f"{record.score:.3f}"]] + [
        [name, "not fitted", reason] for name, reason in record.skipped.items()
    ]
    return table(["candidate", "weight", "energy score"], rows)


def _parameters(content: Content) -> str:
    record = content.posterior.record
    if not record.parameters:
        return ""
    note = (
        "Each pair is answered by members that have not seen it, with weights and recalibration computed without its fold. "
        "Uncorrected → corrected. Errors are of the posterior median, in physical units."
    )
    return parameter_table(record) + quiet(note) + _notes(content, lambda kind: kind not in ("design", "outliers"))


def _notes(content: Content, wanted: Callable[[str], bool]) -> str:
    """Warnings of the fit of some kinds."""
    lines = "".join(f"<li>{escape(note.text)}</li>" for note in content.posterior.record.notes if wanted(note.kind))
    return f"<ul>{lines}</ul>" if lines else ""


def _pictures(content: Content) -> str:
    held_out = content.posterior.held_out
    if held_out is None:
        return ""
    after = physical(content.posterior, held_out.z).numpy()
    before = None if held_out.before is None else physical(content.posterior, held_out.before).numpy()
    parts = []
    for i, name in enumerate(content.labels):
        old = None if before is None else before[..., i]
        line = content.posterior.record.parameters[i]
        inside = (line.coverage_before[0], line.coverage[0])
        drawn = figures.estimates(held_out.theta[:, i].cpu().numpy(), old, after[..., i], inside, name)
        parts.append(
            picture(drawn, f"estimates-{i}", f"{name}: estimate against truth with 80 % intervals, held-out pairs.")
        )
    return pictures(parts) + quiet(
        "Orange intervals miss the truth; about one in five should. At most 40 pairs are shown."
    )


def _calibration(content: Content) -> str:
    found, curve = content.calibration, content.curve
    if found is None or curve is None:
        return ""
    columns = {name: values.numpy() for name, values in curve.columns().items()}
    shown = [
        picture(
            figures.coverage(np.array(LEVELS), columns, curve.band.numpy()),
            "coverage",
            "Share of held-out pairs inside central intervals. Below the diagonal: over-confident. Grey: 95 % bands.",
        ),
        picture(
            figures.ecdf(found.pit.names, found.pit.points.numpy(), found.pit.ecdf.numpy(), found.pit.band.numpy()),
            "ecdf",
            "ECDF of the PIT values minus uniform. Inside the simultaneous grey band no miscalibration shows.",
        ),
    ]
    ratio, low, high = found.energy_ratio
    score = f"Energy score {found.energy:.3g}"
    if not np.isnan(ratio):
        score += (
            f", {ratio:.2f} ({low:.2f} to {high:.2f}, 90 % bootstrap interval) times that of the uncorrected posterior"
        )
    rows = [
        [name, verdict.split(":", maxsplit=1)[0], f"{bias:+.2f}", f"{scale:.2f}", f"{p:.3f}"]
        for name, verdict, bias, scale, p in zip(
            found.sbc.names, found.sbc.verdicts, found.sbc.bias.tolist(), found.sbc.scale.tolist(), found.sbc.p_values.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return (
        f"<p>{escape(found.verdict)}</p>" + table(["parameter", "verdict", "bias", "width factor", "KS p"], rows, texts=(1,))
        + quiet(f"{score}. Bias in posterior standard deviations; a width factor above 1 means too narrow.") + pictures(shown)
    )  # fmt: skip


def _intervals(content: Content) -> str:
    if content.conformal:
        head = ["interval", "parameters", "promised, on average", "5th percentile of the coverage"]
        shown: dict[tuple[str, ...], list[bool]] = {}
        for row in content.conformal:
            key = tuple(percent(row[name]) for name in ("level", "guaranteed", "coverage_5"))
            shown.setdefault(key, []).append(row["joint"])
        words = {(False,): "each by itself", (True,): "all at once", (False, True): "each by itself, or all at once"}
        rows = [[level, words[tuple(kinds)], *ends] for (level, *ends), kinds in shown.items()]
        return table(head, rows, texts=(1,)) + quiet(content.conformal[-1]["guarantee"])
    return (
        "<p>Intervals of this posterior carry no finite-sample guarantee. Hold pairs out and call "
        "<code>posterior.conformalize(theta, y)</code>, or fit with <code>conformal=&quot;cv+&quot;</code>. "
        "9 held-out pairs are enough for 90 %, 19 for 95 %.</p>"
    )


def _learning(content: Content) -> str:
    curve = content.learning_curve
    if curve is None:
        return (
            "<p>Not computed. <code>fmcpe.diagnostics.learning_curve(method, theta, y)</code> refits on nested subsets and "
            "forecasts what more pairs would give; pass its result as <code>learning_curve=</code>.</p>"
        )
    drawn = picture(
        curve.plot(), "learning", "Energy score of unseen pairs against calibration pairs, and its forecast."
    )
    return f"<p>{escape(str(curve.forecast(2 * curve.sizes[-1])))}</p>" + pictures([drawn])


def _range(content: Content) -> str:
    held_out = content.posterior.held_out
    if held_out is None:
        return ""
    out = ""
    if content.observations is not None and content.check is not None and content.quantiles is not None:
        head = ["observation", "in range", "p (pairs)", "conformal p", "share of prior", *content.labels]
        found = {"p (all real data)": content.check.real, "p (raw data)": content.check.raw}
        others = {name: p for name, p in found.items() if p is not None}
        head[3:3] = others
        rows = []
        number = len(content.observations)
        for b in range(min(number, SHOWN)):
            low, middle, high = content.quantiles[:, b].tolist()
            if content.intervals is not None:
                low, high = (
                    end.reshape(-1, end.shape[-1])[b].tolist()
                    for end in (content.intervals.low, content.intervals.high)
                )
            ends = [f"{m:.4g} ({a:.4g} to {c:.4g})" for a, m, c in zip(low, middle, high, strict=True)]
            rows.append(
                [
                    str(b), "no" if bool(content.check.out_of_range[b]) else "yes", f"{float(content.check.pairs[b]):.2g}",
                    f"{float(content.check.conformal[b]):.2g}", percent(float(content.check.prior_share[b])), *ends,
                ]
            )  # fmt: skip
            rows[-1][3:3] = [f"{float(p[b]):.2g}" for p in others.values()]
        out += table(head, rows)
        if number > SHOWN:
            far = int(content.check.out_of_range.sum())
            out += quiet(
                f"The first {SHOWN} of {number} observations, {far} of which are out of range; the JSON has all."
            )
        out += quiet(
            "Median and central 90 % interval of each parameter."
            if content.intervals is None
            else f"Median and 90 % interval, each parameter by itself. {content.intervals.guarantee}"
        )
    drawn = figures.plane(*_plane(content))
    words = "Summaries of the data in two principal directions. Far from the blue points the answer moves towards the prior."
    if content.observations is not None:
        words += " Observations beyond the frame are drawn at its edge."
    return out + pictures([picture(drawn, "range", words)])


def _candidates(content: Content) -> str:
    record = content.posterior.record
    if not record.weights:
        return ""
    names = list(record.weights)
    drawn = figures.weights(
        names, [record.weights[n] for n in names], [record.scores[n] for n in names], record.score or 0.0
    )
    text = "Weights of the mixture, and the cross-validated energy score of each candidate alone (lower is better)."
    return weight_table(record) + pictures([picture(drawn, "weights", text)])


def _simulator(content: Content) -> str:
    found = content.misspecification
    if found is None:
        return ""
    out = f"<p>{escape(found.verdict)}</p>"
    if found.parameters:
        head = ["uncorrected posterior of", "shift in its sd", "too narrow by", "verdict"]
        rows = [[each.name, f"{each.shift:+.2f}", f"{each.width:.2f} ×", each.verdict] for each in found.parameters]
        out += table(head, rows, texts=(3,))
    tests = []
    if found.conditional is not None:
        tests.append(
            f"Permutation test of each y against {found.conditional.simulations} simulations at its θ, which judges the "
            f"simulator alone: p = {found.conditional.p_value:.2g}."
        )
    if found.marginal is not None:
        tests.append(
            f"All y against simulations from the prior, which also sees another distribution of θ: MMD p = "
            f"{found.marginal.p_mmd:.2g}, log density p = {found.marginal.p_log_prob:.2g}."
        )
    return out + quiet(" ".join(tests))


def _design(content: Content) -> str:
    notes = _notes(content, lambda kind: kind == "design")
    if not content.spans:
        return notes
    prior = physical(content.posterior, content.posterior.shared.pool).numpy()
    drawn = figures.spans(content.spans, prior)
    text = "Each line is the prior of one parameter; marks are pairs, orange stretches hold fewer pairs than chance explains."
    return pictures([picture(drawn, "span", text)]) + (notes or "<p>The pairs span the prior.</p>")


def _suspects(content: Content) -> str:
    if content.posterior.held_out is None:
        return ""
    left_out = _notes(content, lambda kind: kind == "outliers")
    if len(content.posterior.held_out.theta) < FEWEST:
        return left_out + f"<p>Too few pairs to call one suspect: {FEWEST} are needed.</p>"
    if not content.suspects:
        return left_out or "<p>No pair disagrees with all others.</p>"
    return left_out + "<ul>" + "".join(f"<li>{escape(str(each))}</li>" for each in content.suspects) + "</ul>"


def _assumptions(content: Content) -> str:
    pairs = content.posterior.record.num_pairs
    lines = [
        "New observations are measured like the calibration pairs, with θ from the target prior; nothing here speaks of other "
        "conditions.",
        "θ of the pairs is known exactly. An error of the reference instrument counts as an error of the posterior.",
        "Scores on held-out pairs come from members fitted without the pair's fold; the deployed mixture has them all.",
        f"{pairs} pairs show errors above a size that the section on calibration names, and no smaller ones.",
    ]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _settings(content: Content) -> str:
    record = content.posterior.record
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in record.candidate_seconds.items())
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    options = "".join(f"<li>{escape(line)}</li>" for line in _options(record.settings))
    return (
        f"<p>Fit: {record.seconds:.1f} s{f' ({escape(seconds)})' if seconds else ''}. {record.distinct or record.num_pairs} "
        f"distinct θ.</p><ul class=quiet>{options}</ul><p class=quiet>{escape(found)}. Every number of this "
        "page is in the JSON file beside it.</p>"
    )


def _options(settings: dict[str, Any]) -> list[str]:
    """Seed and recipe, and each candidate that has options, a line each."""
    if not settings:
        return []

    def listed(part: dict[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in part.items() if name != "kind")

    recipe = settings["recipe"]
    lines = [f"seed {settings['seed']}", f"{recipe.get('kind', 'recipe')}: {listed(recipe)}"]
    return lines + [f"{name}: {options}" for name, part in settings["candidates"].items() if (options := listed(part))]


SECTIONS: tuple[tuple[str, str, Callable[[Content], str]], ...] = (
    ("parameters", "Parameters on held-out pairs", _parameters),
    ("pictures", "Before and after", _pictures),
    ("calibration", "Is it calibrated?", _calibration),
    ("intervals", "Intervals with a guarantee", _intervals),
    ("learning-curve", "Would more pairs help?", _learning),
    ("range", "Which observations are in range?", _range),
    ("candidates", "What carries the answer", _candidates),
    ("simulator", "How wrong is the simulator?", _simulator),
    ("design", "Do the pairs span the question?", _design),
    ("suspects", "Suspect pairs", _suspects),
    ("assumptions", "Assumptions", _assumptions),
    ("settings", "Settings and versions", _settings),
)


def _plane(content: Content) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Summaries of pairs, simulations and observations in the first two principal directions of pairs and simulations."""
    held_out = content.posterior.held_out
    assert held_out is not None
    seen = held_out.seen.cpu().double()
    simulated = None if held_out.simulated is None else held_out.simulated.cpu().double()
    everything = seen if simulated is None else torch.cat([seen, simulated])
    centre, scale = everything.mean(0), everything.std(0).clamp_min(1e-12)
    directions = torch.linalg.svd((everything - centre) / scale, full_matrices=False).Vh[:2]

    def placed(rows: torch.Tensor | None) -> np.ndarray | None:
        if rows is None:
            return None
        at = ((rows.cpu().double() - centre) / scale) @ directions.T
        return np.pad(at.numpy(), ((0, 0), (0, 2 - at.shape[1])))

    asked = None
    if content.observations is not None:
        asked = content.posterior.shared.base.summarised().summarise(content.observations[:SHOWN]).flatten(1)
    pairs = placed(seen)
    assert pairs is not None
    return pairs, placed(simulated), placed(asked)
