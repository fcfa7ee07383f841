"""A Gaussian task in which y depends on θ directly, not only through x, with adjustable strength α.

    θ ~ U[−3, 3]⁵,   x = Aθ + 0.5 ε  (20 numbers),   y = Cx + αDθ + 0.3 ε'

At α = 0 a correction needs only a map from y to x; at α > 0, θ acts on y directly. Entries of A, C and D are N(0, 1), drawn
once (the paper does not state its distribution). y is built from x, so paired simulations exist:
`calibration_set(n, seed, paired=True)`. Both posteriors are Gaussians truncated to the box.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.tasks.base import Side, Task
from fmcpe.tasks.options import finite
from fmcpe.tasks.truncated_gaussian import TruncatedGaussian

_X_NOISE, _Y_NOISE = 0.5, 0.3
_P, _DIM, _BOUND = 5, 20, 3.0


class GaussianCI(Task):
    """The conditional-independence task.

    Args:
        alpha: Strength α of the direct effect of θ on y; the paper has 0, 0.5, 1, 2 and 5.
        seed: Seed of the random matrices.
    """

    name = "gaussian-ci"

    def __init__(self, alpha: float = 1.0, *, seed: int = 0):
        from sbi.utils import BoxUniform

        finite(alpha=alpha)
        self.alpha = alpha
        self.theta_names = tuple(f"θ{i}" for i in range(1, _P + 1))
        self.x_shape = (_DIM,)
        self.prior = BoxUniform(torch.full((_P,), -_BOUND), torch.full((_P,), _BOUND))
        with seeded(derive(seed, "gaussian-ci", "matrices")):
            A, C, D = (torch.randn(_DIM, columns, dtype=torch.float64) for columns in (_P, _DIM, _P))
        self._A, self._C, self._D = A, C, D
        eye = torch.eye(_DIM, dtype=torch.float64)
        self._models: dict[Side, tuple[Tensor, Tensor]] = {
            "simulator": (A, _X_NOISE**2 * eye),
            "real": (C @ A + alpha * D, _X_NOISE**2 * C @ C.T + _Y_NOISE**2 * eye),
        }

    def _simulate(self, theta: Tensor) -> Tensor:
        return self._x(theta).float()

    def _observe(self, theta: Tensor) -> Tensor:
        return self._observe_with_x(theta)[0]

    def _observe_with_x(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        x = self._x(theta)
        y = x @ self._C.T + self.alpha * theta.double() @ self._D.T
        return (y + _Y_NOISE * torch.randn(x.shape, dtype=torch.float64)).float(), x.float()

    def _x(self, theta: Tensor) -> Tensor:
        return theta.double() @ self._A.T + _X_NOISE * torch.randn(len(theta), _DIM, dtype=torch.float64)

    def _reference(self, y: Tensor, side: Side) -> TruncatedGaussian:
        B, R = self._models[side]
        weighted = torch.linalg.solve(R, B)
        cov = torch.linalg.inv(B.T @ weighted)
        cov = (cov + cov.T) / 2
        bound = torch.full((_P,), _BOUND)
        return TruncatedGaussian(cov @ (weighted.T @ y.double()), cov, -bound, bound)
