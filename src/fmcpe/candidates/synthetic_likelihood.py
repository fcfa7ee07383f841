r"""A likelihood p(y | θ) regressed from the pairs, inverted by Bayes' rule with the target prior.

    s(y) = μ + Bᵀ φ(θ) + ε          s: leading directions of the data, φ: polynomials of θ, ε: Student's t
    (`fmcpe.nn.conjugate`) p(z | y) ∝ p(z) t(s(y); φ(z))

Each pair is one draw of the real data at its θ. If their distribution is smooth in θ, few coefficients describe it. The prior
mean of B and the prior of ε's covariance come from the simulator (`fmcpe.candidates.emulator`): with few pairs, reality differs
from it by a polynomial of low degree. A vague prior is tried as well, for an uninformative simulator. Prior, degree and
precisions are those of highest evidence. Draws are importance-resampled from a
defensive mixture: Laplace approximations around several points of high posterior density, the prior, and a t distribution with
the moments of a first round of draws. The same weights give the normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from fmcpe._options import Limits, check_whole_numbers
from fmcpe._random import derive, seeded
from fmcpe.candidates.base import Candidate, Posterior, Remembered, Shared
from fmcpe.candidates.emulator import Emulator, Features, count
from fmcpe.candidates.prior import log_prior
from fmcpe.nn.conjugate import Regression, fit_conjugate
from fmcpe.nn.directions import Directions
from fmcpe.nn.importance import TMixture, pareto_k, systematic, tempered
from fmcpe.problem import Problem

FAR = 1e6
"""Numerical limit of whitened data, whose squares single precision holds: beyond it, an observation is not less likely."""


class SyntheticPosterior(Posterior):
    """Bayes' rule for one regression, s(y) given φ(z), as the likelihood; options as for `SyntheticLikelihood`.

    Attributes:
        unreliable: Share of the observations of the last draws with a Pareto k̂ above 0.7.
    """

    def __init__(
        self,
        regression: Regression,
        directions: Directions,
        features: Features,
        shared: Problem | Shared,
        modes: int,
        proposals: int,
    ) -> None:
        super().__init__()
        object.__setattr__(self, "space", shared.space)
        self.regression, self.directions, self.features = regression, directions, features
        self.prior, self.pool = shared.target_prior, shared.pool
        self.modes, self.proposals = modes, proposals
        self._last, self.unreliable = Remembered(), 0.0

    def to_config(self) -> dict[str, Any]:
        features = {"degree": self.features.degree, "physical": self.features.physical}
        return features | {
            "directions": list(self.directions.matrix.shape),
            "modes": self.modes,
            "proposals": self.proposals,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> SyntheticPosterior:
        features = Features(shared.space, shared.pool, config["degree"], config["physical"])
        (numbers, d), f = config["directions"], len(features.order)
        directions = Directions.empty(mean=numbers, matrix=(numbers, d))
        regression = Regression.empty(
            feature_mean=f, target_mean=d, weight=(f, d), whitening=(d, d), gram_root=(f, f), freedom=(), count=()
        )
        return cls(regression, directions, features, shared, config["modes"], config["proposals"])

    def sample(self, y: Tensor, n: int) -> Tensor:
        return self.sample_together([self], y, [n])[0]

    @property
    def kind(self) -> tuple[Any, ...]:
        return type(self), self.features.degree, self.features.physical, self.directions.matrix.shape[1]

    @classmethod
    @torch.no_grad()
    def sample_together(cls, members: Sequence[Self], y: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """All members are evaluated as one batch of regressions."""
        most = max(counts)
        rows = max(1, 400_000 // (max(members[0].proposals, 4 * most) * len(members)))  # bounds memory
        draws = torch.cat([_Target(members, part).sample(most) for part in y.split(rows)], dim=1)
        return [each[:, :n] for each, n in zip(draws, counts, strict=True)]

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        target = _Target([self], y)
        return target.log_likelihood(z) + target.log_prior(z) - self._last(y, target.log_evidence)[:, None]


class _Target:
    """Log prior and log likelihood of E regressions with features of one kind, for raw observations (B, ...): rows are E·B."""

    def __init__(self, members: Sequence[SyntheticPosterior], y: Tensor) -> None:
        self.members, self.number, self.first = members, len(members), members[0]
        seen = torch.cat([member.regression.whiten(member.directions(y)) for member in members])
        self.seen = seen.nan_to_num(FAR).clamp(-FAR, FAR)
        self.regression = Regression.stacked([member.regression for member in members])

    def predict(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened means, (E·B, n, d), and factors of the residual variance, (E·B, n), at z (E·B, n, p)."""
        features = self.first.features(z.flatten(0, 1)).unflatten(0, (self.number, -1))
        mean, factor = self.regression.predict(features)
        return mean.reshape(*z.shape[:2], -1), factor.reshape(z.shape[:2])

    def log_likelihood(self, z: Tensor) -> Tensor:
        """Up to a constant, (E·B, n, p) -> (E·B, n)."""
        mean, factor = self.predict(z)
        distance = (self.seen[:, None] - mean).square().sum(-1)
        each = self.regression.log_likelihood(distance.view(self.number, -1), factor.view(self.number, -1))
        return each.view_as(distance)

    def log_prior(self, z: Tensor) -> Tensor:
        """(E·B, n, p) -> (E·B, n)."""
        return log_prior(self.first.prior, self.first.space, z).nan_to_num(-torch.inf)

    def sample(self, n: int) -> Tensor:
        """Importance-resampled draws, (E, B, n, p)."""
        z, log_weights = self.weighted(max(self.first.proposals, 4 * n))
        unreliable = (pareto_k(log_weights) > 0.7).float().reshape(self.number, -1).mean(1)
        for member, share in zip(self.members, unreliable.tolist(), strict=True):
            member.unreliable = share
        index = systematic(log_weights.softmax(1), n)
        return z.gather(1, index[..., None].expand(-1, -1, z.shape[2])).unflatten(0, (self.number, -1))

    def log_evidence(self) -> Tensor:
        """Log of the normaliser, (E·B,): the mean importance weight of fixed draws.

        Members of a mixture have draws of their own, so that the errors of their normalisers average out.
        """
        with seeded(derive(0, str(float(self.regression.weight.flatten()[-1])))), torch.no_grad():
            log_weights = self.weighted(8 * self.first.proposals)[1]
            return log_weights.logsumexp(1) - math.log(log_weights.shape[1])

    def weighted(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws from the defensive mixture, (E·B, number, p), and their log importance weights.

        Half of the draws come from Laplace approximations and the prior. The others come from a t distribution with the
        moments of these, weighted; all have the weights of the whole mixture (Cornuet et al., "Adaptive multiple importance
        sampling", 2012).
        """
        few, adapted = number // 8, number // 2
        pool, laplace = self.first.pool, TMixture(*self._laplace(self._starts()))
        first = laplace.sample(number - few - adapted)
        z = torch.cat([first, pool[torch.randint(len(pool), (len(self.seen), few), device=first.device)]], dim=1)
        shares = [math.log(1 - (few + adapted) / number), math.log(few / number), math.log(adapted / number)]
        target, prior, near = self._log_target(z), self.log_prior(z), laplace.log_prob(z)
        moments = self._moments(z, target - torch.logaddexp(near + shares[0], prior + shares[1]))
        second = moments.sample(adapted)
        z, target = torch.cat([z, second], dim=1), torch.cat([target, self._log_target(second)], dim=1)
        parts = [torch.cat([near, laplace.log_prob(second)], dim=1), torch.cat([prior, self.log_prior(second)], dim=1)]
        parts.append(moments.log_prob(z))
        log_q = torch.stack([part + share for part, share in zip(parts, shares, strict=True)]).logsumexp(0)
        return z, (target - log_q).nan_to_num(-torch.inf)

    def _log_target(self, z: Tensor) -> Tensor:
        """Log of the posterior, up to its normaliser, (E·B, n, p) -> (E·B, n)."""
        return (self.log_likelihood(z) + self.log_prior(z)).nan_to_num(-torch.inf)

    def _moments(self, z: Tensor, log_weights: Tensor) -> TMixture:
        """A t distribution with the moments of weighted draws (E·B, n, p); the weights are tempered so that tens count."""
        weights = tempered(log_weights)[..., None]
        mean = (weights * z).sum(1, keepdim=True)
        covariance = (z - mean).mT @ (weights * (z - mean))
        effective, dim = 1 / weights.square().sum(1), z.shape[2]
        shrink = (dim / (dim + effective))[..., None]
        covariance = (1 - shrink) * covariance + shrink * torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
        covariance = covariance + 1e-8 * torch.eye(dim, device=z.device)
        return TMixture(mean, torch.linalg.cholesky(torch.linalg.inv(covariance))[:, None])

    def _starts(self) -> Tensor:
        """Draws of the prior, resampled by the likelihood, which is tempered so that tens of draws have weight: (E·B, C, p)."""
        pool = self.first.pool
        mean, factor = self.regression.predict(self.first.features(pool).expand(self.number, -1, -1))
        seen = self.seen.unflatten(0, (self.number, -1))
        squares = mean.square().sum(-1)[:, None] + seen.square().sum(-1)[..., None]
        distance = torch.baddbmm(squares, seen, mean.mT, alpha=-2).clamp_min(0.0)
        each = factor[:, None].expand_as(distance).flatten(1)
        likelihood = self.regression.log_likelihood(distance.flatten(1), each).view(len(self.seen), -1)
        return pool[systematic(tempered(likelihood), self.first.modes)]

    def _laplace(self, z: Tensor, steps: int = 6, difference: float = 1e-2) -> tuple[Tensor, Tensor]:
        """Gauss-Newton steps uphill from (E·B, C, p); points, and Cholesky roots of the precision there.

        The prior is taken as standard normal in z, and derivatives are finite differences; importance weights correct both.
        """
        modes, dim = z.shape[1:]
        eye, d = torch.eye(dim, device=z.device), self.seen.shape[1]
        freedom = self.regression.freedom.repeat_interleave(len(z) // self.number)[:, None]

        def values(points: Tensor) -> Tensor:
            """At (E·B, S, p): (E·B, S)."""
            return self.log_likelihood(points) - 0.5 * points.square().sum(-1)

        def curvature(points: Tensor) -> tuple[Tensor, Tensor]:
            around = torch.cat([points[:, :, None], points[:, :, None] + difference * eye], dim=2)  # (E·B, C, 1 + p, p)
            mean, factor = self.predict(around.flatten(1, 2))
            mean, factor = mean.unflatten(1, (modes, 1 + dim)), factor.unflatten(1, (modes, 1 + dim))[..., 0]
            jacobian = (mean[:, :, 1:] - mean[:, :, :1]) / difference
            residual = self.seen[:, None] - mean[:, :, 0]
            weight = ((freedom + d) / (freedom * factor + residual.square().sum(-1)))[..., None]
            hessian = weight[..., None] * (jacobian @ jacobian.mT) + eye
            return hessian, weight * (jacobian @ residual[..., None])[..., 0] - points

        lengths = torch.tensor([1.0, 0.25, 0.05], device=z.device)[:, None]
        best = values(z)
        for _ in range(steps):
            hessian, gradient = curvature(z)
            step = torch.linalg.solve(hessian, gradient)
            step = step * (2.0 / step.norm(dim=2, keepdim=True).clamp_min(2.0))
            moved = (z[:, :, None] + lengths * step[:, :, None]).clamp(-6, 6)  # (E·B, C, 3, p)
            now, which = values(moved.flatten(1, 2)).unflatten(1, (modes, 3)).max(2)
            chosen = moved.gather(2, which[..., None, None].expand(-1, -1, 1, dim))[:, :, 0]
            better = now > best
            z, best = torch.where(better[..., None], chosen, z), torch.where(better, now, best)
        return z, torch.linalg.cholesky(curvature(z)[0])


@dataclass(frozen=True)
class SyntheticLikelihood(Candidate):
    """A conjugate Bayesian regression of data on θ, and Bayes' rule.

    Args:
        degrees: Of the polynomials that are tried, 1 to 8, as far as they have at most 300 terms.
        directions: Largest number of directions of the data.
        modes: Laplace approximations in the proposal.
        proposals: Importance samples per observation, at least.
    """

    degrees: tuple[int, ...] = (1, 2, 3)
    directions: int = 24
    modes: int = 8
    proposals: int = 256

    name = "synthetic_likelihood"
    limits: ClassVar[Mapping[str, Limits]] = {"directions": (1, 10_000), "modes": (1, 1000), "proposals": (8, 100_000)}

    def __post_init__(self) -> None:
        super().__post_init__()
        # monomials of higher degrees are alike to within rounding
        check_whole_numbers(self, "degrees", 8, "(1, 2)", least=1)

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[SyntheticPosterior]:
        dim = problem.z.shape[1]
        degrees = [degree for degree in self.degrees if count(dim, degree) <= 300] or [1]
        kinds = [
            Features(problem.space, problem.pool, degree, physical) for degree in degrees for physical in (False, True)
        ]
        emulator = None if problem.bank_x is None else Emulator.of(problem, self.directions)
        return [self._fit(problem, rows, kinds, emulator) for rows in subsets]

    def _fit(
        self, problem: Problem, rows: Tensor, kinds: Sequence[Features], emulator: Emulator | None
    ) -> SyntheticPosterior:
        """The regression of highest evidence, with a vague prior, or with the simulator's mean and noise as prior."""
        directions, z = Directions.of(problem.y[rows], self.directions), problem.z[rows]
        targets = directions(problem.y[rows])
        fits = [(fit_conjugate(kind(z), targets, kind.order), kind) for kind in kinds]
        if emulator is not None:
            prior = emulator.prior(directions)
            for degree in sorted({kind.degree for kind in kinds}):
                kind = emulator.features.at_least(degree)
                fits.append((fit_conjugate(kind(z), targets, kind.order, prior, degree), kind))
        fit, kind = max(fits, key=lambda each: each[0].evidence)
        return SyntheticPosterior(fit.regression, directions, kind, problem, self.modes, self.proposals)
