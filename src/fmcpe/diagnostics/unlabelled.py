"""Are real observations without θ like simulations? The marginal test in the space of a base posterior's summaries.

"Detecting model misspecification in amortized Bayesian inference with neural networks" (Schmitt et al., 2024) trains the
embedding with a penalty that makes the summaries of simulations standard normal (`fmcpe.train_npe` with
``gaussian_summaries=``). The test is the same for any base posterior: the MMD between summaries of y and of simulations,
whitened together, against permutations (`fmcpe.diagnostics.two_sample`). The paper does not whiten, and takes the null
distribution from further simulations. Whitening gives directions of little variance their weight without the penalty, which
added no power on average (``benchmarks/gaussian_summaries.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fmcpe._ambient import settled
from fmcpe._checks import as_observations, finite_rows
from fmcpe._random import derive, seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.rows import simulate
from fmcpe.diagnostics.two_sample import MarginalTest, marginal_test


def unlabelled_test(
    posterior: Any,
    y: Any,
    simulator: Callable[[Tensor], Any] | None,
    simulations: tuple[Any, Any] | None,
    num_simulations: int,
    num_permutations: int,
    seed: int,
) -> MarginalTest:
    """Real observations (M, ...) against simulations from the prior of a corrected or base posterior, by its summaries."""
    shared = getattr(posterior, "shared", None)
    base = (as_base_posterior(posterior) if shared is None else shared.base).summarised()
    with settled(), seeded(derive(seed, "unlabelled")), torch.no_grad():
        x = simulate(simulator, base.prior, num_simulations, simulations)[1][slice(num_simulations)]
        x = x[finite_rows(x)]
        y = as_observations(y, base.raw_shape or x.shape[1:])
        network = base.estimator
        device = x.device if network is None else next((w.device for w in network.parameters()), x.device)
        seen, simulated = (base.summarise(rows.to(device)).flatten(1).cpu() for rows in (y, x))
    return marginal_test(seen, simulated, num_permutations=num_permutations, seed=seed)


def unlabelled_verdict(marginal: MarginalTest, level: float) -> str:
    """What the test says, and what it does not."""
    found = (
        f"{marginal.pairs} observation(s), {marginal.simulations} simulations from the prior, p = {marginal.p_mmd:.2g}"
    )
    if marginal.p_mmd <= level:
        return (
            f"Real data are unlike simulations ({found}): the simulator is wrong, or θ is distributed otherwise. Calibration "
            "pairs tell which, and whether it matters for θ."
        )
    return (
        f"Real data do not refute simulator and prior ({found}). That does not say that all is well: an error that looks like "
        "another θ is not seen without calibration pairs."
    )
