r"""CV+ intervals: a finite-sample guarantee without held-out pairs, from a whole refit for each fold.

The N pairs are split into K folds of equal size, and the whole recipe is fitted K times, each time without one fold. The score
of pair j is that of the model that has not seen it, k = k(j): s_j = |z_j - m_k(y_j)| / h_k(y_j), with the median m and the
half-width h of `fmcpe.diagnostics.conformal`. For a new y, each pair gives an interval by its own model, and with
r = ⌈(1 - α)(N + 1)⌉

    [ r-th largest of  m_k(j)(y) - s_j h_k(j)(y),   r-th smallest of  m_k(j)(y) + s_j h_k(j)(y) ]

holds the truth with probability at least 1 - 2α - √(2/N), if pairs and new observation are exchangeable (Barber, Candès,
Ramdas and Tibshirani, 2021, "Predictive inference with the jackknife+", theorem 4). Usually the coverage is close to 1 - α.
The interval contains every θ that fewer than r pairs exclude, {θ : #{j : s_j < s_k(j)(θ, y)} < r}, and the proof is about
that set. So the box of intervals for all parameters, with s_j the largest score of pair j, has the same guarantee.

For one set of pairs, the coverage is at least 1 - 2α - √(2 log(K/δ) K/N) with probability 1 - δ (Bian and Barber, 2023,
"Training-conditional coverage for distribution-free predictive inference"): nothing, with few pairs.

The theorem needs folds of equal size and a fit that does not depend on the order of the pairs. So N is the largest multiple of
K; pairs left over, chosen at random, belong to every fit and have no score; each fit gets its pairs in random order. Pairs
with the same θ share a fold and count once. With fewer than 2K of them, every pair is a fold (the jackknife+). Designs with a
few fixed values are refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fmcpe._ambient import quiet
from fmcpe._checks import as_pairs, as_tensor
from fmcpe._errors import FMCPEWarning
from fmcpe._names import columns_of, in_order
from fmcpe._options import LARGEST, check_options
from fmcpe._random import derive, seeded
from fmcpe.candidates.base import Shared
from fmcpe.diagnostics.conformal import (
    EXCHANGEABLE,
    Conformal,
    Promise,
    largest_of_each,
    median_and_width,
    parameters,
    rank_of,
    refuse_fixed_values,
    scores_of,
)
from fmcpe.problem import groups_of, one_of_each
from fmcpe.record import Record
from fmcpe.serialization.registry import from_config, to_config

if TYPE_CHECKING:
    from fmcpe.method import FMCPE
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class CVPlus:
    """Options of `FMCPE.fit(..., conformal=)`; ``"cv+"`` stands for the defaults.

    Args:
        folds: K, whole refits; each pair is a fold where there are fewer than 2K with different θ.
        num_samples: Draws per observation that median and half-width are estimated from.
    """

    folds: int = 5
    num_samples: int = 1000

    def __post_init__(self) -> None:
        check_options(self, {"folds": (2, LARGEST), "num_samples": (10, LARGEST)})

    def calibrate(
        self, fit: Callable[[Tensor, int | None], CorrectedPosterior], theta: Tensor, y: Tensor, seed: int | None
    ) -> CVPlusConformal:
        """Fit without each fold, and score the pairs inside it.

        Args:
            fit: The posterior of some rows of the pairs, given a seed.
            theta: Physical parameters of the pairs, (n, p).
            y: Real measurements taken at them, (n, ...).
            seed: Of the folds, the fits and the draws.
        """
        refuse_fixed_values(
            theta, "fit without conformal= and call posterior.conformalize with one held-out pair of each"
        )
        groups, distinct = groups_of(theta)
        if distinct < max(self.folds, 3):
            raise ValueError(
                f"Expected at least {max(self.folds, 3)} pairs with different θ for CV+ with {self.folds} folds, got "
                f"{distinct}. Measure more; 90 % intervals need 9."
            )
        with seeded(derive(seed, "cv+", "folds")):
            order = torch.randperm(distinct, device=theta.device)
        number = self.folds if distinct >= 2 * self.folds else distinct
        # groups left over are in no fold
        fold = torch.where(order < distinct // number * number, order % number, -1)[groups]
        counted = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        counted[one_of_each(theta, seed)] = True
        models: list[CorrectedPosterior] = []
        scores, folds = list[Tensor](), list[Tensor]()
        for k in range(number):
            inside, outside = ((fold == k) & counted).nonzero()[:, 0], (fold != k).nonzero()[:, 0]
            with seeded(derive(seed, "cv+", "order", k)):
                outside = outside[torch.randperm(len(outside), device=theta.device)]
            with quiet():  # the fit on all pairs warns
                models.append(fit(outside, derive(seed, "cv+", "fit", k)))
            scores.append(
                scores_of(models[k], theta[inside], y[inside], self.num_samples, derive(seed, "cv+", "draw", k))
            )
            folds.append(torch.full_like(inside, k))
        return CVPlusConformal(tuple(models), torch.cat(scores), torch.cat(folds), self.num_samples)


@dataclass(frozen=True)
class CVPlusConformal(Conformal):
    """Models of the folds, and scores of the pairs.

    Args:
        models: Fitted without each fold, K of them.
        scores: Of each parameter, (N, p).
        folds: The fold of each pair, (N,).
        num_samples: Draws per observation that scores were computed from.
    """

    kind = "cv+"
    models: tuple[CorrectedPosterior, ...]
    scores: Tensor
    folds: Tensor
    num_samples: int

    def answers(self, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Median and half-width for observations (B, ...), by the model of each pair's fold: (N, B, p) each."""
        answers = [
            median_and_width(model, y, self.num_samples, derive(seed, "new observations", k))
            for k, model in enumerate(self.models)
        ]
        median, width = (torch.stack(each)[self.folds] for each in zip(*answers, strict=True))
        return median, width

    def ends(
        self, posterior: CorrectedPosterior, y: Tensor, level: float, joint: bool, seed: int
    ) -> tuple[Tensor, Tensor]:
        return self.ends_of(*self.answers(y, seed), level, joint)

    def ends_of(self, median: Tensor, width: Tensor, level: float, joint: bool) -> tuple[Tensor, Tensor]:
        """Ends of the intervals in z, (B, p) each, of what `answers` gave."""
        rank = rank_of(len(self.scores), level, "pairs in folds of equal size")
        scores = (largest_of_each(self.scores) if joint else self.scores)[:, None]
        low = (median - scores * width).sort(dim=0, descending=True).values[rank - 1]
        high = (median + scores * width).sort(dim=0).values[rank - 1]
        return low, high

    def promise(self, level: float, joint: bool) -> Promise:
        number = len(self.scores)
        rank_of(number, level, "pairs in folds of equal size")
        share, coverage = guaranteed(level, number), guaranteed_for_one_set(level, number, len(self.models))
        bound = (
            f"With these very pairs the coverage is at least {coverage:.2f} with probability 0.95."
            if coverage > 0
            else "For one set of so few pairs theory gives no bound."
        )
        guarantee = (
            f"For a new real observation, the interval of {parameters(joint)} holds the truth with probability at least "
            f"{share:.2f} = 1 - 2α - √(2/{number}) with α = {1 - level:.4g}, on average over sets of pairs (CV+, "
            f"{len(self.models)} folds); usually close to {level:.4g}, which is not promised. It assumes that the observation "
            f"and the {number} pairs of the fit are exchangeable: {EXCHANGEABLE}. {bound}"
        )
        return Promise(level, joint, number, share, coverage, guarantee, float(number))

    def to(self, device: str | torch.device) -> CVPlusConformal:
        models = tuple(model.to(device) for model in self.models)
        return CVPlusConformal(models, self.scores.to(device), self.folds.to(device), self.num_samples)

    def to_config(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {"scores": self.scores, "folds": self.folds}
        for k, model in enumerate(self.models):
            tensors |= {f"model.{k}.{name}": value for name, value in model.inner.state_dict().items()}
            tensors[f"pool.{k}"] = model.shared.pool
        models = [{"posterior": to_config(model.inner), "num_pairs": model.record.num_pairs} for model in self.models]
        return {"num_samples": self.num_samples, "models": models}, tensors

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], posterior: CorrectedPosterior
    ) -> CVPlusConformal:
        """From a file; the models share the base posterior, the prior and the space of `posterior`."""
        from fmcpe.posterior import CorrectedPosterior

        own, models = posterior.shared, []
        for k, says in enumerate(config["models"]):
            shared = Shared(own.base, own.space, own.target_prior, tensors[f"pool.{k}"], own.embedding_net)
            inner, prefix = from_config(says["posterior"], shared), f"model.{k}."
            inner.load_state_dict(
                {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            )
            record = Record(num_pairs=says["num_pairs"])
            models.append(CorrectedPosterior(inner, shared, posterior.observation_shape, record))
        return cls(tuple(models), tensors["scores"], tensors["folds"], config["num_samples"])


def guaranteed(level: float, number: int) -> float:
    """1 - 2α - √(2/N), not below 0: promised on average over sets of N pairs."""
    return max(0.0, 2 * level - 1 - math.sqrt(2 / number))


def guaranteed_for_one_set(level: float, number: int, folds: int, delta: float = 0.05) -> float:
    """1 - 2α - √(2 log(K/δ) K/N), not below 0: promised for a share 1 - δ of all sets of N pairs."""
    return max(0.0, 2 * level - 1 - math.sqrt(2 * math.log(folds / delta) * folds / number))


def fit_with_cv_plus(
    method: FMCPE,
    conformal: str | CVPlus,
    theta: Any,
    y: Any,
    x: Any,
    y_unlabelled: Any,
    weights: Any,
    seed: int | None,
    show_progress_bars: bool,
) -> CorrectedPosterior:
    """The posterior of all pairs, the same as without CV+, with intervals by CV+; arguments as for `FMCPE.fit`."""
    if conformal != "cv+" and not isinstance(conformal, CVPlus):
        raise ValueError(
            f'Expected conformal="cv+", a CVPlus or None, got {conformal!r}. Try fit(theta, y, conformal="cv+"); for intervals '
            "from held-out pairs, call posterior.conformalize(theta, y) after the fit."
        )
    from fmcpe.method import _as_importance

    plan = CVPlus() if isinstance(conformal, str) else conformal
    given = theta, y, x  # columns of a DataFrame name the parameters
    theta = in_order(theta, method.names, "theta")
    theta, y, x = as_pairs(theta, y, x, method.base.prior, method.base.raw_shape)
    theta, y = theta.to(method.device), y.to(method.device)
    if weights is not None:
        _as_importance(weights, len(theta))  # refuses them before any fit
        warnings.warn(
            "Expected pairs drawn from the distribution of θ in use, got weights: the fits use them, but what CV+ promises "
            "holds for θ distributed like those of the pairs. For the target prior, hold pairs out and call "
            "posterior.conformalize(theta, y, weights=ratio).",
            FMCPEWarning,
            stacklevel=3,
        )
        weights = as_tensor(weights, "weights")
    unlabelled = method.unlabelled(y_unlabelled, columns_of(given[1]) or (), y)  # without y of any fold

    def fit(rows: Tensor, own_seed: int | None) -> CorrectedPosterior:
        simulations, shares = (None if each is None else each[rows.to(each.device)] for each in (x, weights))
        if shares is not None and not bool(shares.any()):
            raise ValueError(
                "Expected weight on pairs of two folds or more for CV+, got all of it in one fold: the fit without that fold "
                "has none. Weight more pairs, or fit without conformal=."
            )
        found = method.fit(
            theta[rows], y[rows], simulations, y_unlabelled=unlabelled, weights=shares, seed=own_seed,
            show_progress_bars=show_progress_bars,
        )  # fmt: skip
        # without the cross-validated draws, which nothing asks for
        return type(found)(found.inner, found.shared, found.observation_shape, Record(num_pairs=len(rows)))

    calibrated = plan.calibrate(fit, theta, y, seed)
    posterior = method.fit(
        *given, y_unlabelled=unlabelled, weights=weights, seed=seed, show_progress_bars=show_progress_bars
    )
    posterior.conformal = calibrated
    return posterior
