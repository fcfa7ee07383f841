"""What do real observations without θ add to the default recipe? On problems of the zoo's development half. Writes a CSV.

    python benchmarks/unlabelled.py docs/results/zoo/unlabelled.csv             rows that the CSV has are not measured again

10, 30 and 100 pairs, 300 unlabelled y, 100 test pairs, three sets; the stack without the joint flow. Three uses:

- Standardisation: the residual shift standardises summaries by pairs and unlabelled y ("scale"); the synthetic likelihood takes
  its directions of the data from both, as many as both allow ("directions"), or as the pairs alone do ("same number").
- Domain alignment: fine-tuning with MMD² between embeddings of unlabelled y and of simulations in the loss ("mmd"; series
  only, vectors have no embedding; one set); `GaussianTransport` as one more candidate ("transport").
- Range: p-values of the distance to all real y ("usual"), or the smaller one of these and those of the pairs ("both").

"now" is without unlabelled y. Columns of the first two uses are log ratios of energy scores to now: of the candidate "alone"
(the transport: to the uncorrected posterior), or of the "stack" with it. What did not pay lives in this script only.
Columns of the range: share of test observations with p < 0.001 ("warned"), their mean share of the prior, mean standard
deviation of the answer over that of now, and the share of warned ones after a move by 2 or 4 standard deviations in a random
direction of the whitened real summaries ("found"). Prints means ± standard errors over problems.
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

import fmcpe
from fmcpe import Stack, candidates, tasks
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates import residual_shift, synthetic_likelihood
from fmcpe.energy import CrossFit, Distances
from fmcpe.in_range import Range, RangeCheck, whitening
from fmcpe.mixture import Mixture
from fmcpe.nn import estimators
from fmcpe.nn.directions import Directions
from fmcpe.nn.embeddings import level_aware_part
from fmcpe.problem import build_problem, groups_of, split_pairs
from fmcpe.spaces import FlatStandardiser
from fmcpe.stacking import training_rows

PROBLEMS = (
    "linear-gain-offset", "oscillator-missing-physics", "heat-channels", "sir-nuisance", "linear-prior-shift",
    "enzyme-missing-physics", "g-and-k-saturation", "heat-gain-offset", "linear-correlated-noise",
)  # fmt: skip
PAIRS, SETS, UNLABELLED, TESTS = (10, 30, 100), 3, 300, 100
MOVES = (2.0, 4.0)


@contextmanager
def patched(module, name, value):
    """A name of a module stands for another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def scale_of(unlabelled):
    """A standardiser of summaries of pairs and unlabelled y."""
    return patched(residual_shift, "FlatStandardiser", lambda rows: FlatStandardiser(torch.cat([rows, unlabelled])))


def directions_of(unlabelled, same_number):
    """Directions of pairs and unlabelled y."""

    class Both(Directions):
        @classmethod
        def of(cls, y, most):
            most = min(most, max(1, len(y) - 2)) if same_number and y[0].numel() > most else most
            return Directions.of(torch.cat([y, unlabelled]), most)

    return patched(synthetic_likelihood, "Directions", Both)


def mmd2(a, b):
    """Squared maximum mean discrepancy of rows (K, n, f), with a sum of Gaussian kernels at the median distance: (K,)."""
    both, n = torch.cat([a, b], dim=1), a.shape[1]
    squares = torch.cdist(both, both).square()
    unit = squares.detach().flatten(1).median(1).values.clamp_min(1e-12)[:, None, None]
    kernel = torch.stack([(-squares / (2 * unit * s)).exp() for s in (0.25, 1.0, 4.0)]).mean(0)
    return kernel[:, :n, :n].mean((1, 2)) + kernel[:, n:, n:].mean((1, 2)) - 2 * kernel[:, :n, n:].mean((1, 2))


def aligned(unlabelled, simulations, weight, rows=32):
    """The loss of fine-tuning and weight·MMD² between embeddings of unlabelled y and of simulations."""

    class Loss(estimators._NativeLoss):
        def forward(self, theta, x, levels):
            loss = super().forward(theta, x, levels)
            if not torch.is_grad_enabled():
                return loss
            parts = [each[torch.randint(len(each), (len(theta), rows))].to(x) for each in (unlabelled, simulations)]
            features = self.embedding(torch.cat(parts, dim=1), torch.zeros_like(levels[:, :1]).expand(-1, 2 * rows, -1))
            if level_aware_part(self) is not None:
                features = features[..., :-1]
            return loss + weight * mmd2(features[:, :rows], features[:, rows:])[:, None]

    return patched(estimators, "_NativeLoss", Loss)


def base_of(name):
    """Task and base posterior."""
    task = tasks.get(f"zoo/{name}", seed=tasks.zoo.SEEDS["development"])
    with seeded(0):
        net = task.embedding_net()
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 10_000, net, seed=0, max_num_epochs=20, show_progress_bars=False
    )
    return task, as_base_posterior(base, task.simulation_prior)


def problem_of(task, base, theta, y):
    """The problem of some pairs."""
    with seeded(0):
        return build_problem(base, CheckedSimulator(task.simulator, y.shape[1:]), task.prior, theta, y, None)


def draws_of(posterior, y):
    """(B, 64, p), always with the same seed."""
    with seeded(1), torch.no_grad():
        return posterior.sample(y, 64)


def energy(draws, truth):
    """Of draws (B, S, p)."""
    return fmcpe.metrics.energy_score(draws.movedim(0, 1), truth)


def measure_range(within, problem, seen, draws, y, truth, moved, row):
    """Columns of the range: `draws`, of the posterior without λ, are mixed with the prior."""
    pairs, simulated = problem.seen.flatten(1), problem.bank_seen[:300].flatten(1)
    now, real = Range.of(pairs, simulated), Range.of(torch.cat([pairs, seen]), simulated)
    usual = {
        "now": now.p_values,
        "usual": real.p_values,
        "both": lambda rows: torch.minimum(now.p_values(rows), real.p_values(rows)),
    }
    prior, summaries = draws_of(within.prior, y), within.base.summarise(y).flatten(1)
    with seeded(3):
        uniform = torch.rand(*draws.shape[:2], 1)
    for kind, p_values in usual.items():
        p = p_values(summaries)
        rest, widening = within.widening(y, p)
        share = 1 - (1 - within._share(p)) * (1 - rest) * (1 - within.share_by_theta(y).amax(1))
        mixed = torch.where(uniform < share[:, None, None], prior, widening(draws))
        row[f"{kind}: energy"], row[f"{kind}: width"] = energy(mixed, truth), float(mixed.std(1).mean())
        row[f"{kind}: warned"] = float((p < RangeCheck.level).double().mean())
        row[f"{kind}: prior"] = float(share.mean())
        for distance, rows in moved.items():
            found = p_values(rows) < RangeCheck.level
            row[f"{kind}: found {distance:g}"] = float(found.double().mean())
    for kind in list(usual)[1:]:
        row[f"{kind}: energy"] = np.log(row[f"{kind}: energy"] / row["now: energy"])
        row[f"{kind}: width"] /= row["now: width"]


def measure(task, base, number, repeat):
    """One row."""
    theta, y = task.calibration_set(number, repeat)
    theta_test, y_test = task.test_set(TESTS + UNLABELLED, repeat)
    unlabelled, theta_test, y_test = y_test[TESTS:], theta_test[:TESTS], y_test[:TESTS]
    problem, row = problem_of(task, base, theta, y), {}
    truth, seen = problem.space.to_z_safely(theta_test), problem.summarised.summarise(unlabelled)
    own = (
        candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood(),
        candidates.FineTuned(),
    )  # fmt: skip
    stack = Stack(own)
    with seeded(0):
        folds = split_pairs(problem.theta, stack.folds, stack.repeats)
    rows, pairs = training_rows(problem, folds, stack.robust), float(groups_of(problem.theta)[1])

    def fitted(candidate, problem=problem):
        """Cross-fitted, and the same with draws of the ensemble for test observations."""
        fit = Stack([candidate]).cross_fit(problem, folds, rows, 0)[0][candidate.name]
        draws = draws_of(Mixture(fit.members, torch.ones(len(fit.members))), y_test)
        return fit, CrossFit(fit.members, draws[:, None], 0.0)

    def score(found):
        """Energy score of the stack for the test pairs, and its weights."""
        fits, tests = zip(*found.values(), strict=True)
        weights = stack.weights(tuple(found), Distances.of(fits, problem.z), pairs)
        return float(Distances.of(tests, truth).scores(weights).mean()), weights

    found = {candidate.name: fitted(candidate) for candidate in own}
    changed = {}
    with scale_of(seen):
        changed["scale"] = "residual_shift", fitted(own[2])
    series = y[0].numel() > own[3].directions
    for label, same_number in (("directions", False), ("same number", True)) if series else ():
        with directions_of(unlabelled, same_number):
            changed[label] = "synthetic_likelihood", fitted(own[3])
    if problem.base.embedding is not None and repeat == 0:
        with aligned(unlabelled, problem.bank_x, 1.0):
            changed["mmd"] = "fine_tuned", fitted(own[4])
    row["energy"], weights = score(found)
    for label, (name, now) in changed.items():
        row[f"{label}: alone"] = np.log(energy(now[1].draws[:, 0], truth) / energy(found[name][1].draws[:, 0], truth))
        row[f"{label}: stack"] = np.log(score(found | {name: now})[0] / row["energy"])
    transport = fitted(candidates.GaussianTransport(), replace(problem, unlabelled=seen))
    before = energy(found["uncorrected"][1].draws[:, 0], truth)
    row["transport: alone"] = np.log(energy(transport[1].draws[:, 0], truth) / before)
    both, with_it = score(found | {"transport": transport})
    row["transport: stack"], row["transport: weight"] = np.log(both / row["energy"]), float(with_it[-1])
    # range
    real = torch.cat([seen, problem.summarised.summarise(y_test)]).flatten(1)
    matrix = torch.linalg.pinv(whitening(real, min(16, real.shape[1]))[1])  # from whitened directions to summaries
    with seeded(2):
        direction = torch.nn.functional.normalize(torch.randn(TESTS, len(matrix)), dim=1) * len(matrix) ** 0.5
    moved = {distance: real[UNLABELLED:] + distance * direction @ matrix for distance in MOVES}
    with seeded(4):
        which = torch.multinomial(weights, TESTS * 64, replacement=True).view(TESTS, 64)
    draws = torch.stack([each[1].draws[:, 0] for each in found.values()])
    draws = draws.gather(0, which[None, :, :, None].expand(1, -1, -1, draws.shape[3]))[0]
    within = stack.combine(problem, folds, rows, {name: each[0] for name, each in found.items()}, {}, 0).posterior
    measure_range(within, problem, seen.flatten(1), draws, y_test, truth, moved, row)
    return row


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1])
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    bases, done = {}, {(row["problem"], int(row["pairs"]), int(row["set"])) for row in rows}
    for repeat, number, name in product(range(SETS), PAIRS, PROBLEMS):
        if (name, number, repeat) in done:
            continue
        if name not in bases:
            bases[name] = base_of(name)
        started = time.process_time()
        row = {key: f"{value:.4f}" for key, value in measure(*bases[name], number, repeat).items()}
        rows.append({"problem": name, "pairs": str(number), "set": str(repeat), **row})
        print(name, number, repeat, f"{time.process_time() - started:.1f} s", file=sys.stderr, flush=True)
        columns = list(dict.fromkeys(key for each in rows for key in each))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
    show(rows)


def show(rows):
    """Means ± standard errors over settings, by number of pairs."""
    columns = [
        key for key in dict.fromkeys(key for row in rows for key in row) if key not in ("problem", "pairs", "set")
    ]
    print(f"{'':32s}" + "".join(f"{n:>22}" for n in (*(f"{n} pairs" for n in PAIRS), "all")))
    for column in columns:
        cells = []
        for numbers in (*((n,) for n in PAIRS), PAIRS):
            # sets of one problem share its base posterior: the standard error is that of problems
            by_problem = [
                [float(row[column]) for row in rows
                 if row["problem"] == name and int(row["pairs"]) in numbers and row.get(column)]
                for name in PROBLEMS
            ]  # fmt: skip
            means = [np.mean(values) for values in by_problem if values]
            error = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
            cells.append(f"{np.mean(means):+.4f} ± {error:.4f}")
        print(f"{column:32s}" + "".join(f"{cell:>22s}" for cell in cells))


if __name__ == "__main__":
    main()
