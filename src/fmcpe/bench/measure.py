"""Metrics of one posterior on held-out real pairs.

Joint metrics compare (θ_j, y_j) with (θ̂_j, y_j), one draw per test pair, with θ unconstrained and both standardised by the
statistics of the true pairs. Posterior-level metrics compare draws with those of the reference posterior for a few test
observations, in the same space. The energy score is in unconstrained θ too; MSE, coverage and ranks are in physical θ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmcpe import metrics
from fmcpe._random import derive, seeded
from fmcpe.bench.units import Evaluation
from fmcpe.diagnostics import central_coverage, sbc_of_draws
from fmcpe.diagnostics.draws import ellipsoid_credibility
from fmcpe.spaces import ParameterSpace

if TYPE_CHECKING:
    from fmcpe.tasks import Task

LEVELS = (0.5, 0.8, 0.9, 0.95)
TEST_SEED = 0
"""Seed of the test pairs, the same for every method and calibration set."""

Draw = Callable[[int, Tensor], Tensor]
"""(number of draws, observations) -> (draws, observations, p)."""


def measured(draw: Draw, task: Task, evaluation: Evaluation, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metrics of a posterior, and the arrays for figures."""
    theta, y = task.test_set(min(evaluation.test, task.test_limit or evaluation.test), TEST_SEED)
    space = standard_space(task)
    with seeded(derive(seed, "bench", "draws")):
        draws = draw(evaluation.draws, y)
    z, z_true = space.to_z_safely(draws), space.to_z_safely(theta)
    joint = _joint(z[0], z_true, y, task, seed) if evaluation.joint else {}
    if evaluation.draws == 1:
        return joint | {"test_pairs": len(theta)}, {"theta": theta[0].numpy()}
    ranks = sbc_of_draws(draws, theta, names=task.theta_names)
    found: dict[str, Any] = {
        "test_pairs": len(theta),
        "energy": metrics.energy_score(z, z_true),
        "crps": metrics.crps(z, z_true).tolist(),
        "mse": metrics.mse(draws, theta),
        "rmse": (draws - theta).square().mean((0, 1)).sqrt().tolist(),
        "coverage": {f"{level:g}": central_coverage(draws, theta, level).tolist() for level in LEVELS},
        "sbc": {
            "num_samples": ranks.num_samples, "counts": ranks.counts.tolist(), "band": list(ranks.band),
            "p_values": ranks.p_values.tolist(), "bias": ranks.bias.tolist(), "scale": ranks.scale.tolist(),
            "verdicts": list(ranks.verdicts), "names": list(ranks.names), "observations": len(theta),
            "statistics": ranks.statistics.tolist(),
        },
    }  # fmt: skip
    if len(draws) >= 2 * theta.shape[1] + 4:
        credibility = ellipsoid_credibility(draws, theta)
        found["joint_coverage"] = {f"{level:g}": float((credibility <= level).double().mean()) for level in LEVELS}
    found |= joint
    arrays = {"ranks": ranks.ranks.numpy().astype(np.int32)}
    if evaluation.reference:
        found |= _against_reference(draw, task, y, space, evaluation, seed, arrays)
    arrays["theta"] = theta[0].numpy()
    return found, arrays


def _joint(z: Tensor, z_true: Tensor, y: Tensor, task: Task, seed: int) -> dict[str, float]:
    a, b = metrics.joint(z_true, z, y)
    with seeded(derive(seed, "bench", "embedding")):
        embedding = task.embedding_net()
    return {
        "joint_w2": metrics.wasserstein2(a, b),
        "joint_mmd2": metrics.mmd2(a, b),
        "joint_mmd2_paired": metrics.mmd2(a, b, paired=True),
        "joint_c2st": metrics.joint_c2st(z_true, z, y, embedding=embedding, seed=seed),
    }


def _against_reference(
    draw: Draw, task: Task, y: Tensor, space: ParameterSpace, evaluation: Evaluation, seed: int, arrays: dict[str, Any]
) -> dict[str, Any]:
    """C2ST, W2 and MMD² to the reference posterior, and draws of physical θ for the first observation."""
    observations, number = y[: evaluation.reference], evaluation.reference_draws
    with seeded(derive(seed, "bench", "reference draws")):
        draws = draw(number, observations)
    arrays["draws"] = draws[:, 0].numpy().astype(np.float32)
    try:
        exact = [_exact(task, i, number) for i in range(len(observations))]
    except NotImplementedError:
        return {}
    arrays["reference"] = exact[0].numpy().astype(np.float32)
    z = torch.stack([space.to_z_safely(truth) for truth in exact]), space.to_z_safely(draws).transpose(0, 1)
    both = [metrics.standardise(*pair) for pair in zip(*z, strict=True)]
    rows = {
        "c2st": metrics.c2st_each(*z, folds=evaluation.folds, seed=seed),
        "w2": [metrics.wasserstein2(a, b) for a, b in both],
        "mmd2": [metrics.mmd2(a, b) for a, b in both],
    }
    return {name: float(np.mean(values)) for name, values in rows.items()} | {
        f"{name}_each": values for name, values in rows.items()
    }


@lru_cache(maxsize=64)
def _exact(task: Task, index: int, number: int) -> Tensor:
    """Draws of the reference posterior of a test observation, cached for all methods of a process."""
    y = task.test_set(index + 1, TEST_SEED)[1][index]
    return task.reference_posterior(y).sample((number,), seed=1000 + index)


def standard_space(task: Task) -> ParameterSpace:
    """Unconstrained θ, standardised by the prior: the same for every method."""
    with seeded(0):
        return ParameterSpace(task.prior, task.prior.sample(torch.Size((5000,))).float())


def reference_draws(task: Task) -> Draw:
    """A `Draw` from the reference posterior."""

    def draw(number: int, y: Tensor) -> Tensor:
        seeds = torch.randint(2**31, (len(y),)).tolist()
        return torch.stack(
            [task.reference_posterior(v).sample((number,), seed=s) for v, s in zip(y, seeds, strict=True)], dim=1
        )

    return draw
