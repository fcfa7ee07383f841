r"""Reference posteriors of zoo problems with a tractable likelihood, by tempered sequential Monte Carlo.

Particles start as draws of the prior and follow \( p(\theta) L(\theta)^{\beta} \) for β from 0 to 1. Each β is chosen such that
the effective sample size of the weights is half of the particles, which are then resampled and moved by Metropolis-Hastings in
unconstrained θ. A nuisance of random strength is an additional coordinate, uniform on [0, 1].
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmcpe._checks import as_sample_shape
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.spaces import ParameterSpace
from fmcpe.tasks.base import Side
from fmcpe.tasks.importance import draw_rows, effective_size
from fmcpe.tasks.zoo.kinds import Nuisance

if TYPE_CHECKING:
    from fmcpe.tasks.zoo.problem import Problem

PARTICLES = 2000
_HALF, _MOVES, _LAST_MOVES, _MAX_STEPS = 0.5, 8, 40, 60


def is_known(problem: Problem, side: Side) -> bool:
    """Whether the likelihood is tractable: additive noise with a density, and a deterministic response."""
    return (
        problem.family.noise > 0 and not problem.family.is_random and (side == "simulator" or problem.kind.has_density)
    )


class TemperedReference:
    """The reference posterior of one observation, as particles.

    Args:
        problem: The problem.
        y: One observation.
        side: ``"real"``, or ``"simulator"`` for the posterior of a perfect base posterior.

    Attributes:
        acceptance: Acceptance rate of the last moves.
    """

    def __init__(self, problem: Problem, y: Tensor, side: Side) -> None:
        self.problem, self.side = problem, side
        self.strength = problem.strength if side == "real" else 0.0
        self.prior = problem.prior if side == "real" else problem.simulation_prior
        self.latent = side == "real" and isinstance(problem.kind, Nuisance)
        self.y, self.acceptance = y[None], 0.0

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw θ, shape ``(*sample_shape, p)``."""
        shape = as_sample_shape(sample_shape)
        number = shape.numel()
        with seeded(seed):
            draws = [self._run() for _ in range(max(1, -(-number // PARTICLES)))]
            theta = torch.cat(draws)[torch.randperm(len(draws) * PARTICLES)[:number]]
        if self.acceptance < 0.02:
            warnings.warn(
                f"Expected Metropolis-Hastings moves to be accepted, got {self.acceptance:.1%} for this observation. Treat its "
                "reference posterior as approximate.",
                FMCPEWarning,
                stacklevel=2,
            )
        return theta.reshape(*shape, theta.shape[1])

    def log_prob(self, theta: Tensor) -> Tensor:
        """Not available: the normaliser is not computed."""
        raise NotImplementedError(
            f"Expected a posterior with a density, got {type(self).__name__}, which provides draws only. Use sample((n,)) and "
            "compare draws."
        )

    def _run(self) -> Tensor:
        theta = self.prior.sample(torch.Size((PARTICLES,))).float()
        space = ParameterSpace(self.prior, theta)
        z, latent = space.to_z_safely(theta), torch.rand(PARTICLES, 1)
        log_l, beta = self._log_likelihood(theta, latent), 0.0
        for _ in range(_MAX_STEPS):
            step = self._next(log_l, beta)
            rows = draw_rows(((step - beta) * (log_l - log_l.max())).exp().double(), PARTICLES)
            z, latent, log_l, beta = z[rows], latent[rows], log_l[rows], step
            z, latent, log_l = self._move(space, z, latent, log_l, beta, _MOVES if beta < 1 else _LAST_MOVES)
            if beta == 1:
                break
        return space.to_theta(z)

    def _next(self, log_l: Tensor, beta: float) -> float:
        """The next β, at which the effective sample size is half of the particles."""
        low, high = beta, 1.0
        if self._size(log_l, 1.0 - beta) >= _HALF * PARTICLES:
            return 1.0
        for _ in range(30):
            middle = (low + high) / 2
            enough = self._size(log_l, middle - beta) >= _HALF * PARTICLES
            low, high = (middle, high) if enough else (low, middle)
        return max(low, beta + 1e-9)

    def _size(self, log_l: Tensor, step: float) -> float:
        return effective_size((step * (log_l - log_l.max())).exp().double())

    def _move(
        self, space: ParameterSpace, z: Tensor, latent: Tensor, log_l: Tensor, beta: float, moves: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Metropolis-Hastings in z with differential-evolution steps, which handle several modes."""
        log_prior, accepted = self._log_prior(space, z), 0.0
        for move in range(moves):
            one, other = torch.randperm(PARTICLES), torch.randperm(PARTICLES)
            width = 2.38 / (2 * z.shape[1]) ** 0.5 * (1.0 if move % 5 == 4 else 0.5)
            proposed = z + width * (z[one] - z[other]) + 1e-3 * torch.randn_like(z)
            moved = latent + 0.3 * torch.randn_like(latent) * latent.std().clamp_min(0.01) if self.latent else latent
            inside = ((moved >= 0) & (moved <= 1)).all(1)
            theta = space.to_theta(proposed)
            new_l, new_prior = self._log_likelihood(theta, moved.clamp(0, 1)), self._log_prior(space, proposed)
            ratio = beta * (new_l - log_l) + new_prior - log_prior
            accept = inside & torch.isfinite(ratio) & (torch.rand(PARTICLES).log() < ratio)
            z = torch.where(accept[:, None], proposed, z)
            latent = torch.where(accept[:, None], moved, latent)
            log_l, log_prior = torch.where(accept, new_l, log_l), torch.where(accept, new_prior, log_prior)
            accepted += float(accept.double().mean()) / moves
        self.acceptance = accepted
        return z, latent, log_l

    def _log_prior(self, space: ParameterSpace, z: Tensor) -> Tensor:
        theta = space.to_theta(z)
        return self.prior.log_prob(theta) - space.log_abs_det(theta, z)

    def _log_likelihood(self, theta: Tensor, latent: Tensor) -> Tensor:
        kind, strength = self.problem.kind, self.strength
        extra = strength * latent if self.latent else kind.extra(len(theta), strength if self.side == "real" else 0.0)
        seen = kind.signal(self.problem.family.response(theta, extra), strength)
        return kind.log_noise(self.y - seen, seen, strength)
