"""How often `diagnostics.calibration` says what is true: draws of exact, over-confident and biased normal posteriors.

    python benchmarks/calibration.py docs/results/trust/calibration.csv

Two parameters; the second is wrong. "alarm": the verdict calls the posterior miscalibrated; "right": it names what is wrong
about the second parameter, and nothing about the first; "band": a PIT-ECDF leaves its simultaneous band. Per cent of 200 repeats.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch

from fmcpe.diagnostics.cross_validated import calibration_of_draws

NAMES, REPEATS, DRAWS = ("ω0", "A"), 200, 64
CASES = (
    ("exact", 1.0, 0.0, ""),
    ("std x 0.6", 0.6, 0.0, "over-confident in A"),
    ("std x 1.7", 1.7, 0.0, "under-confident in A"),
    ("shift + 0.5 std", 1.0, 0.5, "biased upwards in A"),
    ("shift - 0.5 std", 1.0, -0.5, "biased downwards in A"),
)
FIELDS = ("posterior", "pairs", "alarm", "right", "band")


def main():
    """Measure and print."""
    torch.set_num_threads(1)
    rows = []
    for name, scale, shift, says in CASES:
        for number in (50, 200):
            alarm = right = band = 0
            for seed in range(REPEATS):
                generator = torch.Generator().manual_seed(10_000 + seed)
                mean = 3 * torch.randn(number, 2, generator=generator)
                truth = mean + torch.randn(number, 2, generator=generator)
                noise = torch.randn(number, DRAWS, 2, generator=generator)
                draws = mean[:, None] + torch.tensor([0.0, shift]) + torch.tensor([1.0, scale]) * noise
                found = calibration_of_draws(draws, truth, None, NAMES, seed=seed)
                wrong = "the posterior is" in found.verdict
                alarm += wrong
                right += "ω0" not in found.verdict and (says in found.verdict if says else not wrong)
                band += not all(found.pit.inside)
            rows.append((name, number, *(f"{100 * count / REPEATS:.1f}" for count in (alarm, right, band))))
            print("  ".join(f"{cell!s:>16s}" for cell in rows[-1]), flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        with open(sys.argv[1], "w", newline="") as file:
            csv.writer(file).writerows([FIELDS, *rows])


if __name__ == "__main__":
    main()
