"""Status of a run directory, as text."""

from __future__ import annotations

import time
from pathlib import Path

from fmcpe.bench.progress import duration, remaining
from fmcpe.bench.store import Store


def status(directory: str | Path, failures: bool = False) -> str:
    """A table of the experiments, the active runs and the failures."""
    with Store(directory, read_only=True) as store:
        plans, rows, owners = store.plans(), store.rows(), store.owners()
    alive = [owner for owner in owners if owner["alive"]]
    width = max([10, *(len(f"{experiment} ({preset})") for experiment, preset in plans)])
    lines = [
        f"{'experiment':<{width}}  {'done':>6} {'running':>8} {'waiting':>8} {'failed':>7}  {'left, two at a time':>20}"
    ]
    for (experiment, preset), identifiers in plans.items():
        units = [rows[identifier] for identifier in identifiers]
        states = [row.status for row in units]
        # units in flight of a dead run can be claimed again
        running = states.count("running") if alive else 0
        waiting = len(states) - states.count("done") - states.count("failed") - running
        seconds = remaining(units, 2, rows.values())
        left = "" if not waiting + running else "unknown" if seconds is None else duration(seconds)
        lines.append(
            f"{f'{experiment} ({preset})':<{width}}  {states.count('done'):>6} {running:>8} {waiting:>8} "
            f"{states.count('failed'):>7}  {left:>20}"
        )
    for owner in alive:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner["started"]))
        lines.append(
            f"active: process {owner['pid']} on {owner['host'].partition(' ')[0]} since {since}: {owner['command']}"
        )
    lines += ["no active run"] if not alive else []
    failed = {identifier: row for identifier, row in rows.items() if row.status == "failed"}
    for identifier, row in failed.items():
        text = (row.traceback or "").strip()
        lines.append(f"failed: {identifier} {row.unit.label}: {text.splitlines()[-1] if text else 'no traceback'}")
        if failures:
            lines.append(text + "\n")
    versions = {tuple(sorted(row.versions.items())) for row in rows.values() if row.versions}
    if len(versions) > 1:
        lines.append(f"made with {len(versions)} different sets of versions: the numbers may not be comparable")
    return "\n".join(lines)
