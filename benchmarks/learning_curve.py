"""Do forecasts of `fmcpe.diagnostics.learning_curve` come true? The score at twice the pairs, forecast and measured.

Truth: the energy score of 500 test pairs by the fit on 2N pairs, over that by the fit on the first N of them. The forecast sees
these N pairs alone. Problems with pairs from another distribution than the test pairs (calibration-shift) are left out: there
the score of a new pair is not what pairs can tell. The prior of the power law was chosen on the development half (``--tune``).

    python benchmarks/learning_curve.py docs/results/trust/learning-curve.csv          # what is missing, then the table
    python benchmarks/learning_curve.py --tune                                         # other priors, development half

Base posteriors and scores are kept in fmcpe-trust/; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
import os
import sys
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import fmcpe
from fmcpe import Stack, candidates, tasks
from fmcpe._random import seeded
from fmcpe.diagnostics.learning_curve import LearningCurve, learning_curve, unseen_scores
from fmcpe.diagnostics.power_law import PowerLawPrior

FOLDER = Path("fmcpe-trust")
LIGHT = Stack(
    [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood()]
)
RECIPES = {"light": LIGHT, "default": Stack()}
PROBLEMS = {
    "development": (
        "linear-gain-offset", "linear-none", "linear-channels", "linear-prior-shift", "g-and-k-saturation", "g-and-k-none",
        "g-and-k-outliers", "heat-missing-physics", "heat-channels", "enzyme-missing-physics", "enzyme-heteroscedastic",
        "sir-nuisance", "oscillator-lag", "transit-nuisance",
    ),
    "reporting": (
        "pharmacokinetics-none", "pharmacokinetics-missing-physics", "pharmacokinetics-heteroscedastic",
        "pharmacokinetics-prior-shift", "kepler-nuisance", "kepler-heavy-tails", "kepler-prior-shift", "circuit-gain-offset",
        "circuit-noise-scale", "circuit-missing-physics", "ornstein-uhlenbeck-missing-physics",
        "ornstein-uhlenbeck-gain-offset", "projectile-missing-physics", "fitzhugh-nagumo-lag",
    ),
}  # fmt: skip
DEFAULT = ("pharmacokinetics-missing-physics", "kepler-nuisance", "circuit-gain-offset")
"""Problems of the reporting half that are also run with the default recipe, on one calibration set."""
PAIRS, SETS, TESTS, DRAWS = (25, 50), (0, 1), 500, 64


def problem_of(name):
    """A zoo problem and a base posterior, trained once."""
    task = tasks.get(f"zoo/{name}", seed=tasks.zoo.SEEDS[tasks.zoo.half_of(f"zoo/{name}")])
    path = FOLDER / f"{name}.pt"
    if not path.exists():
        with seeded(0):
            net = task.embedding_net()
        base = fmcpe.train_npe(
            task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
        )
        keep(base, path)
    return task, torch.load(path, weights_only=False)


def keep(what, path):
    """Write a file whole or not at all."""
    FOLDER.mkdir(exist_ok=True)
    torch.save(what, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def settings():
    """Recipe, half, problem and calibration set of everything that is measured."""
    for half, names in PROBLEMS.items():
        for number in SETS:
            yield from (("light", half, name, number) for name in names)
    yield from (("default", "reporting", name, SETS[0]) for name in DEFAULT)


def path_of(recipe, name, number):
    return FOLDER / f"{recipe}-{name}-{number}.pt"


def measure(recipe, name, number):
    """Scores of the test pairs at each number of pairs, and the learning curves of those whose double is among them."""
    task, base = problem_of(name)
    method = fmcpe.FMCPE(base, task.simulator, target_prior=task.prior, recipe=RECIPES[recipe])
    theta, y = task.calibration_set(2 * max(PAIRS), number)
    theta_test, y_test = task.test_set(TESTS, 0)
    test = {}
    for n in sorted({*PAIRS, *(2 * n for n in PAIRS)}):
        posterior = method.fit(theta[:n], y[:n], seed=0, show_progress_bars=False)
        test[n] = unseen_scores(posterior, theta_test, y_test, DRAWS, 0)
    curves = {n: vars(learning_curve(method, theta[:n], y[:n], seed=number)) for n in PAIRS}
    return {"test": test, "curve": curves}


def forecasts(half=None):
    """Everything measured so far: recipe, half, problem, set, pairs, curve, true ratio and its standard error."""
    for recipe, of, name, number in settings():
        path = path_of(recipe, name, number)
        if path.exists() and half in (None, of):
            kept = torch.load(path, weights_only=False)
            for n, parts in kept["curve"].items():
                before, after = kept["test"][n], kept["test"][2 * n]
                error = (after / after.mean() - before / before.mean()).std() / len(before) ** 0.5
                truth = float(after.mean() / before.mean())
                yield recipe, of, name, number, n, LearningCurve(**parts), truth, truth * float(error)


def interval_score(low, high, truth, level=0.8):
    """Proper score of an interval of the log ratio, in %: width, and a penalty for what lies outside; lower is better."""
    low, high, truth = np.log([low, high, truth])
    return 100 * (high - low + 2 / (1 - level) * (max(0.0, low - truth) + max(0.0, truth - high)))


def tune():
    """Interval score and coverage of other priors, on the development half."""
    data = list(forecasts("development"))
    default = PowerLawPrior()
    changes = [{}] + [{"removable": r} for r in ((1, 2), (1, 5), (2, 3), (2, 9), (2, 18), (4, 10))]
    changes += [{"rates": r} for r in ((0.25, 0.5), (0.5, 0.5), (1.0, 1.0), (0.25, 1.5))]
    changes += [{"spread": s} for s in (0.025, 0.1, 0.2)] + [{"spread_count": c} for c in (2.0, 4.0, 16.0)]
    for change in changes:
        prior, rows = replace(default, **change), []
        for *_, n, curve, truth, _error in data:
            law = curve.fit_power_law(prior)
            low, high = law.interval(2 * n)
            rows.append((interval_score(low, high, truth), low <= truth <= high, np.log(law.ratio(2 * n) / truth)))
        score, inside, bias = np.mean(rows, axis=0)
        print(f"{change!s:28s} interval score {score:5.2f} %  coverage {inside:.2f}  mean error {100 * bias:+.1f} %")
    print(f"{len(data)} forecasts; default {asdict(default)}")


def table():
    """Rows of the CSV, and lines of the summary."""
    rows, groups = [], {}
    for recipe, half, name, number, n, curve, truth, error in forecasts():
        made = curve.forecast(2 * n)
        numbers = [f"{value:.4f}" for value in (made.ratio, made.low, made.high, truth, error)]
        rows.append([recipe, half, name, number, n, 2 * n, *numbers, int(made.low <= truth <= made.high)])
        score = interval_score(made.low, made.high, truth)
        found = (made.low <= truth <= made.high, made.ratio, truth, made.high - made.low, score)
        groups.setdefault((recipe, half, "all"), []).append(found)
        groups.setdefault((recipe, half, f"{n} to {2 * n}"), []).append(found)
    lines = ["recipe   half         pairs      forecasts  80 % interval holds   forecast  truth  width  correlation"]
    for (recipe, half, which), found in groups.items():
        inside, ratio, truth, width, _ = np.array(found, dtype=float).T
        low, high = stats.binomtest(int(inside.sum()), len(inside)).proportion_ci(0.95, method="wilson")
        correlation = np.corrcoef(ratio, truth)[0, 1]
        lines.append(
            f"{recipe:8s} {half:12s} {which:10s} {len(found):9d}  {inside.mean():5.0%} ({low:.0%} to {high:.0%})    "
            f"{ratio.mean():8.3f}  {truth.mean():.3f}  {width.mean():.3f}  {correlation:+.2f}"
        )
    return rows, lines


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "--tune" in sys.argv:
        return tune()
    for recipe, _, name, number in settings():
        path, started = path_of(recipe, name, number), time.process_time()
        if not path.exists():
            keep(measure(recipe, name, number), path)
            print(recipe, name, number, f"{time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)
    rows, lines = table()
    print("\n".join(lines))
    if len(sys.argv) > 1:
        header = (
            "recipe",
            "half",
            "problem",
            "set",
            "pairs",
            "to",
            "forecast",
            "low",
            "high",
            "truth",
            "error",
            "inside",
        )
        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        with open(sys.argv[1], "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main()
