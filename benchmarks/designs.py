"""What the answer is where a parameter was not measured over its range, on the zoo's development half. Writes a CSV.

    python benchmarks/designs.py docs/results/trust/designs.csv       rows that the CSV has are not measured again

30 pairs whose last parameter was measured in the upper half of the prior only, in its upper fifth, or at one value; 400 test
pairs from the whole prior; three calibration sets; a stack without networks. Energy score, and coverage of the 90 % interval of
the worst parameter, for: "nothing" done about it; "all", the prior for all parameters with the probability of the largest λ_i;
"alone", the prior for the parameter alone; and "now", where the others follow (`fmcpe.unmeasured`).
"""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path

import torch
from out_of_range import base_of

from fmcpe import FMCPE, Stack, candidates, metrics
from fmcpe._random import seeded

PROBLEMS = (
    "enzyme-missing-physics", "heat-channels", "sir-nuisance", "oscillator-missing-physics", "g-and-k-saturation",
    "enzyme-calibration-shift", "beam-gain-offset",
)  # fmt: skip
DESIGNS, WAYS = ("half", "fifth", "one value"), ("nothing", "all", "alone", "now")
FIELDS = ("problem", "design", "set", *(f"energy {way}" for way in WAYS), *(f"coverage {way}" for way in WAYS))


def pairs_of(task, design, seed, number=30):
    """Calibration pairs of a design."""
    theta, y = task.calibration_set(1000, seed)
    if design == "one value":
        theta = theta[:number].clone()
        theta[:, -1] = task.calibration_set(1000, seed)[0][:, -1].median()
        with seeded(seed):
            return theta, task.observe(theta)
    rank = theta[:, -1].argsort().argsort() / len(theta)
    chosen = (rank >= {"half": 0.5, "fifth": 0.8}[design]).nonzero()[:number, 0]
    return theta[chosen], y[chosen]


def measure(task, base, design, number, draws=100):
    """Energy scores and coverages."""
    theta, y = pairs_of(task, design, number)
    recipe = Stack(
        [candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift(), candidates.SyntheticLikelihood()]
    )
    method = FMCPE(base, task.simulator, target_prior=task.prior, recipe=recipe)
    within = method.fit(theta, y, seed=0, show_progress_bars=False).inner
    theta_test, y_test = task.test_set(400, number)
    truth = within.prior.space.to_z_safely(theta_test)
    with seeded(1), torch.no_grad():
        now = within.sample(y_test, draws)
        share, by_theta = within.shares(y_test)
        chance = torch.rand(len(truth), draws, 1)
        prior, posterior = within.prior.sample(y_test, draws), within.inner.sample(y_test, draws)
        posterior = torch.where(torch.rand_like(chance) < share[:, None, None], prior, posterior)
    found = {
        "nothing": posterior,
        "all": torch.where(chance < by_theta.amax(1)[:, None, None], prior, posterior),
        "alone": torch.where(chance < by_theta[:, None], prior, posterior),
        "now": now,
    }
    energies = [metrics.energy_score(found[way].movedim(0, 1), truth) for way in WAYS]
    return [*energies, *(worst_coverage(found[way], truth) for way in WAYS)]


def worst_coverage(z, truth):
    """Of the 90 % intervals of draws (B, S, p)."""
    low, high = z.quantile(0.05, dim=1), z.quantile(0.95, dim=1)
    return float(((truth >= low) & (truth <= high)).double().mean(0).min())


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1])
    rows = list(csv.reader(path.open()))[1:] if path.exists() else []
    for name in PROBLEMS:
        wanted = [(name, design, str(number)) for design in DESIGNS for number in range(3)]
        missing = [key for key in wanted if key not in [tuple(row[:3]) for row in rows]]
        task, base = base_of(name) if missing else (None, None)
        for key in missing:
            rows.append([*key, *(f"{cell:.4f}" for cell in measure(task, base, key[1], int(key[2])))])
            print(*rows[-1], file=sys.stderr, flush=True)
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([FIELDS, *rows])
    for design in DESIGNS:
        numbers = torch.tensor([[float(cell) for cell in row[3:]] for row in rows if row[1] == design])
        ratios, coverage = (numbers[:, :4] / numbers[:, :1]).log().mean(0).exp(), numbers[:, 4:]
        for k, way in enumerate(WAYS):
            print(
                f"{design:>10s} {way:>8s}: energy score {ratios[k]:.2f} of that with nothing done; worst parameter's coverage "
                f"{coverage[:, k].mean():.2f}, lowest {coverage[:, k].min():.2f}"
            )


if __name__ == "__main__":
    main()
