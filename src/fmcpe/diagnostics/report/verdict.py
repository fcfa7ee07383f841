"""The answer first: does the correction help, are its intervals right, what is to be watched; and a traffic light.

red     the held-out pairs refute the posterior: over-confident or biased, or no better than the prior
amber   nothing is refuted, but something limits the answer: few pairs, wide intervals, gaps, suspect pairs
green   nothing is refuted, and nothing limits it
grey    the method keeps no held-out draws, or has fewer than three pairs, so that nothing is known
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcpe.diagnostics.cross_validated import CalibrationResult
from fmcpe.diagnostics.suspects import FEWEST, Suspect

if TYPE_CHECKING:
    from fmcpe.record import Record


@dataclass(frozen=True)
class Verdict:
    """Three lines and a traffic light.

    Args:
        light: ``"green"``, ``"amber"``, ``"red"`` or ``"grey"``.
        headline: What the light means here.
        lines: Help, calibration, what to watch.
    """

    light: str
    headline: str
    lines: tuple[str, ...]


def judge(record: Record, found: CalibrationResult | None, strange: list[Suspect]) -> Verdict:
    """The verdict on a fit, from its record, its calibration and its suspect pairs."""
    if found is None and record.parameters:
        lines = (
            f"{record.distinct or record.num_pairs} pairs with different θ are too few to test anything: calibration takes 3, "
            "and 100 for a clear answer.",
            "Measure more pairs and fit again.",
            _watch(record, strange),
        )
        return Verdict("grey", "Not checked", lines)
    if found is None:
        return Verdict(
            "grey",
            "Not checked",
            (
                f"{record.method} keeps no draws for held-out pairs, so this page cannot say how far to trust it.",
                "Test it on pairs that were not used in the fit: fmcpe.diagnostics.sbc(posterior, theta, y).",
                'Or fit with recipe="default", which cross-validates every pair.',
            ),
        )
    wrong = found.refuted or any(note.kind == "coverage" for note in record.notes)
    refuted = wrong or any(note.refutes for note in record.notes)
    reason = "the held-out pairs refute it" if wrong else "it is not clearly better than the prior"
    limited = bool(record.notes) or bool(strange) or not found.conclusive
    light, headline = (
        ("red", f"Do not rely on it yet: {reason}")
        if refuted
        else ("amber", "Usable with care") if limited else ("green", "The held-out pairs support it")
    )  # fmt: skip
    return Verdict(light, headline, (_help(record, found), found.verdict, _watch(record, strange)))


def _help(record: Record, found: CalibrationResult) -> str:
    ratio, low, high = found.energy_ratio
    if math.isnan(ratio):
        return f"Cross-validated energy score {found.energy:.3g}."
    kept = record.weights.get("uncorrected", 0.0)
    if low <= 1 <= high and kept > 0.5:
        return (
            f"No need of a correction shows: the uncorrected posterior has weight {kept:.2f}, and the score on "
            f"held-out pairs is {ratio:.2f} ({low:.2f} to {high:.2f}) times its own."
        )
    word = "lowers" if ratio < 1 else "raises"
    ends = sorted((abs(1 - low), abs(1 - high))) if low < 1 and high < 1 else (low - 1, high - 1)
    change = (
        f"({100 * ends[0]:.0f} to {100 * ends[1]:.0f} %)"
        if low < 1 and high < 1
        else f"(ratio {low:.2f} to {high:.2f})"
    )
    return f"The correction {word} the energy score on held-out pairs by {100 * abs(1 - ratio):.0f} % {change}."


def _watch(record: Record, strange: list[Suspect]) -> str:
    parts = []
    if strange:
        rows = ", ".join(str(each.pair) for each in strange[:5])
        parts.append(f"{len(strange)} suspect pair{'s' if len(strange) > 1 else ''} ({rows})")
    kinds = [note.short for note in record.notes]
    parts += [f"{kinds.count(kind)} × {kind}" if kinds.count(kind) > 1 else kind for kind in dict.fromkeys(kinds)]
    if not parts and record.num_pairs < FEWEST:
        return f"The pairs span the prior. They are too few to call one suspect: {FEWEST} are needed."
    if not parts:
        return "No pair is suspect, and the pairs span the prior."
    return f"Watch: {'; '.join(parts)}."
