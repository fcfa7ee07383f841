"""A linear Gaussian task, so that both posteriors are exact.

    θ   ~ N(μ, Σ)
    x|θ ~ N(Aθ + b, Σ_x)
    y|θ ~ N(C(Aθ + b) + d, C Σ_x Cᵀ + Σ_y)      the simulator's output, mixed, shifted and with more noise

For data N(Bθ + c, R): cov[θ|y] = (Σ⁻¹ + BᵀR⁻¹B)⁻¹ and E[θ|y] = μ + cov BᵀR⁻¹ (y − Bμ − c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fmcpe._checks import as_sample_shape
from fmcpe._random import derive, seeded
from fmcpe.tasks.base import Side, Task

_KEYS = ("prior_loc", "prior_cov", "A", "b", "lik_cov", "C", "d", "noise_cov")


class GaussianReference:
    """A Gaussian posterior. Linear algebra is in float64, since the condition number of y's covariance exceeds 1e4.

    Attributes:
        mean: ``(p,)``, float64.
        cov: ``(p, p)``, float64.
    """

    def __init__(self, mean: Tensor, cov: Tensor):
        self.mean, self.cov = mean, cov
        self._normal = MultivariateNormal(mean, cov)

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        with seeded(seed):
            return self._normal.sample(as_sample_shape(sample_shape)).float()

    def log_prob(self, theta: Tensor) -> Tensor:
        return self._normal.log_prob(torch.as_tensor(theta).double()).float()


def condition(loc: Tensor, cov: Tensor, B: Tensor, c: Tensor, R: Tensor, y: Tensor) -> GaussianReference:
    """The posterior of θ ~ N(loc, cov) given one y ~ N(Bθ + c, R). All tensors float64."""
    weighted = torch.linalg.solve(R, B)
    posterior_cov = torch.linalg.inv(torch.linalg.inv(cov) + B.T @ weighted)
    posterior_cov = (posterior_cov + posterior_cov.T) / 2
    mean = loc + posterior_cov @ (weighted.T @ (y - B @ loc - c))
    return GaussianReference(mean, posterior_cov)


class Gaussian(Task):
    """The Gaussian task: 3 parameters and 10 data dimensions.

    Args:
        seed: Seed of the random matrices.
        matrices: Given matrices instead, with keys ``prior_loc, prior_cov, A, b, lik_cov, C, d, noise_cov``.
    """

    name = "gaussian"

    def __init__(self, seed: int = 0, *, matrices: Mapping[str, Any] | None = None):
        chosen = _draw_matrices(seed) if matrices is None else matrices
        missing = [key for key in _KEYS if key not in chosen]
        if missing:
            raise ValueError(
                f"Expected matrices {', '.join(_KEYS)}, got none for {', '.join(missing)}. Add the missing arrays."
            )
        loc, cov, A, b, lik_cov, C, d, noise_cov = (
            torch.as_tensor(np.asarray(chosen[key]), dtype=torch.float64) for key in _KEYS
        )
        # archives in float32 are not exactly symmetric, which shifts posterior means by 1e-5
        cov, lik_cov, noise_cov = ((R + R.T) / 2 for R in (cov, lik_cov, noise_cov))
        self._loc, self._cov = loc, cov
        self._models: dict[Side, tuple[Tensor, Tensor, Tensor]] = {
            "simulator": (A, b, lik_cov),
            "real": (C @ A, C @ b + d, C @ lik_cov @ C.T + noise_cov),
        }
        self._factors = {side: torch.linalg.cholesky(R) for side, (_, _, R) in self._models.items()}
        self.theta_names = tuple(f"θ{i}" for i in range(1, len(loc) + 1))
        self.x_shape = (len(b),)
        self.prior = MultivariateNormal(loc.float(), cov.float())

    @classmethod
    def from_npz(cls, path: str | PathLike[str]) -> Gaussian:
        """The task with the matrices of a NumPy archive; other arrays in it are ignored."""
        with np.load(path, allow_pickle=False) as archive:
            return cls(matrices={key: archive[key] for key in _KEYS if key in archive.files})

    def _simulate(self, theta: Tensor) -> Tensor:
        return self._draw(theta, "simulator")

    def _observe(self, theta: Tensor) -> Tensor:
        return self._draw(theta, "real")

    def _draw(self, theta: Tensor, side: Side) -> Tensor:
        B, c, _ = self._models[side]
        noise = torch.randn(len(theta), len(c), dtype=torch.float64) @ self._factors[side].T
        return (theta.double() @ B.T + c + noise).float()

    def _reference(self, y: Tensor, side: Side) -> GaussianReference:
        return condition(self._loc, self._cov, *self._models[side], y.double())


def _draw_matrices(seed: int, p: int = 3, dim: int = 10) -> dict[str, Tensor]:
    with seeded(derive(seed, "gaussian", "matrices")):

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64)

        def uniform(low: float, high: float, size: int) -> Tensor:
            return low + (high - low) * torch.rand(size, dtype=torch.float64)

        L, L_x, L_y = normal(p, p), normal(dim, dim), 0.1 * normal(dim, dim)
        return {
            "prior_loc": uniform(-5, 5, p),
            "prior_cov": L @ L.T + torch.eye(p, dtype=torch.float64),
            "A": normal(dim, p),
            "b": normal(dim),
            "lik_cov": L_x @ L_x.T,
            "C": 1 + normal(dim, dim),
            "d": uniform(5, 10, dim),
            "noise_cov": L_y @ L_y.T,
        }
