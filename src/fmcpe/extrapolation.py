r"""Far from the pairs, the answer is the prior: \( w(y) = (1 - λ(y)) w + λ(y) e_{prior} \),
1 - λ = (1 - λ_x)(1 - λ_v)(1 - λ_θ).

**Data.** The distance of an observation is that of its summary to the mean of the pairs' summaries, in the metric of their
shrunk covariance. The leave-one-out distances of the pairs are the reference: with p the p-value of the log distance under
their Student-t predictive distribution, or under an exponential tail of the ⌈√N⌉ largest (a Pareto tail of the distance; Hill,
1975), or the share of pairs that are as far, whichever is largest, λ_x = p_0 / (p_0 + p). Few pairs say little of it;
simulations complete them, as pseudo-pairs of the covariance (about the pairs' own mean: an offset of the simulator does not
matter) and as a conjugate normal-inverse-gamma prior of the log distances.

Real observations without θ say what else is real, and nothing of θ. So they add a second p-value, of the distance to all real
observations, and p is the smaller one: an observation unlike the pairs stays out of range, however usual it is. This makes the
check sharper where pairs are few, and never more lenient.

**Spread.** An answer out of range is not sharper than one in range. λ_v is the smallest share of the prior with which each
parameter's standard deviation, and half of its central 68 % interval, physical and unconstrained, are at least the median over
the answers at the pairs, or the prior's if that is smaller (`fmcpe.spread`), times a ramp in log p: 0 from p = 0.01 up, and 1
from 0.001 down, the level of the warning.

**Parameters.** Pairs that were measured over a part of the prior say nothing of the rest. With p_i(z) the two-sided p-value of
z_i under the Student-t predictive distribution of the pairs' z_i, \( λ_θ = E[\max_i p_0 / (p_0 + p_i(z))] \), the mean over the
base posterior at y, clamped to the central 98 % of the target prior: that prior says which parameters stay where they were
measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor

from fmcpe._random import seeded
from fmcpe.candidates.base import Posterior, Remembered, Shared
from fmcpe.candidates.prior import PriorPosterior
from fmcpe.nn.fitted import Fitted
from fmcpe.problem import Problem
from fmcpe.serialization.registry import from_config, to_config
from fmcpe.spread import share_needed, spreads


class Range(Fitted):
    """Which observations are usual, by the distance of their summaries."""

    mean: Tensor
    """(f,)"""
    matrix: Tensor
    """To whitened principal directions, (f, q)."""
    distances: Tensor
    """Log distance of each of N usual observations when it is left out, (N,)."""
    pseudo_pairs: ClassVar[int] = 4
    """Pseudo-count of the simulations, and of a normal tail, in the conjugate priors."""
    before: tuple[float, float] | None = None
    """Mean and standard deviation of log distances between simulations, where they complete few pairs."""

    @classmethod
    def of(cls, rows: Tensor, like: Tensor | None = None, directions: int = 16) -> Range:
        """From summaries (N, f), in at most `directions` principal directions; `like` are simulations that complete them."""
        number = len(rows)
        size = max(1, min(directions, rows.shape[1], number // 3 if like is None else len(like) // 3))
        like = None if like is None else like - like.mean(0)
        mean, matrix = whitening(rows, size, like, cls.pseudo_pairs)
        distances, folds = rows.new_zeros(number), torch.arange(number, device=rows.device) % min(number, 20)
        for k in folds.unique() if number > (3 if like is None else 1) else ():
            distances[folds == k] = _log_distance(
                rows[folds == k], *whitening(rows[folds != k], size, like, cls.pseudo_pairs)
            )
        out = cls(mean=mean, matrix=matrix, distances=distances)
        if like is not None:
            out.before = _between_simulations(like, number, size, cls.pseudo_pairs)
        return out

    def p_values(self, rows: Tensor) -> Tensor:
        """Student-t predictive p-value of each row's log distance, (B,); alone, three observations or fewer say nothing."""
        number = len(self.distances)
        if number < (4 if self.before is None else 2):
            return torch.ones(len(rows), device=rows.device)
        mean, variance, freedom, count = self.distances.mean(), self.distances.var(), number - 1, float(number)
        pseudo = self.pseudo_pairs
        if self.before is not None:  # normal-inverse-gamma prior of as many pseudo-pairs as the covariance has
            usual, deviation = self.before
            apart = number * pseudo / (number + pseudo) * (mean - usual).square()
            freedom, count = number - 1 + pseudo, number + pseudo
            variance = ((number - 1) * variance + pseudo * deviation**2 + apart) / freedom
            mean = (number * mean + pseudo * usual) / count
        scale = variance.sqrt().clamp_min(1e-3) * (1 + 1 / count) ** 0.5
        distance = _log_distance(rows, self.mean, self.matrix)
        share = (self.distances >= distance[:, None]).float().mean(1)
        normal = torch.maximum(share, _tail((distance - mean) / scale, freedom))
        return torch.maximum(normal, _exponential_tail(self.distances, distance, float(scale), pseudo))

    def conformal(self, rows: Tensor) -> Tensor:
        """Conformal p-value of each row, (B,): the share of usual distances at least as large, never below 1/(N + 1)."""
        distance = _log_distance(rows, self.mean, self.matrix)[:, None]
        return (1 + (self.distances >= distance).sum(1)) / (1 + len(self.distances))


@dataclass(frozen=True)
class RangeCheck:
    """Whether observations are like those that the posterior was fitted on; every tensor has shape (B,).

    Args:
        pairs: Student-t predictive p-value of the distance to the calibration pairs; few of them are completed by simulations.
        conformal: Conformal p-value of the same distance: approximately valid for any distribution, never below 1/(N + 1).
        simulations: Student-t predictive p-value of the distance to simulations from the prior; NaN without a simulator.
        prior_share: λ, the share of the prior in the answer.
        real: Student-t predictive p-value of the distance to all real observations, with θ and without; None if all have
            θ.
        level: P-value below which an observation is called out of range.
    """

    pairs: Tensor
    conformal: Tensor
    simulations: Tensor
    prior_share: Tensor
    real: Tensor | None = None
    level: float = 1e-3

    @property
    def p_values(self) -> Tensor:
        """The smaller one of `pairs` and `real`."""
        return self.pairs if self.real is None else torch.minimum(self.pairs, self.real)

    @property
    def out_of_range(self) -> Tensor:
        """Observations with a p-value below the level."""
        return self.p_values < self.level

    def __str__(self) -> str:
        columns = [
            each.tolist()
            for each in (self.out_of_range, self.pairs, self.conformal, self.simulations, self.prior_share)
        ]
        real = [
            "" if self.real is None else f"p = {float(self.real[i]):.2g} against all real data; "
            for i in range(len(self.pairs))
        ]
        return "\n".join(
            f"observation {i}: {'out of range' if out else 'in range'} (p = {p:.2g}, conformal p = {c:.2g} against the pairs; "
            f"{real[i]}p = {s:.2g} against simulations); the prior has {share:.0%} of the answer"
            for i, (out, p, c, s, share) in enumerate(zip(*columns, strict=True))
        )


def _tail(t: Tensor, freedom: float) -> Tensor:
    """Probability that Student's t exceeds a value."""
    return torch.as_tensor(stats.t.sf(t.double().cpu().numpy(), max(1.0, freedom))).to(t)


def _exponential_tail(usual: Tensor, distance: Tensor, scale: float, pseudo: int) -> Tensor:
    """Predictive probability that a log distance exceeds a value, by the excesses of the largest usual ones over the next.

    Excesses are exponential, their rate has a conjugate gamma prior: `pseudo` excesses of a normal distribution.
    """
    number = len(usual)
    largest = min(math.ceil(number**0.5), number - 1)
    values = usual.sort(descending=True).values
    threshold, quantile = values[largest], stats.norm.isf(largest / number)
    excess = scale * (stats.norm.pdf(quantile) * number / largest - quantile)
    total = pseudo * excess + (values[:largest] - threshold).sum()
    above = (distance - threshold).clamp_min(0) / total
    return largest / number * (1 + above) ** -(pseudo + largest)


def _log_distance(rows: Tensor, mean: Tensor, matrix: Tensor) -> Tensor:
    return ((rows - mean) @ matrix).norm(dim=1).clamp_min(1e-12).log()


def whitening(rows: Tensor, size: int, like: Tensor | None = None, pseudo: int = 0) -> tuple[Tensor, Tensor]:
    """Mean, and a matrix to principal directions of unit variance, shrunk to their mean variance.

    Centred simulations `like`, (M, f), count for `pseudo` rows of the covariance.
    """
    data, freedom = rows.double(), max(1, len(rows) - 1)
    mean = data.mean(0)
    data = data - mean
    if like is not None:
        freedom = len(rows) - 1 + pseudo
        data = torch.cat([data, (pseudo / len(like)) ** 0.5 * like.double()])
    std = (data.square().sum(0) / freedom).sqrt()
    std = torch.where(std > 1e-9 * (data + mean).abs().amax(0).clamp_min(1e-30), std, torch.inf)
    _, values, vectors = torch.linalg.svd(data / std, full_matrices=False)
    values, vectors = values[:size].square() / freedom, vectors[:size]
    if len(values) < size:
        values = torch.cat([values, values.new_ones(size - len(values))])
        vectors = torch.cat([vectors, vectors.new_zeros(size - len(vectors), vectors.shape[1])])
    weight = size / (size + freedom + 1)
    values = (1 - weight) * values + weight * values.mean()
    return mean.to(rows), (vectors.T / values.clamp_min(1e-12).sqrt() / std[:, None]).to(rows)


def _between_simulations(
    like: Tensor, number: int, size: int, pseudo: int, sets: int = 12, most: int = 60
) -> tuple[float, float]:
    """Mean and standard deviation of the log distance of a simulation to `number` others, as pairs have it."""
    number, found = min(number, most, len(like) // 2), []
    for k in range(sets):
        rows = like.roll(-k * (len(like) // sets), 0)
        found.append(_log_distance(rows[number : number + most], *whitening(rows[:number], size, like, pseudo)))
    distances = torch.cat(found)
    return float(distances.mean()), float(distances.std())


class WithinRange(Posterior):
    """A posterior that moves to the prior out of range.

    Args:
        inner: The posterior.
        usual: Which observations are usual among the pairs.
        simulated: Which are usual among simulations; None without a simulator.
        half: p_0, the p-value at which half of the weight goes to the prior.
        shared: Base posterior, prior and space.
        typical: Median spreads of the answers at the pairs (4p numbers); None for files of earlier versions.
        real: Which are usual among all real observations; None without any that has no θ.
    """

    measured: Tensor
    """Mean and scale of the pairs' z_i, and the range of the target prior, (4, p)."""

    def __init__(
        self,
        inner: Posterior,
        usual: Range,
        simulated: Range | None,
        half: float,
        shared: Problem | Shared,
        typical: list[float] | None = None,
        real: Range | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.usual, self.simulated, self.real, self.p_half = inner, usual, simulated, real, half
        self.prior = PriorPosterior(shared.target_prior, shared.space)
        self.register_buffer("measured", torch.zeros(4, shared.space.dim))
        self.base, self._last = shared.base.summarised(), Remembered()
        self.typical, self.few = typical, shared.pool[:1024]
        self.prior_spreads = spreads(self.few[None], shared.space)[0]

    @classmethod
    def of(
        cls,
        inner: Posterior,
        problem: Problem,
        half: float,
        draws: Tensor | None = None,
        rows: Tensor | None = None,
        simulations: int = 300,
    ) -> WithinRange:
        """The range of a problem's pairs.

        Args:
            inner: The posterior.
            problem: The pairs and all else.
            half: p_0.
            draws: Of the posterior for the pairs, in z, (N, S, p).
            rows: Pairs that are no outliers; all if None.
            simulations: Number of simulations to compare with.
        """
        rows = torch.arange(len(problem), device=problem.z.device) if rows is None else rows
        seen, z = problem.seen[rows].flatten(1), problem.z[rows]
        bank = None if problem.bank_seen is None else problem.bank_seen[:simulations].flatten(1)
        simulated = None if bank is None else Range.of(bank)
        usual = Range.of(seen, bank)
        real = None if problem.unlabelled is None else Range.of(torch.cat([seen, problem.unlabelled.flatten(1)]), bank)
        out = cls(inner, usual, simulated, half, problem, real=real).to(problem.z.device)
        if draws is not None:
            out.typical = spreads(draws[rows], problem.space).median(0).values.tolist()
        number, tails = len(z), torch.tensor([0.01, 0.99], device=problem.pool.device)
        low, high = problem.pool.quantile(tails, dim=0)  # a base posterior that is far off reads θ that no prior has
        # N pairs are 1/N of the prior's deviation apart, if they span it: so far each of them reaches
        scale = ((1 + 1 / number) * z.var(0, correction=min(1, number - 1)) + 1 / number**2).sqrt()
        out.measured = torch.stack([z.mean(0), scale, low, high])
        return out

    @property
    def described(self) -> str:
        """What observations are compared with, in words."""
        return "the calibration pairs" if self.real is None else "the calibration pairs and the other real observations"

    def share_of_prior(self, y: Tensor) -> Tensor:
        """λ(y), (B,)."""

        def compute() -> Tensor:
            p = self.p_values(y)
            return 1 - (1 - self._share(p)) * (1 - self.share_by_spread(y, p)) * (1 - self.share_by_theta(y))

        return self._last(y, compute)

    def share_by_spread(self, y: Tensor, p: Tensor, draws: int = 256) -> Tensor:
        """λ_v(y), (B,), for observations with p-values p: always from the same draws."""
        ramp, out = (-(p / (10 * RangeCheck.level)).clamp_min(1e-30).log10()).clamp(0, 1), torch.zeros_like(p)
        if self.typical is None or not bool((ramp > 0).any()):
            return out
        prior, space = self.few.to(y.device), self.prior.space
        least = torch.minimum(torch.tensor(self.typical).to(self.prior_spreads), self.prior_spreads).to(y.device)
        with seeded(0), torch.no_grad():
            parts = [self.inner.sample(rows, draws) for rows in y[ramp > 0].split(200)]  # bounds memory
        out[ramp > 0] = torch.cat([share_needed(z, prior, least, space) for z in parts]).to(out)
        return ramp * out

    def p_values(self, y: Tensor) -> Tensor:
        """Student-t predictive p-value of the distance to the pairs, or to all real observations if that is smaller, (B,)."""
        seen = self.base.summarise(y).flatten(1)
        p = self.usual.p_values(seen)
        return p if self.real is None else torch.minimum(p, self.real.p_values(seen))

    def check(self, y: Tensor) -> RangeCheck:
        """Whether observations (B, ...) are like the pairs, and like simulations."""
        seen = self.base.summarise(y).flatten(1)
        unknown = torch.full((len(y),), torch.nan, device=seen.device)
        simulated = unknown if self.simulated is None else self.simulated.p_values(seen)
        return RangeCheck(
            self.usual.p_values(seen),
            self.usual.conformal(seen),
            simulated,
            self.share_of_prior(y).clone(),
            None if self.real is None else self.real.p_values(seen),
        )

    def share_by_theta(self, y: Tensor, draws: int = 64) -> Tensor:
        """λ_θ(y), (B,): always from the same draws of the base posterior."""
        mean, scale, low, high = self.measured
        with seeded(0), torch.no_grad():
            z = self.prior.space.to_z_safely(self.base.sample(self.base.summarise(y), draws).flatten(0, 1))
        t = (torch.minimum(torch.maximum(z, low), high) - mean).abs() / scale
        return self._share(2 * _tail(t, len(self.usual.distances) - 1)).amax(1).unflatten(0, (len(y), draws)).mean(1)

    def _share(self, p: Tensor) -> Tensor:
        """λ_x of a p-value."""
        return self.p_half / (self.p_half + p)

    def sample(self, y: Tensor, n: int) -> Tensor:
        z = self.inner.sample(y, n)
        moved = torch.rand(*z.shape[:2], 1, device=z.device) < self.share_of_prior(y)[:, None, None]
        return torch.where(moved, self.prior.sample(y, n), z)

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        share = self.share_of_prior(y)[:, None]
        inside = self.inner.log_prob(z, y) + torch.log1p(-share.clamp_max(1 - 1e-7))
        return torch.logaddexp(inside, self.prior.log_prob(z, y) + share.log())

    def to_config(self) -> dict[str, Any]:
        ranges = [
            None if r is None else [*r.matrix.shape, len(r.distances)] for r in (self.usual, self.simulated, self.real)
        ]
        return {
            "inner": to_config(self.inner), "ranges": ranges[: 2 + (self.real is not None)], "half": self.p_half,
            "before": self.usual.before, "spreads": self.typical,
        } | ({} if self.real is None else {"real_before": self.real.before})  # fmt: skip

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> WithinRange:
        usual, simulated, *others = (
            None if sizes is None else Range.empty(mean=sizes[0], matrix=tuple(sizes[:2]), distances=sizes[2])
            for sizes in config["ranges"]
        )
        real = others[0] if others else None
        for each, name in ((usual, "before"), (real, "real_before")):  # files of earlier versions have neither
            if each is not None and config.get(name) is not None:
                each.before = tuple(config[name])
        assert usual is not None
        return cls(
            from_config(config["inner"], shared), usual, simulated, config["half"], shared, config.get("spreads"), real
        )
