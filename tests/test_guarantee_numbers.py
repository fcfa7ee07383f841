"""The numbers of the page on diagnostics are those of the committed tables."""

import csv
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = re.sub(r"\s+", " ", (DOCS / "guarantees/diagnostics.md").read_text(encoding="utf-8"))


def table(name):
    with (DOCS / "results/trust" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def per_cent(share):
    return f"{100 * float(share):.0f} %"


def mean(rows, column):
    return sum(float(row[column]) for row in rows) / len(rows)


def test_calibration():
    rows = {(row["posterior"], int(row["pairs"])): row for row in table("calibration")}
    names = {"std x 0.6": "std × 0.6", "std x 1.7": "std × 1.7"}
    names |= {f"shift {sign} 0.5 std": f"shift by {sign} half a std" for sign in "+-"}
    few, many = rows["exact", 50], rows["exact", 200]
    assert f"| exact | 50 / 200 | {few['alarm']} / {many['alarm']} |" in PAGE
    for name, shown in names.items():
        alarm, right = ([f"{float(rows[name, n][column]):g}" for n in (50, 200)] for column in ("alarm", "right"))
        assert f"| {shown} | 50 / 200 | {' / '.join(alarm)} | {' / '.join(right)} |" in PAGE
    alarms = [float(rows[name, 50]["alarm"]) for name in names]
    assert f"faulty ones in {min(alarms):g} to {max(alarms):g} %" in PAGE


def test_misspecification():
    rows = table("misspecification")
    right = [row for row in rows if row["severity"] == "none" and row["kind"] != "right, other θ"]
    other = [row for row in rows if row["kind"] == "right, other θ"]
    tests, problems = sum(int(row["repeats"]) for row in right), len({row["problem"] for row in right})
    low, *_, high = sorted(float(row["mmd"]) for row in right)
    assert (
        f"({tests} tests of {problems} problems) | {mean(right, 'conditional'):.3f} | {low:.2f}–{high:.2f}, mean "
        f"{mean(right, 'mmd'):.2f} |"
    ) in PAGE
    tests = sum(int(row["repeats"]) for row in other)
    assert f"({tests} tests) | {mean(other, 'conditional'):.3f} | {mean(other, 'mmd'):.2f} |" in PAGE
    for half in ("development", "reporting"):
        shown = re.search(rf"\| {half} half, mild / moderate / severe \| ([^|]+) \| ([^|]+) \|", PAGE).groups()
        for column, cell in zip(("conditional", "mmd"), shown, strict=True):
            for severity, part in zip(("mild", "moderate", "severe"), cell.split(" / "), strict=True):
                chosen = [row for row in rows if row["half"] == half and row["severity"] == severity]
                found = [mean([row for row in chosen if row["pairs"] == n], column) for n in ("10", "30", "100")]
                said = [float(number) for number in re.split(r", |–", part)]
                ends = found if len(said) == 3 else (min(found), max(found))
                said = said if len(said) > 1 else said * 2
                assert said == pytest.approx(list(ends), abs=0.0051)  # two digits


def test_unlabelled_observations():
    rows, section = table("gaussian-summaries"), PAGE.split("### Without pairs")[1]

    def cell(chosen, gamma, number):
        part = [row for row in chosen if float(row["gamma"]) == gamma and int(row["observations"]) == number]
        tests = [int(row["tests"]) for row in part]
        return sum(float(row["mmd"]) * n for row, n in zip(part, tests, strict=True)) / sum(tests)

    wrong = [row for row in rows if row["kind"] != "none"]
    shown = {"the simulator itself": [row for row in rows if row["kind"] == "none"]}
    shown |= {name: [row for row in wrong if row["half"] == half] for name, half in (
        ("toy, five kinds of misspecification", "toy"), ("development half", "development"), ("reporting half", "reporting")
    )}  # fmt: skip
    for name, chosen in shown.items():
        said = re.search(rf"\| [^|]*{name}[^|]* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", section).groups()
        for number, text in zip((1, 10, 100), said, strict=True):
            expected = [cell(chosen, gamma, number) for gamma in (0.0, 10.0)]
            assert [float(value) for value in text.split(" / ")] == pytest.approx(expected, abs=0.0051)


def test_suspects():
    rows = {(row["problem"], row["fault"]): row for row in table("suspects")}
    for problem in ("gaussian", "zoo/heat-gain-offset"):
        found = [per_cent(rows[problem, fault]["found"]) for fault in ("y x 10", "flip", "swap")]
        line = re.search(rf"\| `{problem}` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([\d.]+) \|", PAGE).groups()
        assert [cell.replace("found", "").replace("(both rows)", "").strip() for cell in line[:3]] == found
        assert float(line[3]) == float(rows[problem, "clean"]["false"])
    assert f"on `gaussian` are found in {per_cent(rows['gaussian', 'swap']['found'])} of cases" in PAGE


def test_robustness():
    rows = {(row["problem"], row["robust"], row["fault"]): row for row in table("robustness")}
    for problem in ("gaussian", "zoo/heat-gain-offset", "zoo/g-and-k-saturation"):
        kept, left = (
            " | ".join(rows[problem, robust, fault]["error"] for fault in ("clean", "y x 10", "flip", "swap"))
            for robust in ("False", "True")
        )
        assert f"| `{problem}` | all stay | {kept} | | | wrong ones left out | {left} |" in PAGE
    kept, left = (rows["gaussian", robust, "swap"]["increase"] for robust in ("False", "True"))
    assert f"grows by {kept} if all pairs stay and by {left} if not" in PAGE
