r"""Closed-form transport y -> x̃ by ridge regression, the base posterior, then an affine recalibration of θ.

    x̃ ~ N(x̂(y), (1 + h(y)) Σ + Σ_S)          x̂: ridge regression of simulations at θ_j on y_j, h: leverage
    z_0 ~ p̂(z | x̃)
    z = T z_0 + (1 - T) c(y) + g(y)           T: optimal transport map to the leave-one-out residual covariance

Penalties are chosen by leave-one-out within the rows, and everything that follows a regression sees its leave-one-out
predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import (
    CLIP,
    Candidate,
    Shared,
    Transported,
    base_of,
    scale_of_simulations,
    why_not_transported,
)
from fmcpe.nn.ridge import Ridge, fit_ridge
from fmcpe.problem import Problem
from fmcpe.spaces import ParameterSpace, Standardiser


class RidgeMap(nn.Module):
    """y -> x̃, in standardised coordinates of the simulations.

    Args:
        features: Numbers that describe y.
        dim: Numbers of x.
    """

    along: Tensor
    root: Tensor
    noise_root: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.ridge = Ridge(features, dim)
        self.register_buffer("along", torch.zeros(()))
        self.register_buffer("root", torch.zeros(dim, dim))
        self.register_buffer("noise_root", torch.zeros(dim, dim))

    def draw(self, features: Tensor, y: Tensor, copies: int) -> Tensor:
        """`copies` consecutive x̃ for each row of `features`, and of `y` in the coordinates of x: (B * copies, d)."""
        return self._around(self.along * y + self.ridge(features), self.ridge.leverage(features), copies)

    def _around(self, centre: Tensor, leverage: Tensor, copies: int) -> Tensor:
        spread = (1 + leverage).sqrt().repeat_interleave(copies)[:, None]
        centre = centre.repeat_interleave(copies, dim=0)
        noise = torch.randn_like(centre) @ self.root.T * spread + torch.randn_like(centre) @ self.noise_root.T
        return centre + noise


class RidgeMapFit(NamedTuple):
    """A fitted move, and draws of x̃ for the very pairs it was fitted on, each left out in its turn."""

    move: RidgeMap
    left_out: Tensor


def fit_ridge_map(features: Tensor, y: Tensor, x: Tensor, copies: int) -> RidgeMapFit:
    """Regress simulations on real data, towards y itself or towards their mean, whichever predicts better.

    Args:
        features: Numbers that describe y, (N, f).
        y: Real data in the coordinates of x, (N, d).
        x: Simulations at the same θ, several each, (N, S, d).
        copies: How many x̃ to draw for each pair.
    """
    mean, number = x.mean(1), x.shape[0]
    fits = {along: fit_ridge(features, mean - along * y) for along in (0.0, 1.0)}
    along = min(fits, key=lambda a: fits[a].error)
    fit = fits[along]
    move = RidgeMap(features.shape[1], y.shape[1]).to(y.device)
    move.ridge = fit.ridge
    move.along.fill_(along)
    residual = fit.residual / (1 + fit.leverage).sqrt()[:, None]
    spread = residual.T @ residual / number
    if x.shape[1] > 1:
        noise = (x - mean[:, None]).flatten(0, 1)
        noise = noise.T @ noise / (number * (x.shape[1] - 1))
        move.noise_root.copy_(_root(noise))
        spread = _without(spread, noise, x.shape[1])
    move.root.copy_(_root(spread))
    return RidgeMapFit(move, move._around(mean - fit.residual, fit.leverage, copies))


class AffineMap(nn.Module):
    """z = T z_0 + (1 - T) c(y) + g(y).

    Args:
        features: Numbers that describe y.
        dim: Number of parameters.
    """

    stretch: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.centre, self.error = Ridge(features, dim), Ridge(features, dim)
        self.register_buffer("stretch", torch.eye(dim))

    def _shift(self, features: Tensor) -> Tensor:
        centre = self.centre(features)
        return centre - centre @ self.stretch.T + self.error(features)

    def forward(self, z: Tensor, features: Tensor) -> Tensor:
        return z @ self.stretch.T + self._shift(features)

    def inverse(self, z: Tensor, features: Tensor) -> Tensor:
        """The z_0 that `forward` takes to z."""
        return torch.linalg.solve(self.stretch, (z - self._shift(features)).T).T

    def log_det(self) -> Tensor:
        """Log of the factor by which `forward` stretches volumes."""
        return torch.linalg.slogdet(self.stretch).logabsdet


def fit_affine_map(features: Tensor, z0: Tensor, z0_left_out: Tensor, z1: Tensor) -> AffineMap:
    """Fit the step from draws of the source to the true parameters, all in z.

    Args:
        features: Numbers that describe y, (N, f).
        z0: Draws of the source as it will be used, (N, S, p).
        z0_left_out: Draws of the source for each pair when that is left out, (N, S, p).
        z1: True parameters, (N, p).
    """
    mean = z0_left_out.mean(1)
    within = (z0_left_out - mean[:, None]).flatten(0, 1)
    error = fit_ridge(features, z1 - mean)
    step = AffineMap(features.shape[1], z1.shape[1]).to(z1.device)
    step.centre, step.error = fit_ridge(features, z0.mean(1)).ridge, error.ridge
    source = within.T @ within / (len(within) - len(mean))
    step.stretch.copy_(transport_map(source, _without(_shrunk(error.residual), source, z0_left_out.shape[1])))
    return step


def transport_map(source: Tensor, target: Tensor) -> Tensor:
    """The symmetric T with T S T = R: optimal transport between centred Gaussians of covariances S and R."""
    root = _symmetric_power(source.double(), 0.5)
    inverse = _symmetric_power(source.double(), -0.5)
    return (inverse @ _symmetric_power(root @ target.double() @ root, 0.5) @ inverse).to(source)


def _without(covariance: Tensor, noise: Tensor, draws: int) -> Tensor:
    """A covariance of errors of means over so many draws, less what is due to there being so few, at most half of it."""
    inverse = _symmetric_power(covariance.double(), -0.5)
    largest = float(torch.linalg.eigvalsh(inverse @ noise.double() @ inverse).max())
    return covariance - noise * min(1 / draws, 0.5 / max(largest, 1e-12))


def _shrunk(residual: Tensor) -> Tensor:
    """Covariance of residuals about zero, drawn towards its diagonal where there are few."""
    number, dim = residual.shape
    covariance = residual.T @ residual / number
    weight = (dim + 2) / (number + dim + 2)
    return (1 - weight) * covariance + weight * covariance.diagonal().diag()


def _root(covariance: Tensor) -> Tensor:
    return _symmetric_power(covariance.double(), 0.5).to(covariance)


def _symmetric_power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    floor = 1e-8 * values.max().clamp_min(1e-12)
    return vectors @ torch.diag(values.clamp_min(floor) ** power) @ vectors.T


class RidgeTransported(Transported):
    """One fitted member.

    Args:
        base: The base posterior, as a function of its summary.
        space: Physical θ <-> z.
        x_scale: Standardises summaries of simulations.
        y_scale: Standardises summaries of y.
        move: y -> x̃.
        step: z_0 -> z.
    """

    is_random = True

    def __init__(
        self,
        base: BasePosterior,
        space: ParameterSpace,
        x_scale: Standardiser,
        y_scale: Standardiser,
        move: RidgeMap,
        step: AffineMap,
    ) -> None:
        super().__init__(base, space)
        self.x_scale, self.y_scale, self.move, self.step = x_scale, y_scale, move, step

    def features(self, seen: Tensor) -> Tensor:
        """Standardised, clipped summaries, (B, f)."""
        return self.y_scale(seen.flatten(1)).clamp(-CLIP, CLIP)

    def source(self, y: Tensor, n: int) -> Tensor:
        seen = self.base.summarise(y)
        x = self.move.draw(self.features(seen), self.x_scale(seen).flatten(1), n)
        return self.x_scale.inverse(x.unflatten(1, seen.shape[1:])).unflatten(0, (len(y), n))

    def push(self, z: Tensor, y: Tensor) -> Tensor:
        features = self.features(self.base.summarise(y)).repeat_interleave(z.shape[1], dim=0)
        return self.step(z.flatten(0, 1), features).unflatten(0, z.shape[:2])

    def pull(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(self.base.summarise(y)).repeat_interleave(z.shape[1], dim=0)
        return self.step.inverse(z.flatten(0, 1), features).unflatten(0, z.shape[:2]), self.step.log_det().expand(
            z.shape[:2]
        )

    def to_config(self) -> dict[str, Any]:
        shapes = {"features": self.y_scale.mean.numel(), "shape": list(self.x_scale.mean.shape)}
        return super().to_config() | shapes

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> RidgeTransported:
        features, shape = config["features"], torch.Size(config["shape"])
        scales = Standardiser(torch.zeros(2, *shape)), Standardiser(torch.zeros(2, features))
        maps = RidgeMap(features, shape.numel()), AffineMap(features, shared.space.dim)
        return cls(base_of(config, shared), shared.space, *scales, *maps)


@dataclass(frozen=True)
class RidgeTransport(Candidate):
    """Ridge regression from real to simulated data, the base posterior, affine recalibration.

    Args:
        draws: Draws of θ_0 in all, that the affine step is fitted on.
    """

    draws: int = 3000

    name = "ridge_transport"

    def skipped(self, problem: Problem) -> str | None:
        return why_not_transported(problem)

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[RidgeTransported]:
        return [self._fit(problem, rows) for rows in subsets]

    def _fit(self, problem: Problem, rows: Tensor) -> RidgeTransported:
        """Draws of z_0 for the rows, each left out in its turn, are what the affine step is fitted on."""
        assert problem.x is not None
        base, space, seen = problem.summarised, problem.space, problem.seen[rows]
        y_scale, x_scale = Standardiser(seen.flatten(1)), scale_of_simulations(problem, rows)
        features = y_scale(seen.flatten(1)).clamp(-CLIP, CLIP)
        copies = max(8, min(64, self.draws // len(rows)))
        move, x_left_out = fit_ridge_map(
            features, x_scale(seen).flatten(1), x_scale(problem.x[rows]).flatten(2), copies
        )
        member = RidgeTransported(
            base, space, x_scale, y_scale, move, AffineMap(features.shape[1], space.dim).to(features.device)
        )
        x = x_scale.inverse(x_left_out.unflatten(1, seen.shape[1:]))
        left_out = space.to_z_safely(base.sample(x, 1)[:, 0]).unflatten(0, (len(rows), copies))
        few = member.sample_source(problem.y[rows], max(4, copies // 4))
        member.step = fit_affine_map(features, few, left_out, problem.z[rows])
        return member
