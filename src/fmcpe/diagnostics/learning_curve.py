"""How many pairs are enough? Scores of fits on nested subsets of the pairs, and what more pairs would give.

A fit on a subset scores every pair: those outside by its posterior, those inside by cross-validation. All sizes are thus
compared on the same pairs, and what differs between pairs cancels. `fmcpe.diagnostics.power_law` extrapolates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmcpe._ambient import quiet
from fmcpe._checks import as_pairs
from fmcpe._names import in_order, refuse_other_order
from fmcpe._options import check_level, check_whole, is_whole
from fmcpe._random import derive, seeded
from fmcpe.diagnostics.power_law import PowerLaw, PowerLawPrior, spread_of_increments
from fmcpe.method import FMCPE, _as_importance, _as_recipe
from fmcpe.metrics import energy_score
from fmcpe.problem import groups_of
from fmcpe.stacking import Stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fmcpe.candidates.paper import Paper
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class Forecast:
    """The score expected with more pairs, over the present one.

    Args:
        pairs: Pairs measured so far.
        num_pairs: Pairs of the forecast.
        ratio: Expected ratio of the energy scores; below one is better.
        low: Lower end of the interval.
        high: Upper end.
        level: Probability of the interval.
    """

    pairs: int
    num_pairs: int
    ratio: float
    low: float
    high: float
    level: float = 0.8

    def __str__(self) -> str:
        more = "Doubling" if self.num_pairs == 2 * self.pairs else "Going"
        fall, least, most = (100 * (1 - r) for r in (self.ratio, self.high, self.low))
        return (
            f"{more} from {self.pairs} to {self.num_pairs} pairs is expected to lower the score by {fall:.0f} % "
            f"({100 * self.level:.0f} % interval: {least:.0f} to {most:.0f} %)."
        ).replace("-", "−")


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Energy scores in z of fits on nested subsets; `forecast` extrapolates them, `summary()` and `plot()` show them.

    Attributes:
        sizes: Pairs in a subset, ascending, K of them; the last is all N. With repeated θ, mean numbers.
        scores: Of each pair by the fits of each repeat and size, (R, K, N); all repeats share the fit on all pairs.
        inside: Whether the pair was in the subset, so that its score is cross-validated, (R, K, N).
        groups: Of pairs with the same θ, (N,).
        weights: What each pair counts, (N,), of mean one.
        candidates: Names of the stack's candidates.
        own_recipe: Whether the stack is not that of the method, but one given for the curve.
        fits: Number of fits.
        seconds: Of all of them.
    """

    sizes: tuple[int, ...]
    scores: Tensor
    inside: Tensor
    groups: Tensor
    weights: Tensor
    candidates: tuple[str, ...]
    own_recipe: bool
    fits: int
    seconds: float

    @property
    def mean(self) -> Tensor:
        """Score of each size, (K,): over pairs and repeats."""
        return ((self.scores * self.weights).mean(2) / self.weights.mean()).mean(0)

    @property
    def errors(self) -> Tensor:
        """Standard error of each score, (K,): over pairs and, below N, over repeats."""
        each = (self.scores * self.weights).mean(2) / self.weights.mean()
        over_pairs = torch.as_tensor(np.diag(self._covariance).copy()) * self.mean.square()
        return (over_pairs + each.var(0) / len(each)).sqrt()

    def forecast(self, num_pairs: int, *, level: float = 0.8) -> Forecast:
        """Forecast the score of this set extended to `num_pairs` pairs from the same distribution.

        Args:
            num_pairs: More than the pairs measured so far. Far more is far extrapolated: the interval says how far.
            level: Probability of the interval.
        """
        pairs = self.sizes[-1]
        if not is_whole(num_pairs, pairs + 1):
            raise ValueError(
                f"Expected num_pairs above the {pairs} pairs measured so far, got {num_pairs!r}. Try "
                f"forecast({2 * pairs})."
            )
        check_level(level, f"Try forecast({2 * pairs}, level=0.8).")
        low, high = self.power_law.interval(num_pairs, level)
        return Forecast(pairs, int(num_pairs), self.power_law.ratio(num_pairs), low, high, level)

    @cached_property
    def power_law(self) -> PowerLaw:
        """The posterior of the power law."""
        return self.fit_power_law(PowerLawPrior())

    def fit_power_law(self, prior: PowerLawPrior) -> PowerLaw:
        """The same with another prior."""
        log_mean, repeats = self.mean.log().numpy(), len(self.scores)
        return PowerLaw.of(self.sizes, log_mean, self._covariance, self._spread, repeats, prior)

    @property
    def _shares(self) -> np.ndarray:
        """Weight of each group of pairs with the same θ, summing to one, (G,)."""
        return np.bincount(self.groups.numpy(), self.weights.double().numpy()) / float(self.weights.sum())

    @property
    def _relative(self) -> np.ndarray:
        """Scores over the mean of their size, averaged within groups, (R, K, G)."""
        weighted = (self.scores / self.mean[:, None] * self.weights).double()
        number = int(self.groups.max()) + 1
        total = torch.zeros(*weighted.shape[:2], number, dtype=torch.float64).index_add_(2, self.groups, weighted)
        return total.numpy() / (self._shares * float(self.weights.sum())).clip(1e-12)

    @property
    def _covariance(self) -> np.ndarray:
        """Of the log mean scores over pairs, (K, K)."""
        deviation = (self._relative.mean(0) - 1) * self._shares
        number = deviation.shape[1]
        return deviation @ deviation.T * number / (number - 1)

    @property
    def _spread(self) -> float:
        n = np.array(self.sizes, dtype=float)
        return spread_of_increments(np.diff(self._relative, axis=1), 1 / n[:-1] - 1 / n[1:], self._shares)

    def summary(self) -> str:
        """Scores by number of pairs, and what doubling them would give."""
        recipe = "a recipe of its own: " if self.own_recipe else ""
        lines = [
            f"Energy score of unseen pairs ({self.fits} fits in {self.seconds:.0f} s; {recipe}{', '.join(self.candidates)}):"
        ]
        lines += [
            f"  {size:5d} pairs  {score:.3g} ± {error:.2g}"
            for size, score, error in zip(self.sizes, self.mean.tolist(), self.errors.tolist(), strict=True)
        ]
        return "\n".join([*lines, str(self.forecast(2 * self.sizes[-1]))])

    def plot(self) -> Figure:
        """Scores with standard errors, the power law, and the 80 % interval up to four times as many pairs."""
        from fmcpe.diagnostics.curve_plot import learning_curve_figure

        return learning_curve_figure(self)


def learning_curve(
    method: FMCPE,
    theta: Any,
    y: Any,
    x: Any = None,
    *,
    weights: Any = None,
    fractions: Sequence[float] = (0.35, 0.5, 0.7, 1.0),
    repeats: int = 3,
    recipe: str | Stack | None = None,
    draws: int = 64,
    seed: int = 0,
) -> LearningCurve:
    """Scores of fits on nested subsets of the pairs.

    The cost is one fit on all pairs and one for each smaller size and repeat: 10 fits by default, a minute or two for vectors.
    A lighter `recipe` costs seconds: ``Stack([Prior(), Uncorrected(), ResidualShift(), SyntheticLikelihood()])``.

    Args:
        method: The method, with a `Stack` as its recipe, or the default.
        theta: Physical parameters of the pairs, (N, p); at least 10 different ones.
        y: Real measurements taken at them, (N, ...).
        x: Simulations at the same parameters, where the method has no simulator.
        weights: What each pair counts, (N,), where pairs were not drawn from the target prior.
        fractions: Shares of the pairs in a subset, each above 0 and at most 1. Pairs with the same θ stay together, and a
            subset has at least as many different θ as the recipe has folds.
        repeats: Nested sequences of subsets, at least 2.
        recipe: In place of the method's own.
        draws: For each pair outside a subset.
        seed: Of subsets, fits and draws.
    """
    started = time.perf_counter()
    used = copy.copy(method)
    used.recipe = method.recipe if recipe is None else _as_recipe(recipe)
    stack = _as_stack(used.recipe)
    theta = in_order(theta, method.names, "theta")
    refuse_other_order(theta, "theta", weights=weights)
    refuse_other_order(y, "y", weights=weights)
    theta, y, x = as_pairs(theta, y, x, method.base.prior, method.base.raw_shape)
    importance = torch.ones(len(theta)) if weights is None else _as_importance(weights, len(theta))
    groups, distinct = groups_of(theta)
    _check(fractions, repeats, distinct)
    check_whole("draws", draws, 2, 64)
    numbers = {max(stack.folds, round(float(share) * distinct)) for share in fractions}
    steps = [*sorted(number for number in numbers if number < distinct), distinct]
    if len(steps) < 2:
        raise ValueError(
            f"Expected some subset smaller than the {distinct} different θ, got fractions {tuple(fractions)} with "
            f"{stack.folds} folds. Try fractions=(0.5, 0.7, 1)."
        )
    scores = torch.empty(repeats, len(steps), len(theta), dtype=torch.float64)
    inside = torch.ones(scores.shape, dtype=torch.bool)
    pairs = (theta, y, x, importance)
    with quiet():  # of few pairs, and of observations unlike them
        for repeat in range(repeats):
            with seeded(derive(seed, "subsets", repeat)):
                place = torch.randperm(distinct).argsort()[groups.cpu()]
            for k, number in enumerate(steps[:-1]):
                inside[repeat, k] = place < number
                scores[repeat, k] = _scores(used, *pairs, inside[repeat, k], draws, derive(seed, "fit", repeat, number))
        scores[:, -1] = _scores(used, *pairs, inside[0, -1], draws, derive(seed, "fit"))
    return LearningCurve(
        tuple(round(number * len(theta) / distinct) for number in steps),
        scores,
        inside,
        groups.cpu(),
        importance,
        tuple(candidate.name for candidate in stack.candidates if not candidate.needs_unlabelled),
        recipe is not None,
        repeats * (len(steps) - 1) + 1,
        time.perf_counter() - started,
    )


def unseen_scores(posterior: CorrectedPosterior, theta: Tensor, y: Tensor, draws: int, seed: int | None) -> Tensor:
    """Energy scores in z of pairs that a posterior has not seen, (B,)."""
    space, device = posterior.space, posterior.space.standardiser.mean.device
    samples = posterior.sample_batched((draws,), y, show_progress_bars=False, seed=seed)
    z = space.to_z_safely(samples.flatten(0, 1)).reshape(samples.shape)
    return energy_score(z, space.to_z_safely(theta.to(device)), reduce=False)


def _scores(
    method: FMCPE,
    theta: Tensor,
    y: Tensor,
    x: Tensor | None,
    weights: Tensor,
    rows: Tensor,
    draws: int,
    seed: int | None,
) -> Tensor:
    """Energy score of each pair, (N,), by a fit on some rows: cross-validated inside, of its posterior outside."""
    some = None if x is None else x[rows]
    posterior = method.fit(theta[rows], y[rows], some, weights=weights[rows], seed=seed, show_progress_bars=False)
    held_out = posterior.held_out
    assert held_out is not None
    out = torch.empty(len(theta), dtype=torch.float64)
    truth = posterior.space.to_z_safely(held_out.theta)
    out[rows] = energy_score(held_out.z.movedim(0, 1), truth, reduce=False)
    if not bool(rows.all()):
        out[~rows] = unseen_scores(posterior, theta[~rows], y[~rows], draws, derive(seed, "draws"))
    return out


def _as_stack(recipe: Stack | Paper) -> Stack:
    if not isinstance(recipe, Stack):
        raise ValueError(
            f'Expected a recipe that keeps cross-validated draws, got {recipe!r}. Pass recipe="default" or recipe=Stack(...).'
        )
    return recipe


def _check(fractions: Sequence[float], repeats: int, distinct: int) -> None:
    if not fractions or any(not 0 < float(share) <= 1 for share in fractions):
        raise ValueError(
            f"Expected fractions above 0 and at most 1, got {tuple(fractions)}. Try fractions=(0.25, 0.5, 1)."
        )
    if not is_whole(repeats, 2):
        raise ValueError(f"Expected repeats to be a whole number of at least 2, got {repeats!r}. Try repeats=3.")
    if distinct < 10:
        raise ValueError(
            f"Expected pairs at 10 or more different θ, got {distinct}: no curve can be told from so few. Measure more pairs; "
            "fmcpe.diagnostics.suggest says where."
        )
