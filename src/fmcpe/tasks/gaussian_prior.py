"""The Gaussian task with a misspecified prior: simulations come from N(μ + δ, αΣ), pairs from N(μ, Σ).

Simulator and real process are those of `gaussian`. A perfectly trained base posterior is the posterior under the wrong prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributions import Distribution, MultivariateNormal

from fmcpe.tasks.base import Side
from fmcpe.tasks.gaussian import Gaussian, GaussianReference, condition
from fmcpe.tasks.options import finite, positive


class GaussianPrior(Gaussian):
    """The Gaussian task with simulations from a shifted and wider prior.

    Args:
        seed: Seed of the random matrices, which equal those of ``"gaussian"``.
        delta: Shift δ of each prior mean.
        alpha: Factor α of the prior covariance.
        matrices: As for `Gaussian`.
    """

    name = "gaussian-prior"

    def __init__(
        self, seed: int = 0, *, delta: float = 2.0, alpha: float = 3.0, matrices: Mapping[str, Any] | None = None
    ):
        finite(delta=delta)
        positive(alpha=alpha)
        super().__init__(seed, matrices=matrices)
        self.delta, self.alpha = delta, alpha
        self._simulation_prior = MultivariateNormal((self._loc + delta).float(), (alpha * self._cov).float())

    @property
    def simulation_prior(self) -> Distribution:
        return self._simulation_prior

    def _reference(self, y: Any, side: Side) -> GaussianReference:
        if side == "real":
            return super()._reference(y, side)
        return condition(self._loc + self.delta, self.alpha * self._cov, *self._models[side], y.double())
