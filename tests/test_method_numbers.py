"""The numbers of docs/method.md are those of the committed results."""

import csv
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "method.md").read_text()


def table(name):
    with (DOCS / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ablation_of_candidates():
    for row in table("zoo/zoo-stack"):
        line = next(
            line for line in PAGE.splitlines() if line.startswith(f"| `{row['candidate']}` | {row['stack without it']}")
        )
        _, _, weight, often, seconds = cells(line)
        assert float(weight) == pytest.approx(float(row["mean weight"]), abs=0.0051)
        assert often.removesuffix(" of fits") == row["weight above 0.2"]
        assert float(seconds) == pytest.approx(float(row["seconds"]), abs=0.051)


def test_sensitivity_of_options():
    found = groupby(table("zoo/sensitivity"), key=lambda row: (row["of"], row["option"], row["default"]))
    for (of, option, default), rows in found:
        shown = [
            f"{row['value']}: {float(row['log energy score, %']):+.1f} ± {float(row['standard error']):.1f}"
            for row in rows
        ]
        start = f"| `{of}` | `{option}` |"
        line = next(line for line in PAGE.splitlines() if line.startswith(start))
        assert [cell for cell in cells(line)[2:] if cell] == [default, *shown]


def test_scores_that_the_weights_minimise():
    rows = {(row["weights by"], row["scored by"]): row for row in table("zoo/stack-score")}
    for score in ("energy score", "CRPS"):
        shown = [
            f"{rows[by, score]['change, %']} ± {rows[by, score]['standard error']} %"
            for by in ("crps", "half and half")
        ]
        assert " and ".join(shown) in " ".join(PAGE.split())


def test_parameters_that_were_not_measured_over_their_range():
    rows, lines = table("trust/designs"), PAGE.split("| where λ_i applies, |")[1].splitlines()[2:6]
    for way, line in zip(("nothing", "all", "alone", "now"), lines, strict=True):
        shown = iter(cells(line)[1:])
        for design in ("half", "fifth", "one value"):
            chosen = [row for row in rows if row["design"] == design]
            ratio = [float(row[f"energy {way}"]) / float(row["energy nothing"]) for row in chosen]
            coverage = [float(row[f"coverage {way}"]) for row in chosen]
            assert float(next(shown)) == pytest.approx(np.exp(np.log(ratio).mean()), abs=0.0051)
            mean, lowest = next(shown).rstrip(")").split(" (")
            assert float(mean) == pytest.approx(np.mean(coverage), abs=0.0051)
            assert float(lowest) == pytest.approx(min(coverage), abs=0.0051)
