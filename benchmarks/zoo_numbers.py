"""The README's numbers, of each parameter by itself: the zoo's reporting half, before and after the correction.

python benchmarks/zoo_numbers.py docs/results/zoo/zoo.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(path: str) -> None:
    """Print what the correction changes, over all parameters of all settings."""
    settings = [row for row in json.loads(Path(path).read_text(encoding="utf-8")) if row["half"] == "reporting"]
    by = {(row["method"], row["problem"], row["pairs"]): row for row in settings}
    after = [row for row in settings if row["method"] == "fmcpe"]
    before = [by["npe", row["problem"], row["pairs"]] for row in after]
    for label, chosen in (("all", range(0, 10**9)), ("30 pairs or more", range(30, 10**9))):
        both = [(b, a) for b, a in zip(before, after, strict=True) if a["pairs"] in chosen]
        ratio = np.concatenate([np.array(a["crps"]) / np.array(b["crps"]) for b, a in both])
        print(
            f"{label}: {len(both)} settings of {len({a['problem'] for _, a in both})} problems, {len(ratio)} parameters"
        )
        print(f"  CRPS after / before: geometric mean {np.exp(np.log(ratio).mean()):.2f}, worst {ratio.max():.2f}")
        print(f"  better in {(ratio < 1).mean():.0%}, more than 5 % worse in {(ratio > 1.05).mean():.0%}")
        for name, rows in (("before", [b for b, _ in both]), ("after", [a for _, a in both])):
            cover = np.concatenate([row["coverage_90"] for row in rows])
            low, middle, high = np.quantile(cover, [0.05, 0.5, 0.95])
            print(f"  90 % intervals hold, {name}: median {middle:.2f}, 5th to 95th percentile {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
