"""Which score should the stacking weights minimise: the energy score, the CRPS of each parameter, or both?

The energy score of a mixture is a quadratic form of mean distances in all parameters; the CRPS of a parameter is the same form
of distances in that one. Candidates are fitted once for each problem of the zoo's development half; weights and recalibration
are computed from each score, and the mixture is scored on 300 test pairs. Prints the change against the energy score alone,
mean of log ratios ± standard error, and writes a CSV.

    python benchmarks/stack_score.py docs/results/zoo/stack-score.csv
"""

from __future__ import annotations

import csv
import sys
import warnings

import numpy as np
import torch
from sensitivity import PROBLEMS, setting

from fmcpe import Stack, metrics
from fmcpe._random import seeded
from fmcpe.energy import FAR, CrossFit, Distances
from fmcpe.mixture import Recalibrated, recalibration
from fmcpe.problem import groups_of, split_pairs
from fmcpe.stacking import _ensemble, training_rows

PAIRS = (10, 30, 100)
SHARES = {"energy": 0.0, "half and half": 0.5, "crps": 1.0}
"""Share of the mean CRPS of the parameters in the score, each in units of its smallest single-candidate value."""


def mixed(fits: list[CrossFit], truth: torch.Tensor, share: float) -> Distances:
    """Distances of (1 - share)·energy score + share·mean CRPS, each divided by that of its best candidate."""
    total = None
    coordinates = [slice(k, k + 1) for k in range(truth.shape[1])]
    for part, parts in ((1 - share, [slice(None)]), (share, coordinates)):
        if part == 0:
            continue
        found = [
            Distances.of([CrossFit(f.members, f.draws[..., s].clamp(-FAR, FAR), 0.0) for f in fits], truth[:, s])
            for s in parts
        ]
        mean = Distances(*(torch.stack([getattr(d, n) for d in found]).mean(0) for n in ("to_truth", "between")))
        best = min(float(mean.scores(row).mean()) for row in torch.eye(len(fits)))
        scaled = Distances(part * mean.to_truth / best, part * mean.between / best)
        total = scaled if total is None else Distances(total.to_truth + scaled.to_truth, total.between + scaled.between)
    return total


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logs: dict[tuple[str, str], list[float]] = {}
    stack = Stack()
    for name in PROBLEMS:
        for problem, _, (theta_test, y_test) in setting(name, PAIRS):
            truth = problem.space.to_z_safely(theta_test)
            with seeded(0):
                folds = split_pairs(problem.theta, stack.folds, stack.repeats)
            rows = training_rows(problem, folds, stack.robust)
            fits, _ = stack.cross_fit(problem, folds, rows, 0)
            names, distinct, values = tuple(fits), groups_of(problem.theta)[1], list(fits.values())
            found = {}
            for label, share in SHARES.items():
                weights = stack.weights(names, mixed(values, problem.z, share), distinct)
                draws = torch.stack([fit.draws.expand(-1, stack.repeats, -1, -1).flatten(1, 2) for fit in values])
                with seeded(2):
                    which = torch.multinomial(weights, draws.shape[1] * draws.shape[2], True).view(draws.shape[1:3])
                held_out = draws.gather(0, which[None, :, :, None].expand(1, -1, -1, draws.shape[3]))[0]
                scale = recalibration(held_out, problem.z, distinct, stack.shrinkage)
                posterior = Recalibrated(_ensemble(values, weights), scale)
                with seeded(1), torch.no_grad():
                    sample = posterior.sample(y_test, 64).movedim(0, 1)
                crps = metrics.crps(sample, truth)
                found[label] = {"energy": metrics.energy_score(sample, truth), "crps": float(crps.log().mean()),
                                "worst crps": float(crps.max())}  # fmt: skip
            for label, scores in found.items():
                start = found["energy"]
                logs.setdefault((label, "energy score"), []).append(np.log(scores["energy"] / start["energy"]))
                logs.setdefault((label, "CRPS"), []).append(scores["crps"] - start["crps"])
                worst = np.log(scores["worst crps"] / start["worst crps"])
                logs.setdefault((label, "CRPS of the worst parameter"), []).append(worst)
            print(name, len(problem), {k: round(v["energy"], 4) for k, v in found.items()}, file=sys.stderr, flush=True)
    header = ("weights by", "scored by", "change, %", "standard error", "fits")
    table = [
        (*key, f"{100 * np.mean(v):+.2f}", f"{100 * np.std(v, ddof=1) / len(v) ** 0.5:.2f}", str(len(v)))
        for key, v in logs.items()
    ]
    for row in (header, *table):
        print("  ".join(f"{cell:>28s}" for cell in row))
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="") as file:
            csv.writer(file).writerows([header, *table])


if __name__ == "__main__":
    main()
