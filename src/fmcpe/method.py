"""`FMCPE`, the entry point: it checks the input, builds the problem and runs the recipe."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import (
    as_device,
    as_pairs,
    as_tensor,
    as_unlabelled,
    check_prior_device,
    check_target_prior,
    parameter_dim,
    refuse_coarse,
)
from fmcpe._errors import FMCPEWarning
from fmcpe._names import as_names, as_units, columns_of, default_names, in_order, refuse_other_order
from fmcpe._options import settings_of
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.rows import given_simulations
from fmcpe.candidates.base import Posterior, Shared
from fmcpe.candidates.paper import Paper
from fmcpe.notes import record_of
from fmcpe.posterior import CorrectedPosterior
from fmcpe.problem import build_problem, fingerprints, without_pairs
from fmcpe.record import HeldOut, Record
from fmcpe.spaces import unbounded_map
from fmcpe.stacking import Stack

if TYPE_CHECKING:
    from fmcpe.diagnostics.cv_plus import CVPlus


class FMCPE:
    """Corrects a simulation-trained posterior with a few real measurements.

    Args:
        posterior: The base posterior: an sbi posterior, or anything that `as_base_posterior` accepts.
        simulator: The simulator it was trained on, ``theta (N, p) -> x (N, ...)``, called with physical θ inside the prior
            only. Without one, and without simulations paired with the pairs, candidates that need them are not fitted.
        prior: The prior of the simulations, where `posterior` does not carry it.
        target_prior: The distribution of θ in use, where it is not that of the simulations, inside the prior's support.
        recipe: ``"default"``, ``"paper"``, a `Stack` or a `Paper`.
        device: Where the correction is trained; prior and simulator have to be there, too.
        names: Parameter names, kept with the posterior. By default those of `posterior` or its prior, or the columns of a
            DataFrame `theta`.
        units: Units of the parameters for summaries and files, e.g. ``["kg", "rad/s"]``; by default those of a prior file.
        simulations: Existing simulations from the prior, ``(theta, x)``, in place of fresh ones.
        simulation_batch_size: Rows per call of the simulator, for slow ones: a progress bar then shows the time left.
        simulation_timeout: Seconds that one call of the simulator may take; more are an error. No limit if None.

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
        units: Sequence[str] | None = None,
        simulations: tuple[Any, Any] | None = None,
        simulation_batch_size: int | None = None,
        simulation_timeout: float | None = None,
    ) -> None:
        if isinstance(simulator, NeuralPosterior) and not isinstance(posterior, NeuralPosterior):
            raise TypeError(
                f"Expected a posterior and then a simulator, got a {type(posterior).__name__} and then a "
                f"{type(simulator).__name__}. They look swapped: call FMCPE(posterior, simulator)."
            )
        self.device = as_device(device)
        self.base = as_base_posterior(posterior, prior)
        check_prior_device(self.base.prior, self.device)
        self.base.to(self.device)
        self.simulator, self.recipe = simulator, _as_recipe(recipe)
        self.target_prior = self.base.prior if target_prior is None else target_prior
        refuse_coarse(self.base.prior)
        unbounded_map(self.base.prior, self.device)  # fail here, not after the simulations
        dim = parameter_dim(self.base.prior)
        if target_prior is not None:
            check_target_prior(target_prior, self.base.prior)
        carried = self.base.names or getattr(prior, "names", None) or getattr(self.base.prior, "names", None)
        known = names if names is not None else carried
        self.names = None if known is None else as_names(known, dim)
        if units is None:
            units = getattr(prior, "units", None) or getattr(self.base.prior, "units", None)
        self.units = () if units is None else as_units(units, dim)
        self.simulations = None if simulations is None else given_simulations(simulations, self.base.prior, 0.5)
        self.simulation_batch_size, self.simulation_timeout = simulation_batch_size, simulation_timeout
        if simulator is not None:  # fail here, not at the first fit
            CheckedSimulator(simulator, None, batch_size=simulation_batch_size, timeout=simulation_timeout)

    def num_simulations(self, num_pairs: int) -> int:
        """Number of simulations that `fit` runs for `num_pairs` pairs without ``x=``."""
        return 0 if self.simulator is None else planned_simulations(self.recipe, num_pairs, self.simulations is None)

    def fit(
        self,
        theta: Any,
        y: Any,
        x: Any = None,
        *,
        y_unlabelled: Any = None,
        weights: Any = None,
        conformal: str | CVPlus | None = None,
        seed: int | None = None,
        show_progress_bars: bool = True,
    ) -> CorrectedPosterior:
        """Learn the correction from calibration pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support; columns of a DataFrame are matched by name.
            y: Real measurements taken at them, (N, ...), shaped like the simulator's output.
            x: Simulations at the same parameters, shaped like y; used in place of the simulator.
            y_unlabelled: Real measurements at unknown parameters, (M, ...), shaped like y. They sharpen the range check, and
                align real data with simulations for one more candidate. Rows that are rows of y are left out.
            weights: Weight of each pair in scores, stacking weights and recalibration, (N,), if pairs were not drawn from the
                target prior: its density over that of the pairs, up to a constant.
            conformal: ``"cv+"``, or `fmcpe.diagnostics.CVPlus`, repeats the whole fit for each of five folds, so that the
                posterior has `interval` without held-out pairs.
            seed: Makes the fit reproducible; torch's global generator is left as it was.
            show_progress_bars: Whether to show progress once the fit takes more than two seconds.

        Returns:
            The corrected posterior; ``x=`` of its methods is the real observation.
        """
        refuse_other_order(theta, "theta", weights=weights)
        refuse_other_order(y, "y", weights=weights)
        if conformal is not None:
            from fmcpe.diagnostics.cv_plus import fit_with_cv_plus

            return fit_with_cv_plus(self, conformal, theta, y, x, y_unlabelled, weights, seed, show_progress_bars)
        given, data_names = self.names or columns_of(theta) or (), columns_of(y) or ()
        theta, y, x = as_pairs(in_order(theta, self.names, "theta"), y, x, self.base.prior, self.base.raw_shape)
        names = as_names(given or default_names(theta.shape[1]), theta.shape[1])
        if theta.shape[0] < 10:
            warnings.warn(
                f"Expected 10 or more calibration pairs, got {theta.shape[0]}. So few pairs reveal little about the "
                "misspecification: measure more.",
                FMCPEWarning,
                stacklevel=2,
            )
        importance = None if weights is None else _as_importance(weights, len(theta))
        unlabelled = self.unlabelled(y_unlabelled, data_names, y)
        theta, y, x = theta.to(self.device), y.to(self.device), None if x is None else x.to(self.device)
        simulator = self._simulator(y.shape[1:], x)
        number = 0 if simulator is None else self.num_simulations(len(theta))
        logging.getLogger("fmcpe").info("fit runs %d simulations", number)
        started = time.perf_counter()
        with settled(y.shape[1:].numel()), seeded(seed):
            problem = build_problem(
                self.base, simulator, self.target_prior, theta, y, x, unlabelled=unlabelled, given=self.simulations,
                bank=self.recipe.bank, simulations=self.recipe.simulations_per_pair, show_progress_bars=show_progress_bars,
            )  # fmt: skip
            if simulator is not None:
                simulator.warn()
            if problem.rows is not None:
                importance = None if importance is None else _at_rows(importance, problem.rows)
                theta, y = self._without_pairs(theta, problem.rows), problem.y
            inner: Posterior
            if isinstance(self.recipe, Paper):
                inner, history = self.recipe.fit(problem, show_progress_bars)
                seconds, held_out = time.perf_counter() - started, None
                record = Record("FMCPE", len(theta), seconds, history, fingerprints=fingerprints(theta, y))
            else:
                fitted = self.recipe.fit(problem, int(torch.randint(2**31, ())), importance, show_progress_bars)
                record = record_of(fitted, problem, names, time.perf_counter() - started, stacklevel=2)
                inner, held_out = fitted.posterior, HeldOut.of(fitted, problem)
            record = replace(
                record, names=tuple(given), data_names=data_names, units=self.units, settings=self._settings(seed),
                num_unlabelled=0 if unlabelled is None else len(unlabelled),
            )  # fmt: skip
            shared = Shared(self.base, problem.space, self.target_prior, problem.pool)
            posterior = CorrectedPosterior(inner, shared, y.shape[1:], record, held_out)
            posterior.simulator = self.simulator  # for predictive checks
            return posterior

    def _settings(self, seed: int | None) -> dict[str, Any]:
        """Options of the recipe and of its candidates, and the seed, for the record."""
        parts = {each.name: settings_of(each) for each in getattr(self.recipe, "candidates", ())}
        return {"recipe": settings_of(self.recipe), "candidates": parts, "seed": None if seed is None else int(seed)}

    @staticmethod
    def _without_pairs(theta: Tensor, rows: Tensor) -> Tensor:
        """θ of the pairs at which the simulator runs; warns about the others, and fails if less than half are left."""
        left = torch.ones(len(theta), dtype=torch.bool, device=theta.device)
        left[rows] = False
        first = int(left.nonzero()[0])
        found = (
            f"Expected a simulator that runs at θ of every pair, got one that fails at {int(left.sum())} of {len(theta)} "
            f"(first: pair {first}, theta={theta[first].tolist()})"
        )
        if 2 * len(rows) < len(theta):
            raise ValueError(f"{found}. Mend the simulator there.")
        warnings.warn(f"{found}: they are left out. Mend the simulator there.", FMCPEWarning, stacklevel=3)
        return theta[rows]

    def unlabelled(self, given: Any, data_names: Sequence[str], y: Tensor) -> Tensor | None:
        """Real observations without θ, checked, and without those of the pairs; None if there are none."""
        if given is None:
            return None
        if isinstance(self.recipe, Paper):
            raise ValueError(
                "Expected no y_unlabelled with the paper's recipe, which does not use it, got some. Leave it out, or use "
                'recipe="default".'
            )
        found = as_unlabelled(in_order(given, data_names, "y_unlabelled"), y)
        left = without_pairs(found, y)
        logging.getLogger("fmcpe").info(
            "%d of %d rows of y_unlabelled are rows of y", len(found) - len(left), len(found)
        )
        return left.to(self.device) if len(left) else None

    def _simulator(self, shape: torch.Size, x: Tensor | None) -> CheckedSimulator | None:
        """The user's simulator, checked; None where simulations are given, or there is none."""
        if x is not None or (self.simulator is None and getattr(self.recipe, "stages", "") == "theta-only"):
            return None
        if self.simulator is not None:
            return CheckedSimulator(self.simulator, shape, 0.5, self.simulation_batch_size, self.simulation_timeout)
        missing = "Expected a simulator or paired simulations, got neither"
        advice = "Give FMCPE(posterior, simulator), or fit(theta, y, x=simulations_at_theta)."
        if isinstance(self.recipe, Paper):
            raise ValueError(f"{missing}. {advice}")
        warnings.warn(f"{missing}: candidates that need them are not fitted. {advice}", FMCPEWarning, stacklevel=3)
        return None


def planned_simulations(recipe: str | Stack | Paper, num_pairs: int, bank: bool = True) -> int:
    """Number of simulations that a recipe runs for `num_pairs` pairs; `bank` counts those drawn from the prior."""
    recipe = _as_recipe(recipe)
    return recipe.bank * bank + recipe.num_simulations(num_pairs)


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
    if found.shape != (number,):
        raise ValueError(
            f"Expected weights of shape ({number},), got shape {tuple(found.shape)}. Pass one weight per pair."
        )
    if bool((found < 0).any()):
        first = int((found < 0).nonzero()[0])
        raise ValueError(
            f"Expected weights that are not negative, got {float(found[first]):.3g} for pair {first}. Pass the density of the "
            "target prior over that of the pairs."
        )
    if not bool(found.any()):
        raise ValueError("Expected weights that are not all zero, got zeros only. Pass one positive weight or more.")
    if not bool(torch.isfinite(found.sum())):
        found = found / found.max()
    return found / found.mean()


def _at_rows(importance: Tensor, rows: Tensor) -> Tensor:
    """Weights of the pairs at which the simulator runs, of mean one."""
    found = importance[rows]
    if not bool(found.any()):
        raise ValueError(
            f"Expected weight on some pair at which the simulator runs, got none: it fails at all "
            f"{int((importance > 0).sum())} pair(s) with weight. Mend the simulator there, or weight other pairs too."
        )
    return found / found.mean()
