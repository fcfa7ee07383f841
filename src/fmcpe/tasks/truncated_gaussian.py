"""A Gaussian truncated to a box: the posterior of a linear Gaussian model under a uniform prior.

If the box contains enough of the Gaussian's mass, draws are exact, by rejection. Otherwise, e.g. for a misspecified model whose
posterior is far outside the box, a Gibbs sampler runs one chain per draw; the conditionals are truncated normals. The
normaliser is Genz's integral over the box.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor
from torch.distributions import MultivariateNormal

from fmcpe._checks import as_sample_shape
from fmcpe._random import derive, seeded
from fmcpe.tasks.truncated_normal import Array, log_normal_mass, truncated_normal

_PILOT = 2048
_MIN_ACCEPTED = 0.01
_SWEEPS = 200
_LOG2_POINTS = 12  # points of the normaliser's integral


class TruncatedGaussian:
    """N(mean, cov) restricted to a box.

    Args:
        mean: ``(p,)``, float64.
        cov: ``(p, p)``, float64.
        low: Lower corner of the box, ``(p,)``.
        high: Upper corner.

    Attributes:
        acceptance: Fraction of the Gaussian's draws inside the box, from a pilot run.
    """

    def __init__(self, mean: Tensor, cov: Tensor, low: Tensor, high: Tensor):
        self.mean, self.cov, self.low, self.high = mean, cov, low.double(), high.double()
        self._normal = MultivariateNormal(mean, cov)
        with seeded(derive(0, "truncated gaussian", "pilot")):
            self.acceptance = float(self._inside(self._normal.sample((_PILOT,))).double().mean())
        self._log_mass: float | None = None

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw θ, shape ``(*sample_shape, p)``."""
        shape = as_sample_shape(sample_shape)
        with seeded(seed):
            draw = self._reject if self.acceptance >= _MIN_ACCEPTED else self._gibbs
            draws = draw(shape.numel())
        # rounding to float32 may exceed a bound that float64 respects
        low, high = self.low.float(), self.high.float()
        return torch.minimum(torch.maximum(draws.float(), low), high).reshape(*shape, len(self.mean))

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density of each row; minus infinity outside the box."""
        theta = torch.as_tensor(theta).double()
        if self._log_mass is None:
            self._log_mass = self._integral()
        value = self._normal.log_prob(theta) - self._log_mass
        return torch.where(self._inside(theta), value, -torch.inf).float()

    def _inside(self, theta: Tensor) -> Tensor:
        return ((theta >= self.low) & (theta <= self.high)).all(-1)

    def _reject(self, n: int) -> Tensor:
        kept: list[Tensor] = [self.mean.new_empty(0, len(self.mean))]
        while sum(map(len, kept)) < n:
            draws = self._normal.sample((int(1.2 * n / self.acceptance) + 10,))
            kept.append(draws[self._inside(draws)])
        return torch.cat(kept)[:n]

    def _gibbs(self, n: int) -> Tensor:
        mean, low, high = self.mean.numpy(), self.low.numpy(), self.high.numpy()
        precision = torch.linalg.inv(self.cov).numpy()
        theta = np.tile(np.clip(mean, low, high), (n, 1))
        for _ in range(_SWEEPS):
            for i in range(len(mean)):
                others = (theta - mean) @ precision[i] - (theta[:, i] - mean[i]) * precision[i, i]
                centre, std = mean[i] - others / precision[i, i], precision[i, i] ** -0.5
                u = torch.rand(n, dtype=torch.float64).numpy()
                theta[:, i] = truncated_normal(u, centre, std, low[i], high[i])
        return torch.from_numpy(theta)

    def _integral(self) -> float:
        """Log of the Gaussian's mass in the box, by sequential conditioning (Genz)."""
        factor = torch.linalg.cholesky(self.cov).numpy()
        mean, low, high = self.mean.numpy(), self.low.numpy(), self.high.numpy()
        points: Array = qmc.Sobol(len(mean), seed=0).random_base2(_LOG2_POINTS)
        z, log_mass = np.zeros_like(points), np.zeros(len(points))
        for i in range(len(mean)):
            centre = mean[i] + z[:, :i] @ factor[i, :i]
            lower, upper = (low[i] - centre) / factor[i, i], (high[i] - centre) / factor[i, i]
            log_mass += log_normal_mass(lower, upper)
            z[:, i] = truncated_normal(points[:, i], 0.0, 1.0, lower, upper)
        return float(np.logaddexp.reduce(log_mass) - np.log(len(points)))
