"""Do conformal intervals keep their promise, and what do they cost in width? Tables and the picture of docs/guarantees.

    python benchmarks/conformal.py                  fits what the tables lack, then prints them and draws the picture
    python benchmarks/conformal.py --only draw      from the tables as they are

split      Five problems and posteriors of three kinds: the default recipe, fitted on 30 or 100 pairs, the uncorrected base,
           and on two of them the paper's recipe, on 30. Median and half-width are computed once for 3000 new pairs (1500 for
           the paper's recipe, whose draws are slow). 500 times, n of them are held out and all others are asked about. "plain"
           are the posterior's own central 90 % intervals on the same pairs. The promise is kept if the mean coverage is within
           three standard errors of [1 - α, 1 - α + 1/(n + 1)].
weighted   The same with held-out pairs from a design that prefers small values of the first parameter, for observations from
           the target prior: with weights, and without.
cv+        100 times: new pairs, `fit(..., conformal="cv+")` with a light stack, and 75 new observations. The base is trained
           once.

Each finished fit is a block of rows in docs/results/trust, and is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor

import fmcpe
from fmcpe import FMCPE, FMCPEWarning, Stack, baselines, candidates, tasks
from fmcpe._random import derive, seeded
from fmcpe.diagnostics import CVPlus
from fmcpe.diagnostics.conformal import SplitConformal
from fmcpe.diagnostics.cv_plus import CVPlusConformal, guaranteed
from fmcpe.diagnostics.label_shift import LabelShiftConformal, hull
from fmcpe.posterior import CorrectedPosterior
from fmcpe.tasks.plots import small_png

ROOT = Path(__file__).parents[1]
OUT, PICTURE = ROOT / "docs/results/trust", ROOT / "docs/images/conformal.png"
PROBLEMS = (
    "gaussian", "pendulum", "zoo/pharmacokinetics-missing-physics", "zoo/kepler-prior-shift", "zoo/enzyme-channels",
)  # fmt: skip
SPLIT = [(name, *kind) for name in PROBLEMS for kind in (("uncorrected", 0), ("default", 30), ("default", 100))]
SPLIT += [(name, "paper", 30) for name in ("gaussian", "pendulum")]
HELD_OUT, REDRAWS, POOL, DRAWS, LEVEL = (20, 50, 200), 500, 3000, 200, 0.9
DESIGNED, DESIGNED_HELD_OUT = (("gaussian", "default", 30), ("zoo/enzyme-channels", "uncorrected", 0)), (50, 200)
CV, CV_PAIRS, CV_REPEATS, CV_NEW = ("gaussian", "zoo/enzyme-channels"), (20, 50), 100, 75
LIGHT = Stack(
    [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood()],
    folds=3,
    repeats=1,
)


class Table:
    """A CSV of rows that are appended in blocks; a block that is there is not computed again."""

    def __init__(self, name: str) -> None:
        self.path = OUT / f"conformal-{name}.csv"

    def rows(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def has(self, **key: Any) -> bool:
        return any(all(row[name] == str(value) for name, value in key.items()) for row in self.rows())

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        rows, new = list(rows), not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            if new:
                writer.writeheader()
            writer.writerows(rows)

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        self.path.unlink(missing_ok=True)
        self.append(rows)


@lru_cache
def problem(name: str) -> tuple[Any, Any]:
    """The task and its base posterior."""
    zoo = name.startswith("zoo/")
    task = tasks.get(name, **({"seed": tasks.zoo.SEEDS[tasks.zoo.half_of(name)]} if zoo else {}))
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
    )
    return task, base


def fitted(name: str, recipe: str, pairs: int) -> CorrectedPosterior:
    task, base = problem(name)
    if recipe == "uncorrected":
        return baselines.NPE(base, task.prior).fit()
    method = FMCPE(base, task.simulator, task.prior, recipe=recipe)
    return method.fit(*task.calibration_set(pairs, 0), seed=0, show_progress_bars=False)


def described(posterior: CorrectedPosterior, y: Tensor, seed: int | None, number: int = DRAWS) -> tuple[Tensor, ...]:
    """Median and half-width in z, (B, p), and the 5th, 95th percentile, (2, B, p): one set of draws for all."""
    with seeded(seed):
        draws = posterior.sample_batched((number,), x=y, show_progress_bars=False)
    z = posterior.space.to_z_safely(draws.flatten(0, 1)).reshape(draws.shape)
    low5, low, middle, high, high5 = z.quantile(torch.tensor([0.05, 0.16, 0.5, 0.84, 0.95]), dim=0)
    return middle, ((high - low) / 2).clamp_min(1e-6), torch.stack([low5, high5])


def split(table: Table, name: str, recipe: str, pairs: int) -> None:
    """Coverage and width over held-out sets of each size."""
    size, draws = (POOL // 2, DRAWS // 2) if recipe == "paper" else (POOL, DRAWS)
    posterior, (theta, y) = fitted(name, recipe, pairs), problem(name)[0].test_set(size, 7)
    median, width, plain = described(posterior, y, 0, draws)
    truth = posterior.space.to_z_safely(theta)
    scores, held = ((truth - median) / width).abs(), (truth >= plain[0]) & (truth <= plain[1])
    unit = (
        2 * width / (plain[1] - plain[0]).clamp_min(2e-6)
    )  # width of an interval that reaches one score, over the plain one's
    rows = []
    for number in HELD_OUT:
        for joint in (False, True):
            covered, reaches = [], []
            with seeded(derive(0, number)):
                orders = [torch.randperm(size) for _ in range(REDRAWS)]
            for order in orders:
                reach, _ = SplitConformal(scores[order[:number]], DRAWS).threshold(LEVEL, joint)
                inside = scores[order[number:]] <= reach
                covered.append((inside.all(1, keepdim=True) if joint else inside).double().mean(0))
                reaches.append(reach)
            coverage, ratio = torch.stack(covered), torch.stack(reaches)[:, None] * unit[:: size // 500]
            rank = math.ceil(LEVEL * (number + 1) - 1e-9)
            law = stats.beta(rank, number + 1 - rank)
            for i, each in enumerate(coverage.T):
                error = float(each.std()) / REDRAWS**0.5
                inside = LEVEL - 3 * error <= float(each.mean()) <= LEVEL + 1 / (number + 1) + 3 * error
                asked = held.all(1) if joint else held[:, i]
                rows.append(
                    {
                        "problem": name,
                        "recipe": recipe,
                        "pairs": pairs,
                        "held_out": number,
                        "parameter": "joint" if joint else i,
                        "plain": f"{float(asked.double().mean()):.3f}",
                        "coverage": f"{float(each.mean()):.4f}",
                        "standard_error": f"{error:.4f}",
                        "promise_low": f"{LEVEL:.4f}",
                        "promise_high": f"{LEVEL + 1 / (number + 1):.4f}",
                        "kept": inside,
                        "coverage_5": f"{float(each.quantile(0.05)):.3f}",
                        "coverage_5_by_beta": f"{law.ppf(0.05):.3f}",
                        "width_ratio": f"{float((ratio if joint else ratio[..., i]).median()):.3f}",
                    }
                )
    table.append(rows)


def weighted(table: Table, name: str, recipe: str, pairs: int) -> None:
    """Held-out pairs from a design, with and without weights, for observations from the target prior."""
    posterior, (theta, y) = fitted(name, recipe, pairs), problem(name)[0].test_set(POOL, 7)
    space = posterior.space

    def accepted(at: Tensor) -> Tensor:
        return 0.2 + 0.8 * torch.sigmoid(-3 * space.to_z_safely(at)[:, 0])

    half = POOL // 2
    with seeded(11):  # a design: θ of the prior, kept with a probability that falls with the first parameter
        kept = (torch.rand(half) < accepted(theta[:half])).nonzero()[:, 0]
    pool = LabelShiftConformal.of(posterior, theta[kept], y[kept], lambda at: 1 / accepted(at), DRAWS, 0)
    median, width, plain = described(posterior, y[half:], 0)
    truth, rows = space.to_z_safely(theta[half:]), []
    for number in DESIGNED_HELD_OUT:
        for joint in (False, True):
            found: dict[str, list[Tensor]] = {"weights": [], "none": []}
            spans: dict[str, list[Tensor]] = {"weights": [], "none": []}
            effective = []
            with seeded(derive(0, number)):
                orders = [torch.randperm(len(kept))[:number] for _ in range(REDRAWS)]
            for order in orders:
                few = replace(pool, scores=pool.scores[order], weights=pool.weights[order])
                reach, _ = SplitConformal(few.scores, DRAWS).threshold(LEVEL, joint)
                ends = {
                    "weights": hull(median, width, few.thresholds(LEVEL, joint).to(median), pool.edges),
                    "none": (median - reach * width, median + reach * width),
                }
                effective.append(few.effective)
                for kind, (low, high) in ends.items():
                    inside = (truth >= low) & (truth <= high)
                    found[kind].append((inside.all(1, keepdim=True) if joint else inside).double().mean(0))
                    spans[kind].append(((high - low) / (plain[1] - plain[0]).clamp_min(2e-6))[::30])
            for kind, coverages in found.items():
                coverage, ratio = torch.stack(coverages), torch.stack(spans[kind])
                for i, each in enumerate(coverage.T):
                    rows.append(
                        {
                            "problem": name,
                            "recipe": recipe,
                            "pairs": pairs,
                            "held_out": number,
                            "effective": f"{sum(effective) / len(effective):.1f}",
                            "weights": kind,
                            "parameter": "joint" if joint else i,
                            "coverage": f"{float(each.mean()):.4f}",
                            "standard_error": f"{math.sqrt(float(each.var()) / REDRAWS + 0.09 / half + 0.09 / len(kept)):.4f}",
                            "coverage_5": f"{float(each.quantile(0.05)):.3f}",
                            "width_ratio": f"{float((ratio if joint else ratio[..., i]).median()):.3f}",
                        }
                    )
    table.append(rows)


def cv_plus(table: Table, name: str, pairs: int, repeat: int) -> None:
    """One calibration set, and new observations."""
    task, base = problem(name)
    started, plan = time.process_time(), CVPlus(num_samples=DRAWS)
    posterior = FMCPE(base, task.simulator, task.prior, recipe=LIGHT).fit(
        *task.calibration_set(pairs, repeat), conformal=plan, seed=repeat, show_progress_bars=False
    )
    found = posterior.conformal
    assert isinstance(found, CVPlusConformal)
    theta, y = task.test_set(CV_NEW, 1000 + repeat)
    truth, (_, _, plain) = posterior.space.to_z_safely(theta), described(posterior, y, repeat)
    answers, held = found.answers(y, repeat), (truth >= plain[0]) & (truth <= plain[1])
    row: dict[str, Any] = {"problem": name, "pairs": pairs, "repeat": repeat}
    row |= {
        "plain_each": f"{float(held.double().mean()):.4f}",
        "plain_joint": f"{float(held.all(1).double().mean()):.4f}",
    }
    for joint in (False, True):
        low, high = found.ends_of(*answers, LEVEL, joint)
        inside, kind = (truth >= low) & (truth <= high), "joint" if joint else "each"
        row[f"coverage_{kind}"] = f"{float((inside.all(1) if joint else inside).double().mean()):.4f}"
        row[f"width_{kind}"] = f"{float(((high - low) / (plain[1] - plain[0]).clamp_min(2e-6)).median()):.4f}"
    table.append([row | {"seconds": f"{time.process_time() - started:.1f}"}])


def cv_summary(units: list[dict[str, str]]) -> list[dict[str, Any]]:
    rows = []
    for name, pairs in sorted({(row["problem"], int(row["pairs"])) for row in units}):
        some = [row for row in units if (row["problem"], int(row["pairs"])) == (name, pairs)]
        for kind in ("each", "joint"):
            values = {
                what: torch.tensor([float(row[f"{what}_{kind}"]) for row in some])
                for what in ("coverage", "width", "plain")
            }
            coverage, promised = values["coverage"], guaranteed(LEVEL, pairs)
            error = float(coverage.std()) / len(some) ** 0.5
            rows.append(
                {
                    "problem": name,
                    "pairs": pairs,
                    "parameters": kind,
                    "repeats": len(some),
                    "plain": f"{float(values['plain'].mean()):.3f}",
                    "guaranteed": f"{promised:.3f}",
                    "coverage": f"{float(coverage.mean()):.3f}",
                    "standard_error": f"{error:.3f}",
                    "kept": float(coverage.mean()) > promised - 3 * error,
                    "coverage_5": f"{float(coverage.quantile(0.05)):.3f}",
                    "width_ratio": f"{float(values['width'].median()):.3f}",
                    "seconds": f"{sum(float(row['seconds']) for row in some) / len(some):.1f}",
                }
            )
    return rows


def draw() -> None:
    """Left: coverage with held-out pairs. Middle: what it costs in width. Right: CV+."""
    rows, cv = Table("split").rows(), Table("cv").rows()
    figure = Figure(figsize=(13, 5.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1.1, 1))
    kinds = [
        kind
        for kind in sorted(SPLIT, key=lambda kind: PROBLEMS.index(kind[0]))
        if any(_of(row) == kind for row in rows)
    ]
    colours = dict(zip(HELD_OUT, ("tab:orange", "tab:green", "tab:blue"), strict=True))
    labels = [
        f"{name.removeprefix('zoo/')}, {recipe}{f', {pairs} pairs' if pairs else ''}" for name, recipe, pairs in kinds
    ]
    for at, kind in enumerate(kinds):
        mine = [row for row in rows if _of(row) == kind and row["parameter"] != "joint"]
        left.plot(_mean(mine, "plain"), at, "x", color="black", label="" if at else "posterior's own 90 % interval")
        for step, number in enumerate(HELD_OUT):
            some, y = [row for row in mine if int(row["held_out"]) == number], at + 0.22 * (step - 1)
            lowest = min(float(row["coverage_5"]) for row in some)
            label = "" if at else f"conformal, {number} held-out pairs"
            left.plot([lowest, _mean(some, "coverage")], [y, y], color=colours[number], lw=1)
            left.plot(_mean(some, "coverage"), y, "o", ms=4, color=colours[number], label=label)
            middle.plot(_mean(some, "width_ratio"), y, "o", ms=4, color=colours[number])
    left.axvline(LEVEL, color="grey", lw=0.8, ls=":")
    middle.axvline(1, color="grey", lw=0.8, ls=":")
    middle.set_xscale("log")
    left.set_yticks(range(len(kinds)), labels, fontsize=8)
    middle.set_yticks([])
    left.set(
        title="Coverage, mean over parameters\n(line: to the 5th percentile of held-out sets)",
        xlabel="coverage",
        xlim=(0, 1),
    )
    middle.set(title="Median width over that of\nthe posterior's own 90 % interval", xlabel="ratio")
    for axes in (left, middle):
        axes.invert_yaxis()
    left.legend(fontsize=7, loc="lower left", frameon=False)
    for at, row in enumerate(cv):
        low = float(row["coverage_5"])
        right.plot([low, float(row["coverage"])], [at, at], color="tab:blue", lw=1)
        right.plot(float(row["coverage"]), at, "o", color="tab:blue", label="" if at else "CV+, mean of 100 fits")
        right.plot(float(row["plain"]), at, "x", color="black", label="" if at else "posterior's own 90 % interval")
        right.plot(float(row["guaranteed"]), at, "|", ms=12, color="tab:red", label="" if at else "guaranteed")
    names = [f"{row['problem'].removeprefix('zoo/')}\n{row['pairs']} pairs, {row['parameters']}" for row in cv]
    right.set_yticks(range(len(cv)), names, fontsize=8)
    right.axvline(LEVEL, color="grey", lw=0.8, ls=":")
    right.set(title="CV+ at a nominal 90 %\n(line: to the 5th percentile of fits)", xlabel="coverage", xlim=(0, 1))
    right.invert_yaxis()
    right.legend(fontsize=7, loc="lower left", frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.write_bytes(small_png(figure, 110, 64))


def _of(row: dict[str, str]) -> tuple[str, str, int]:
    return row["problem"], row["recipe"], int(row["pairs"])


def _mean(rows: list[dict[str, str]], name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)


def printed(rows: list[dict[str, Any]]) -> None:
    for row in [dict.fromkeys(rows[0], ""), *rows]:
        cells = row.values() if any(row.values()) else row
        print("  ".join(f"{cell!s:>18.36}" for cell in cells))
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("split", "weighted", "cv+", "draw"), help="one part")
    parser.add_argument("--repeats", type=int, default=CV_REPEATS, help="of CV+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FMCPEWarning)
    tables = {name: Table(name) for name in ("split", "weighted", "cv-units", "cv")}
    for part in ("split", "weighted", "cv+"):
        if options.only not in (None, part):
            continue
        if part == "cv+":
            for name in CV:
                for pairs in CV_PAIRS:
                    for repeat in range(options.repeats):
                        if not tables["cv-units"].has(problem=name, pairs=pairs, repeat=repeat):
                            cv_plus(tables["cv-units"], name, pairs, repeat)
            tables["cv"].write(cv_summary(tables["cv-units"].rows()))
            continue
        for key in SPLIT if part == "split" else DESIGNED:
            if not tables[part].has(problem=key[0], recipe=key[1], pairs=key[2]):
                started = time.process_time()
                (split if part == "split" else weighted)(tables[part], *key)
                print(part, *key, f"{time.process_time() - started:.1f} s", flush=True)
    for name in ("split", "weighted", "cv"):
        if tables[name].rows():
            printed(tables[name].rows())
    draw()


if __name__ == "__main__":
    main()
