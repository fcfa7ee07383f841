"""FMCPE: checks the input, builds the problem, runs the recipe."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._checks import CheckedSimulator, as_device, as_pairs, as_tensor, parameter_dim
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates.base import Shared
from fmcpe.candidates.paper import Paper
from fmcpe.posterior import CorrectedPosterior
from fmcpe.problem import build_problem, fingerprints
from fmcpe.record import HeldOut, Record, record_of
from fmcpe.stacking import Stack


class FMCPE:
    """Corrects a simulation-trained posterior with a few real measurements.

    Args:
        posterior: The base posterior: an sbi posterior, or anything that `as_base_posterior` accepts.
        simulator: The simulator it was trained on, ``theta (N, p) -> x (N, ...)``, called with physical θ inside the prior
            only. Without one, `fit` needs ``x=``, simulations paired with `theta`.
        prior: The prior of the simulations, where `posterior` does not carry it.
        target_prior: The distribution of θ in use, where it is not that of the simulations, inside the prior's support.
        recipe: ``"default"``, ``"paper"``, a `Stack` or a `Paper`.
        device: Where the correction is trained.
        names: Of the parameters, for reports.

    Example:
        >>> posterior = fmcpe.FMCPE(base, simulator).fit(theta_cal, y_cal, seed=0, show_progress_bars=False)
        >>> posterior.sample((1000,), x=y_obs).shape
        torch.Size([1000, 1])
    """

    def __init__(
        self,
        posterior: Any,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        *,
        target_prior: Distribution | None = None,
        recipe: str | Stack | Paper = "default",
        device: str = "cpu",
        names: Sequence[str] | None = None,
    ) -> None:
        self.device = as_device(device)
        self.base = as_base_posterior(posterior, prior).to(self.device)
        self.simulator, self.recipe = simulator, _as_recipe(recipe)
        self.target_prior = self.base.prior if target_prior is None else target_prior
        dim = parameter_dim(self.base.prior)
        if parameter_dim(self.target_prior) != dim:
            raise ValueError(
                f"Expected target_prior over {dim} parameter(s), as the prior, got {parameter_dim(self.target_prior)}. Pass a "
                "distribution over the same θ."
            )
        self.names = tuple(f"theta[{i}]" for i in range(dim)) if names is None else tuple(map(str, names))
        if len(self.names) != dim:
            raise ValueError(
                f"Expected {dim} names, one per parameter, got {len(self.names)}. Leave names out, or name each."
            )

    def fit(
        self,
        theta: Any,
        y: Any,
        x: Any = None,
        *,
        weights: Any = None,
        seed: int | None = None,
        show_progress_bars: bool = True,
    ) -> CorrectedPosterior:
        """Learn the correction from calibration pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support.
            y: Real measurements taken at them, (N, ...), shaped like the simulator's output.
            x: Simulations at the same parameters, shaped like y; used in place of the simulator.
            weights: What each pair counts in the cross-validated score, (N,), where pairs were not drawn from the target prior.
            seed: Makes the fit reproducible; torch's global generator is left as it was.
            show_progress_bars: Whether to show progress once the fit takes more than two seconds.

        Returns:
            The corrected posterior; ``x=`` of its methods is the real observation.
        """
        theta, y, x = as_pairs(theta, y, x, self.base.prior, self.base.raw_shape)
        if theta.shape[0] < 10:
            warnings.warn(
                f"Expected 10 or more calibration pairs, got {theta.shape[0]}: so few say little of what is wrong.",
                FMCPEWarning,
                stacklevel=2,
            )
        importance = None if weights is None else _as_importance(weights, len(theta))
        theta, y, x = theta.to(self.device), y.to(self.device), None if x is None else x.to(self.device)
        simulator = self._simulator(y.shape[1:], x)
        started, paper = time.perf_counter(), isinstance(self.recipe, Paper)
        with seeded(seed):
            problem = build_problem(
                self.base, simulator, self.target_prior, theta, y, x,
                bank=self.recipe.num_statistics if isinstance(self.recipe, Paper) else 2000, simulations=0 if paper else 16,
            )  # fmt: skip
            shared = Shared(self.base, problem.space, self.target_prior, problem.pool)
            if isinstance(self.recipe, Paper):
                inner, history = self.recipe.fit(problem, show_progress_bars)
                record = Record(
                    "FMCPE", len(theta), time.perf_counter() - started, history, fingerprints=fingerprints(theta, y)
                )
                return CorrectedPosterior(inner, shared, y.shape[1:], record)
            fitted = self.recipe.fit(problem, int(torch.randint(2**31, ())), importance, show_progress_bars)
        record = record_of(fitted, problem, self.names, time.perf_counter() - started, stacklevel=2)
        return CorrectedPosterior(fitted.posterior, shared, y.shape[1:], record, HeldOut.of(fitted, problem))

    def _simulator(self, shape: torch.Size, x: Tensor | None) -> CheckedSimulator | None:
        """The user's simulator, checked; None where simulations are given or nothing needs them."""
        if x is not None or (self.simulator is None and getattr(self.recipe, "stages", "") == "theta-only"):
            return None
        if self.simulator is None:
            raise ValueError(
                "Expected a simulator or paired simulations, got neither. Give FMCPE(posterior, simulator), or fit(theta, y, "
                "x=simulations_at_theta)."
            )
        return CheckedSimulator(self.simulator, shape)


def _as_recipe(recipe: str | Stack | Paper) -> Stack | Paper:
    if isinstance(recipe, Stack | Paper):
        return recipe
    if recipe == "default":
        return Stack()
    if recipe == "paper":
        return Paper()
    raise ValueError(
        f'Expected recipe "default", "paper", a Stack or a Paper, got {recipe!r}. Try recipe=Paper(sigma=0.1).'
    )


def _as_importance(weights: Any, number: int) -> Tensor:
    """Weights of the pairs, of mean one."""
    found = as_tensor(weights, "weights")
    if found.shape != (number,) or bool((found < 0).any()) or float(found.sum()) <= 0:
        raise ValueError(
            f"Expected weights of shape ({number},), none negative and not all zero, got shape {tuple(found.shape)}. Pass one "
            "weight per pair."
        )
    return found / found.mean()
