r"""Far from the pairs, the posterior returns to the prior: w(y) = (1 - λ(y)) w + λ(y) e_prior.

**Data.** With p the smallest of the p-values of the distance of y's summary to those of the pairs, to those of all real
observations if some have no θ (`fmcpe.in_range`), and of the raw y to those of the pairs where the summary does not show all of
it (`fmcpe.raw_range`), λ = p_0 / (p_0 + p).

**Spread.** A posterior out of range must not be sharper than one in range. It is widened (`fmcpe.spread`) until the standard
deviation of each parameter, its central 68 % interval and its shortest 50 % interval are in unconstrained space at least the
median over the posteriors at the pairs, and in physical units at least the smallest, or the prior's if that is smaller; how far
it is widened has a ramp in log p: 0 for p ≥ 0.01, 1 for p ≤ 0.001, the level of the warning.

**Parameters.** Pairs that cover a part of the prior carry no information about the rest. With p_i(z) the two-sided p-value of
z_i under the Student-t predictive distribution of the pairs' z_i, \( λ_i = E[p_0 / (p_0 + p_i(z))] \), the mean over the base
posterior at y, clamped to the central 98 % of the target prior, which defines the range of θ in use. With probability λ_i
parameter i returns to the prior, and the others follow (`fmcpe.unmeasured`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fmcpe._random import seeded
from fmcpe.candidates.base import Posterior, Remembered, Shared
from fmcpe.candidates.prior import PriorPosterior
from fmcpe.in_range import Range, RangeCheck, student_tail
from fmcpe.problem import Problem
from fmcpe.raw_range import RawRange, known_columns
from fmcpe.serialization.registry import from_config, to_config
from fmcpe.spread import Widening, share_needed, spreads, way_needed
from fmcpe.unmeasured import Moments, largest_sets, with_prior


class WithinRange(Posterior):
    """A posterior that moves to the prior out of range.

    Args:
        inner: The posterior.
        usual: Reference distribution of the calibration pairs.
        simulated: Reference distribution of simulations; None without a simulator.
        half: p_0, the p-value at which half of the weight goes to the prior.
        shared: Base posterior, prior and space.
        typical: Spreads required out of range (`fmcpe.spread`); None for files of earlier versions.
        real: Reference distribution of all real observations, with θ and without; None if all have θ.
        raw: Reference distribution of the pairs' raw data; None where the summaries show all of them, and without simulations.
    """

    least: ClassVar[int] = 128
    """Numerical limit: fewest draws for the moments of a posterior."""
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
        raw: RawRange | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.usual, self.simulated, self.p_half = inner, usual, simulated, half
        self.real, self.raw = real, raw
        self.prior = PriorPosterior(shared.target_prior, shared.space)
        self.register_buffer("measured", torch.zeros(4, shared.space.dim))
        self.base, self._last, self._last_moments = shared.base.summarised(), Remembered(), Remembered()
        self.typical, self.few = typical, shared.pool[:1024]
        self.prior_spreads = spreads(self.few[None], shared.space)[0]
        self.prior_moments = Moments.of(shared.pool)

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
        """From the pairs of a problem.

        Args:
            inner: The posterior.
            problem: The pairs, simulations and base posterior.
            half: p_0.
            draws: Held-out draws for the pairs, in z, (N, S, p).
            rows: Pairs that are no outliers; all if None.
            simulations: Number of simulations to compare with.
        """
        rows = torch.arange(len(problem), device=problem.z.device) if rows is None else rows
        seen, z = problem.seen[rows].flatten(1), problem.z[rows]
        bank = None if problem.bank_seen is None else problem.bank_seen[:simulations].flatten(1)
        simulated = None if bank is None else Range.of(bank)
        usual = Range.of(seen, bank)
        real = None if problem.unlabelled is None else Range.of(torch.cat([seen, problem.unlabelled.flatten(1)]), bank)
        shown = problem.y[0].numel() <= usual.matrix.shape[1] and problem.summarised is problem.base
        raw = None if shown or problem.bank_x is None else RawRange.of(problem.y[rows], problem.bank_x)
        out = cls(inner, usual, simulated, half, problem, real=real, raw=raw).to(problem.z.device)
        if draws is not None:
            at_pairs = spreads(draws[rows], problem.space).unflatten(1, (-1, 2, problem.space.dim))
            # physical widths depend on the place: next to a bound they are small
            least = torch.stack([at_pairs[:, :, 0].median(0).values, at_pairs[:, :, 1].amin(0)], dim=1)
            out.typical = least.flatten().tolist()
        number, tails = len(z), torch.tensor([0.01, 0.99], device=problem.pool.device)
        # `share_by_theta` clamps draws to this range: a base posterior far out of distribution has draws far outside the prior
        low, high = problem.pool.quantile(tails, dim=0)
        # N pairs that span the prior are about 1/N of its standard deviation apart; this spacing is added to their variance
        scale = ((1 + 1 / number) * z.var(0, correction=min(1, number - 1)) + 1 / number**2).sqrt()
        out.measured = torch.stack([z.mean(0), scale, low, high])
        return out

    @property
    def described(self) -> str:
        """What observations are compared with, as text."""
        return "the calibration pairs" if self.real is None else "the calibration pairs and the other real observations"

    def share_of_prior(self, y: Tensor) -> Tensor:
        """Weight of the prior for the parameter that has most of it, (B,)."""
        share, by_theta = self.shares(y)
        return 1 - (1 - share) * (1 - by_theta.amax(1))

    def shares(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of the prior by the data and by what a widening leaves to do, (B,), and λ_i(y), (B, p)."""
        return self._at(y)[:2]

    def _at(self, y: Tensor) -> tuple[Tensor, Tensor, Widening]:
        """`shares`, and the widening at y."""

        def compute() -> tuple[Tensor, Tensor, Widening]:
            p = self.p_values(y)
            share, widening = self.widening(y, p)
            return 1 - (1 - self._share(p)) * (1 - share), self.share_by_theta(y), widening

        found: tuple[Tensor, Tensor, Widening] = self._last(y, compute)
        return found

    def widening(self, y: Tensor, p: Tensor, draws: int = 256) -> tuple[Tensor, Widening]:
        """For observations with p-values p, from fixed draws: the share of the prior that a widening leaves to do, (B,); it."""
        ramp = (-(p / (10 * RangeCheck.level)).clamp_min(1e-30).log10()).clamp(0, 1)
        zeros = torch.zeros(len(y), self.prior.space.dim, device=y.device)
        share, found = torch.zeros_like(p), Widening(zeros, zeros.clone(), zeros + 1)
        if self.typical is None or not bool((ramp > 0).any()):
            return share, found
        prior, space = self.few.to(y.device), self.prior.space
        least = torch.tensor(self.typical).to(self.prior_spreads)
        least = torch.minimum(least, self.prior_spreads[: len(least)]).to(y.device)
        for rows in (ramp > 0).nonzero()[:, 0].split(200):  # bounds memory
            with seeded(0), torch.no_grad():
                z = self.inner.sample(y[rows], draws)
            way = way_needed(z, prior, least, space).to(z)
            full = Widening.towards(z, prior, way)
            share[rows] = ramp[rows] * share_needed(full(z), prior, least, space).to(share)
            part = Widening.towards(z, prior, ramp[rows, None] * way)
            found.centre[rows], found.mean[rows], found.scale[rows] = part.centre, part.mean, part.scale
        return share, found

    def p_values(self, y: Tensor) -> Tensor:
        """The smallest p-value of each observation, (B,)."""
        return self._compared(y).p_values

    def check(self, y: Tensor) -> RangeCheck:
        """Whether observations (B, ...) are like the pairs, like all real observations, and like simulations."""
        return replace(self._compared(y), prior_share=self.share_of_prior(y).clone())

    def _compared(self, y: Tensor) -> RangeCheck:
        """P-values of observations (B, ...)."""
        seen = self.base.summarise(y).flatten(1)
        unknown = torch.full((len(y),), torch.nan, device=seen.device)
        simulated = unknown if self.simulated is None else self.simulated.p_values(seen)
        real = None if self.real is None else self.real.p_values(seen)
        raw = None if self.raw is None else self.raw.p_values(y)
        return RangeCheck(self.usual.p_values(seen), self.usual.conformal(seen), simulated, unknown, real, raw=raw)

    def share_by_theta(self, y: Tensor, draws: int = 64) -> Tensor:
        """λ_i(y), (B, p); computed from fixed draws of the base posterior."""
        with seeded(0), torch.no_grad():
            parts = [self._base_draws(rows, draws) for rows in y.split(2000)]  # bounds memory
        mean, scale = self.measured[:2]
        tails = [2 * student_tail((z - mean).abs() / scale, len(self.usual.distances) - 1) for z in parts]
        return torch.cat([self._share(p).mean(1) for p in tails])

    def _base_draws(self, y: Tensor, draws: int) -> Tensor:
        """Draws of the base posterior within the range of θ in use, (B, draws, p)."""
        z = self.prior.space.to_z_safely(self.base.sample(self.base.summarise(y), draws).flatten(0, 1))
        return torch.minimum(torch.maximum(z, self.measured[2]), self.measured[3]).unflatten(0, (len(y), draws))

    def _base_moments(self, y: Tensor, draws: int = 512) -> Moments:
        """Moments of the base posterior, from fixed draws."""
        with seeded(0), torch.no_grad():
            return Moments.of(self._base_draws(y, draws))

    def _moments_at(self, y: Tensor) -> tuple[Moments, Moments]:
        """Moments of the posterior and of the base posterior, from fixed draws."""

        def compute() -> tuple[Moments, Moments]:
            with seeded(0), torch.no_grad():
                inner = Moments.of(self._at(y)[2](self.inner.sample(y, self.least)))
            return inner, self._base_moments(y)

        found: tuple[Moments, Moments] = self._last_moments(y, compute)
        return found

    def _share(self, p: Tensor) -> Tensor:
        """λ_x of a p-value."""
        return self.p_half / (self.p_half + p)

    def sample(self, y: Tensor, n: int) -> Tensor:
        share, by_theta, widening = self._at(y)
        drawn = widening(self.inner.sample(y, max(n, self.least)))
        z = drawn[:, :n]
        number = torch.rand(*z.shape[:2], 1, device=z.device)
        z = torch.where(number < share[:, None, None], self.prior.sample(y, n), z)
        rest = (number - share[:, None, None]) / (1 - share[:, None, None]).clamp_min(1e-7)  # of other draws, uniform
        members = (rest >= 0) & (rest < by_theta[:, None])  # (B, n, p)
        rows = members.flatten(1).any(1).nonzero()[:, 0]
        if len(rows) == 0:
            return z
        parts = z[rows], members[rows], largest_sets(by_theta[rows])[1], Moments.of(drawn[rows])
        return z.index_copy(0, rows, self._returned(*parts, self._base_moments(y[rows])))

    def _returned(self, z: Tensor, members: Tensor, sets: Tensor, inner: Moments, base: Moments) -> Tensor:
        """Draws (B, n, p) with these parameters returned to the prior, (B, n, p), and the others following."""
        sizes = members.sum(2)
        for size in sizes.unique().tolist():
            if size > 0:
                found = with_prior(inner, base, self.prior_moments.to(z.device), sets[:, size])
                z = torch.where((sizes == size)[:, :, None], found.sample((z.shape[1],)).movedim(0, 1).to(z), z)
        return z

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        share, by_theta, widening = self._at(y)
        probabilities, sets = largest_sets(by_theta.double())
        density = self.inner.log_prob(widening.inverse(z), y) - widening.scale.log().sum(1)[:, None]
        moments, parts = self._moments_at(y), [density]
        for size in range(1, z.shape[2] + 1):
            found = with_prior(*moments, self.prior_moments.to(z.device), sets[:, size])
            parts.append(found.log_prob(z.double().movedim(1, 0)).movedim(0, 1).to(z))
        weights = probabilities.log().to(z).T[:, :, None]
        inside = (torch.stack(parts) + weights).logsumexp(0) + torch.log1p(-share.clamp_max(1 - 1e-7))[:, None]
        return torch.logaddexp(inside, self.prior.log_prob(z, y) + share.log()[:, None])

    def to_config(self) -> dict[str, Any]:
        kept = [self.usual, self.simulated, *([] if self.real is None else [self.real])]
        ranges = [None if r is None else [*r.matrix.shape, len(r.distances)] for r in kept]
        constant = [[] if r is None else list(r.constant) for r in kept]
        return {
            "inner": to_config(self.inner), "ranges": ranges, "half": self.p_half,
            "before": self.usual.before, "spreads": self.typical,
        } | ({} if self.real is None else {"real_before": self.real.before}) | (
            {"constant": constant} if any(constant) else {}
        ) | ({} if self.raw is None else {"raw": self.raw.to_config()})  # fmt: skip

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> WithinRange:
        ranges = [
            None if sizes is None else Range.empty(mean=sizes[0], matrix=tuple(sizes[:2]), distances=sizes[2])
            for sizes in config["ranges"]
        ]
        for found, columns in zip(ranges, config.get("constant", ()), strict=False):  # only if there are any
            if found is not None:
                found.constant = known_columns(columns, len(found.mean))
        usual, simulated, *others = ranges
        assert usual is not None
        real = others[0] if others else None
        for each, name in ((usual, "before"), (real, "real_before")):  # files of earlier versions have neither
            if each is not None and config.get(name) is not None:
                each.before = tuple(config[name])
        raw = RawRange.from_config(config["raw"]) if "raw" in config else None
        inner, typical = from_config(config["inner"], shared), config.get("spreads")
        return cls(inner, usual, simulated, config["half"], shared, typical, real, raw)
