r"""The default recipe: fit several candidates, score each on held-out pairs, and sample from the mixture with the best score.

    cross_fit      for R random K-fold splits and each fold: fit every candidate on the rows outside the fold, without outliers
                   among them (`fmcpe.outliers`)
    score          z ~ member for each pair outside the member's training rows
    stack_weights  weights on the simplex that minimise the cross-validated energy score of the mixture

                       ES(w)/s - (β w_0 + α Σ_k log w_k)/N,      ES(w) = a·w - ½ wᵀ D w

    Mixture        the deployed posterior: the members that were scored, each of candidate k with probability w_k / M_k
    recalibration  a scale for each parameter about the mean of the mixture, by CRPS on the cross-validated draws

With \( z_j \) the truth of pair j and \( Z, Z' \) draws for it: \( a_k = E|Z_k - z_j| \), \( D_{kl} = E|Z_k - Z'_l| \), s the
smallest single-candidate score, w_0 the weight of the preferred candidate (`Candidate.preferred`), `Uncorrected`. The prior
of w is ∝ exp(β w_0) Π_k w_k^α: a simulator that the pairs do not refute keeps its posterior. The energy score is quadratic in
a small weight of a wrong candidate, so a refuted `Uncorrected` keeps a weight of order β/N; a Dirichlet pseudo-count of β
would leave it (β/N)^½.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fmcpe._options import LARGEST, SHARE, check_options, shortened
from fmcpe._progress import Progress
from fmcpe._random import derive, seeded
from fmcpe.candidates import Candidate, Posterior, default
from fmcpe.energy import CrossFit, Distances, effective_number, of_mean_one, stack_weights
from fmcpe.extrapolation import WithinRange
from fmcpe.mixture import Mixture, Recalibrated, recalibrated_without_fold, recalibration
from fmcpe.outliers import plausible_rows
from fmcpe.problem import Problem, groups_of, split_pairs


def training_rows(problem: Problem, folds: Tensor, robust: bool) -> list[list[Tensor]]:
    """Rows outside each fold of each repeat; if robust, without those that are outliers among them, or swapped."""
    return [
        [plausible_rows(problem, (split != k).nonzero()[:, 0], robust) for k in range(int(split.max()) + 1)]
        for split in folds
    ]


def cross_fit(
    candidate: Candidate, problem: Problem, folds: Tensor, rows: Sequence[Sequence[Tensor]], draws: int, seed: int
) -> CrossFit:
    """Fit a candidate outside each fold, and draw inside it.

    Args:
        candidate: The candidate.
        problem: The pairs, simulations and base posterior.
        folds: The fold of each pair in each repeat, (R, N).
        rows: Training rows of each fold of each repeat, `training_rows`.
        draws: S, draws for each pair from each member that was not trained on it.
        seed: Seed of fits and draws; those of one fold do not depend on the data of another.
    """
    started = time.perf_counter()
    if not candidate.uses_pairs:
        everything = torch.arange(len(problem), device=problem.theta.device)
        subsets, unseen = [everything], [[everything]] * len(folds)
    else:
        unseen = [[(split == k).nonzero()[:, 0] for k in range(len(ks))] for split, ks in zip(folds, rows, strict=True)]
        subsets = [each for ks in rows for each in ks]
    with seeded(derive(seed, candidate.name, "fit")):
        members = list(candidate.fit_members(problem, subsets))
    for member in members:  # members share the components of a density that is a Monte-Carlo mixture
        member.components = max(2, member.components // len(members))
    out = problem.z.new_empty(len(problem), len(unseen), draws, problem.z.shape[1])
    asked = iter(members if candidate.uses_pairs else members * len(folds))  # draws of their own for each repeat
    for repeat, parts in enumerate(unseen):
        for fold, inside in enumerate(parts):
            with seeded(derive(seed, candidate.name, "draw", repeat, fold)):
                out[inside, repeat] = next(asked).sample(problem.y[inside], draws)
    return CrossFit(members, out, time.perf_counter() - started)


@dataclass(frozen=True)
class Fitted:
    """A fitted stack and the quantities behind its weights.

    Args:
        posterior: The deployed posterior.
        weights: w, (K,).
        alone: Cross-validated energy score of each candidate alone, (K,).
        scores: Energy score of the stack on each pair, with weights computed without its fold, (N,).
        scale: Recalibration scale of each parameter, (p,).
        held_out: Cross-validated draws of the stack for each pair, recalibrated, (N, S, p).
        skipped: Why some candidates were not fitted.
        fits: The cross-fitted candidates by name, in the order of the weights.
        distances: Mean distances of all pairs; the weights are computed from those that are no outliers.
        left_out: Rows that are outliers among all pairs, or swapped (`fmcpe.outliers`).
        importance: Weight of each pair in the scores, (N,), of mean one.
        effective: Kish's effective number of pairs.
    """

    posterior: Posterior
    weights: Tensor
    alone: Tensor
    scores: Tensor
    scale: Tensor
    held_out: Tensor
    skipped: dict[str, str]
    fits: Mapping[str, CrossFit]
    distances: Distances
    left_out: Tensor
    importance: Tensor
    effective: float

    @property
    def uncorrected(self) -> Tensor | None:
        """Cross-validated draws of the uncorrected posterior, (N, S', p); None if it is no candidate."""
        return self.fits["uncorrected"].draws.flatten(1, 2) if "uncorrected" in self.fits else None


@dataclass(frozen=True)
class Stack:
    """The default recipe: a mixture of candidates, weighted by their cross-validated energy score.

    Args:
        candidates: The candidates.
        folds: K.
        repeats: R.
        draws: Draws for each pair from each member that was not trained on it.
        preference: β, advantage of the uncorrected posterior, in units of the best single score, divided by the pairs;
            0 for none.
        pseudo_count: α, Dirichlet pseudo-count of each candidate.
        shrinkage: Pseudo-count of a recalibration scale of one; 0 for none.
        out_of_range: Predictive p-value of an observation at which half of the weight goes to the prior.
        robust: Whether outliers and swapped rows are left out of the training rows and of the stacking weights.
        smallest: Weights below this threshold are set to zero; the largest weight is kept.

    Example:
        >>> from fmcpe.candidates import Prior, ResidualShift, Uncorrected
        >>> recipe = fmcpe.Stack([Prior(), Uncorrected(), ResidualShift()])
        >>> posterior = fmcpe.FMCPE(base, simulator, recipe=recipe).fit(theta_cal, y_cal, seed=0)
        >>> sorted(posterior.weights)
        ['prior', 'residual_shift', 'uncorrected']
    """

    candidates: tuple[Candidate, ...] = field(default_factory=default)
    folds: int = 5
    repeats: int = 2
    draws: int = 32
    preference: float = 1.5
    pseudo_count: float = 0.05
    shrinkage: float = 5.0
    out_of_range: float = 1e-5
    robust: bool = True
    smallest: float = 0.03

    bank: ClassVar[int] = 2000
    """Resource limit: simulations from the prior, for replay, standardisation and the range check. Existing ones can be passed:
    `FMCPE(simulations=)`."""
    simulations_per_pair: ClassVar[int] = 16
    """Resource limit: simulations at the θ of each pair, for candidates that compare them with y. Existing ones can be passed:
    `fit(x=)`."""

    def __post_init__(self) -> None:
        listed = isinstance(self.candidates, Iterable)
        given = tuple(self.candidates) if listed else ()
        wrong = [each for each in given if not isinstance(each, Candidate)] if listed else [self.candidates]
        if wrong:
            raise TypeError(
                f"Expected a list of candidates, got {shortened(wrong[0])}. Pass objects, e.g. Stack([Prior(), Uncorrected()])."
            )
        object.__setattr__(self, "candidates", given)
        names = [getattr(candidate, "name", None) for candidate in given]
        if not names or None in names or len(set(names)) < len(names):
            raise ValueError(
                f"Expected candidates with different names, got {names}. Try Stack([Prior(), Uncorrected(), FineTuned()])."
            )
        limits = {
            "folds": (2, LARGEST), "repeats": (1, 1000), "draws": (2, 10_000), "preference": (0.0, LARGEST),
            "shrinkage": (0.0, LARGEST), "out_of_range": SHARE, "smallest": (0.0, 1.0),
        }  # fmt: skip
        check_options(self, limits, LARGEST)

    def num_simulations(self, pairs: int) -> int:
        """Number of simulations that a fit on `pairs` pairs runs, without the bank."""
        return self.simulations_per_pair * pairs

    def fit(
        self, problem: Problem, seed: int, importance: Tensor | None = None, show_progress_bars: bool = False
    ) -> Fitted:
        """Fit all candidates, and find the weights.

        Args:
            problem: The pairs, simulations and base posterior.
            seed: Seed of splits, fits and draws.
            importance: Weight of each pair in scores, stacking weights and recalibration, (N,), of mean one; equal if None.
            show_progress_bars: Whether to show progress once it takes more than two seconds.
        """
        with seeded(derive(seed, "folds")):
            folds = split_pairs(problem.theta, self.folds, self.repeats)
        rows = training_rows(problem, folds, self.robust)
        fits, skipped = self.cross_fit(problem, folds, rows, seed, show_progress_bars)
        return self.combine(problem, folds, rows, fits, skipped, seed, importance)

    def combine(
        self,
        problem: Problem,
        folds: Tensor,
        rows: Sequence[Sequence[Tensor]],
        fits: Mapping[str, CrossFit],
        skipped: dict[str, str],
        seed: int,
        importance: Tensor | None = None,
    ) -> Fitted:
        """Weights, recalibration and the deployed posterior of cross-fitted candidates: the second half of `fit`."""
        groups, distinct = groups_of(problem.theta)
        distances = Distances.of(list(fits.values()), problem.z)
        everything = torch.arange(len(problem), device=folds.device)
        kept = plausible_rows(problem, everything, self.robust)
        importance = torch.ones_like(problem.z[:, 0]) if importance is None else importance
        weights = self.weights(tuple(fits), distances.rows(kept), groups[kept].unique().numel(), importance[kept])
        with seeded(derive(seed, "held out")):
            held_out, scores = self._held_out(fits, distances, folds, rows, groups, importance)
        effective = effective_number(distinct, importance)
        scale = recalibration(held_out, problem.z, effective, self.shrinkage, importance)
        held_out = recalibrated_without_fold(held_out, problem.z, folds, groups, self.shrinkage, importance)
        mixture = _ensemble(list(fits.values()), weights)
        return Fitted(
            WithinRange.of(Recalibrated(mixture, scale), problem, self.out_of_range, held_out, kept),
            weights,
            torch.stack([(importance * distances.scores(row)).mean() for row in torch.eye(len(fits)).to(weights)]),
            scores.mean(0),
            scale,
            held_out,
            skipped,
            fits,
            distances,
            everything[~torch.isin(everything, kept)],
            importance,
            effective,
        )

    def cross_fit(
        self,
        problem: Problem,
        folds: Tensor,
        rows: Sequence[Sequence[Tensor]],
        seed: int,
        show_progress_bars: bool = False,
    ) -> tuple[dict[str, CrossFit], dict[str, str]]:
        """The cross-fitted candidates, and the reason for each skipped one."""
        fits, skipped = dict[str, CrossFit](), dict[str, str]()
        offered = [each for each in self.candidates if problem.unlabelled is not None or not each.needs_unlabelled]
        for candidate in offered:
            reason = candidate.skipped(problem)
            if reason is None and candidate.uses_pairs and int(folds.max()) == 0:
                reason = "all pairs have the same θ, so that none can be held out"
            if reason is not None:
                skipped[candidate.name] = reason
        fitted = [candidate for candidate in offered if candidate.name not in skipped]
        with Progress(sum(c.effort for c in fitted), "fitting candidates", show_progress_bars) as progress:
            for candidate in fitted:
                with progress.part(candidate.effort):
                    found = cross_fit(candidate, problem, folds, rows, self.draws, seed)
                if bool(found.draws.isnan().any()):
                    skipped[candidate.name] = "its draws for held-out pairs have NaN"
                else:
                    fits[candidate.name] = found
        if not fits:
            reasons = "; ".join(
                f"{each.name}: {skipped.get(each.name, 'it needs y_unlabelled=')}" for each in self.candidates
            )
            raise ValueError(
                f"Expected a candidate that can be fitted, got none ({reasons}). Add Uncorrected() to Stack."
            )
        return fits, skipped

    def weights(
        self, names: Sequence[str], distances: Distances, pairs: float, importance: Tensor | None = None
    ) -> Tensor:
        """Weights of these candidates, (K,); arguments as for `stack_weights`, importance of any mean."""
        preferred = {candidate.name for candidate in self.candidates if candidate.preferred}
        preference = distances.to_truth.new_tensor([self.preference * (name in preferred) for name in names])
        importance = None if importance is None else of_mean_one(importance)
        effective = effective_number(pairs, importance)
        weights = stack_weights(distances, preference, self.pseudo_count, effective, importance)
        weights = torch.where(weights < weights.max().clamp_max(self.smallest), 0.0, weights)  # the largest one stays
        return weights / weights.sum()

    def _held_out(
        self,
        fits: Mapping[str, CrossFit],
        distances: Distances,
        folds: Tensor,
        rows: Sequence[Sequence[Tensor]],
        groups: Tensor,
        importance: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Draws of the stack for each pair, (N, R·S, p), and its scores, (R, N), with weights computed without the fold."""
        number, _, size, dim = next(iter(fits.values())).draws.shape
        like = distances.to_truth
        draws, scores = like.new_empty(number, len(folds), size, dim), like.new_empty(folds.shape)
        for repeat, split in enumerate(folds):
            for k, training in enumerate(rows[repeat]):
                inside = (split == k).nonzero()[:, 0]
                outside = training if len(training) else inside
                distinct = groups[outside].unique().numel()
                w = self.weights(tuple(fits), distances.rows(outside), distinct, importance[outside])
                scores[repeat, inside] = distances.rows(inside).scores(w)
                each = torch.stack([fit.draws[inside, repeat] for fit in fits.values()])  # (K, n, S, p)
                which = torch.multinomial(w, len(inside) * size, replacement=True).reshape(len(inside), size)
                draws[inside, repeat] = each[which, torch.arange(len(inside))[:, None], torch.arange(size)]
        return draws.flatten(1, 2), scores


def _ensemble(fits: Sequence[CrossFit], weights: Tensor) -> Mixture:
    """The members of each candidate share its weight."""
    members, shares = list[Posterior](), list[Tensor]()
    for weight, fit in zip(weights, fits, strict=True):
        for member in fit.members:
            members.append(member)
            shares.append(weight / len(fit.members))
    return Mixture(members, torch.stack(shares))
