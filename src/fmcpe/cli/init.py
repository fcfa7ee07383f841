"""``fmcpe init``: a folder with a model, a prior, pairs and observations, on which the other commands run."""

from __future__ import annotations

import argparse
from pathlib import Path

from fmcpe.cli.printing import say

HELP = "Write an example: a simulator, a prior, calibration pairs and observations to start from."
EXAMPLES = ("fmcpe init thermometer",)

MODEL = '''"""A thermometer that is dipped into a bath: what it reads while it warms up, by the textbook.

The textbook's probe is one lump of metal. The real one has a housing that lags behind, and loses heat along its
stem. Nobody has a formula for that: calibration pairs show it.
"""

import numpy as np

TIMES = np.arange(2.0, 25.0, 2.0)  # s
ROOM = 20.0  # °C


def simulate(theta):
    """Readings in °C at each of TIMES, (N, 12), for rows of bath temperature in °C and time constant in s, (N, 2)."""
    theta = np.asarray(theta)
    bath, time_constant = theta[:, :1], theta[:, 1:]
    readings = ROOM + (bath - ROOM) * (1 - np.exp(-TIMES / time_constant))
    return readings + np.random.normal(0.0, 0.2, readings.shape)
'''
PRIOR = """\
# One table per parameter, in the order of the columns of theta in model.py.

[bath_temperature]
distribution = "uniform"
low = 30.0
high = 90.0
unit = "°C"

[time_constant]
distribution = "uniform"
low = 4.0
high = 15.0
unit = "s"
"""
README = """\
# A thermometer in a bath

Twelve readings while it warms up; wanted are the temperature of the bath and the time constant of the probe.

| file | |
| --- | --- |
| `model.py` | the simulator: a textbook probe |
| `prior.toml` | the prior of both parameters |
| `pairs.csv` | {pairs} calibration pairs: parameters that were known, and what the real probe read |
| `observations.csv` | new readings; the parameters are wanted |
| `truth.csv` | what they were, to compare with |

```
fmcpe fit --prior prior.toml --simulator model.py:simulate --calibration pairs.csv --num-simulations 10000 --out model.fmcpe
fmcpe sample model.fmcpe --observations observations.csv -n 1000 --out draws.csv
fmcpe diagnose model.fmcpe --out report.html
```

The readings of the observation `fahrenheit` are in °F: `fmcpe sample` says that they are out of range. Replace the
files by your own, one after the other.
"""
LOW, HIGH = (30.0, 4.0), (90.0, 15.0)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path("thermometer"), help="default: thermometer")
    parser.add_argument("--pairs", type=int, default=40, help="calibration pairs (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the data (default: 0)")


def run(options: argparse.Namespace) -> int:
    """Write the folder."""
    import numpy as np

    from fmcpe._disk import write_whole

    folder: Path = options.folder
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"Expected a new folder, got {folder}, which is a file. Try fmcpe init {folder}-example.")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"Expected a new folder, got {folder}, which is not empty. Try fmcpe init {folder / 'example'}."
        )
    if options.pairs < 2:
        raise ValueError(f"Expected at least 2 pairs, got --pairs {options.pairs}. Try --pairs 40.")
    if options.seed < 0:
        raise ValueError(f"Expected a seed of at least 0, got --seed {options.seed}. Leave it out.")
    rng = np.random.default_rng(options.seed)
    theta = rng.uniform(LOW, HIGH, (options.pairs, 2)).round(2)
    new = rng.uniform(LOW, HIGH, (6, 2)).round(2)
    readings, seen = real_readings(theta, rng), real_readings(new, rng)
    seen[-1] = 32 + 1.8 * seen[-1]  # somebody has read the other scale
    labels = [*(f"run-{k + 1}" for k in range(5)), "fahrenheit"]
    columns = [f"T_{t:.0f}s" for t in TIMES]
    names = ["bath_temperature", "time_constant"]
    files = {
        "model.py": MODEL,
        "prior.toml": PRIOR,
        "README.md": README.format(pairs=options.pairs),
        "pairs.csv": _csv([*names, *columns], [[*t, *y] for t, y in zip(theta, readings, strict=True)]),
        "observations.csv": _csv(["observation", *columns], [[n, *y] for n, y in zip(labels, seen, strict=True)]),
        "truth.csv": _csv(["observation", *names], [[n, *t] for n, t in zip(labels, new, strict=True)]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, text in files.items():
            write_whole(folder / name, text.encode())
    except BaseException:
        for name in files:  # the folder was empty, and may be filled by the same command later
            (folder / name).unlink(missing_ok=True)
        raise
    say(f"Example: {folder}, with a simulator, a prior, {options.pairs} calibration pairs and 6 observations")
    say(f"Next:\n  cd {folder}\n  " + "\n  ".join(line for line in README.splitlines() if line.startswith("fmcpe ")))
    return 0


TIMES = tuple(2.0 * (k + 1) for k in range(12))


def real_readings(theta, rng, room: float = 20.0, lag: float = 2.5, loss: float = 0.06, noise: float = 0.3):
    """What the real probe reads, (N, 12): its housing lags behind, and heat is lost along the stem."""
    import numpy as np

    bath, tau = theta[:, :1], theta[:, 1:]
    times = np.array(TIMES)
    warmed = 1 - (tau * np.exp(-times / tau) - lag * np.exp(-times / lag)) / (tau - lag)
    return (room + (1 - loss) * (bath - room) * warmed + rng.normal(0.0, noise, (len(theta), len(times)))).round(2)


def _csv(header: list[str], rows: list[list[object]]) -> str:
    lines = [",".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row) for row in rows]
    return "\n".join([",".join(header), *lines]) + "\n"
