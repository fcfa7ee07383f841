"""Which stages are kept: a proper score on pairs that were not trained on.

The energy score is the mean distance of draws to the truth, less half the mean distance between draws; it is smallest, on
average, for the true posterior, and it needs no density. Each way of answering (uncorrected, x-flow alone, both flows) is
scored on the same held-out pairs, and the best is kept: where the simulator is right, the correction removes itself.
"""

from __future__ import annotations

from torch import Tensor

from fmcpe.corrector import Corrector
from fmcpe.metrics import energy_score

NUM_DRAWS = 64


def keep_what_helps(corrector: Corrector, theta: Tensor, y: Tensor, stages: str) -> tuple[str, dict[str, float]]:
    """Remove from `corrector` every flow that does not pay on the held-out pairs (`theta`, `y`).

    Args:
        corrector: A trained chain; its ``u_x`` and ``u_theta`` are set to None where they are dropped.
        theta: Physical parameters, (N, p).
        y: Real observations, (N, ...).
        stages: What was trained.

    Returns:
        What is left, ``"none"``, ``"x-only"`` or `stages`, and the mean energy score of each candidate.
    """
    flows = {stages: (corrector.u_x, corrector.u_theta), "none": (None, None)}
    if corrector.u_x is not None and corrector.u_theta is not None:
        flows["x-only"] = (corrector.u_x, None)
    truth = corrector.space.to_z_safely(theta)
    scores = {}
    for name, (u_x, u_theta) in flows.items():
        corrector.u_x, corrector.u_theta = u_x, u_theta
        draws = corrector.draw_theta(y, copies=NUM_DRAWS).unflatten(0, (y.shape[0], NUM_DRAWS)).movedim(0, 1)
        scores[name] = energy_score(corrector.space.to_z_safely(draws), truth)
    kept = min(scores, key=lambda name: scores[name])
    corrector.u_x, corrector.u_theta = flows[kept]
    return kept, scores
