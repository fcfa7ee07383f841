r"""NPE: the base posterior evaluated at real data as if they were simulated, \( \hat p(\theta | X = y) \), without a fit."""

from __future__ import annotations

from typing import Any

from torch.distributions import Distribution

from fmcpe._checks import as_tensor
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.baselines.common import asked_at_y
from fmcpe.posterior import CorrectedPosterior


class NPE:
    """The uncorrected posterior, with the sampling interface of a corrected one.

    Args:
        posterior: An sbi posterior, or anything that `as_base_posterior` accepts.
        prior: The prior of the simulations, if `posterior` does not hold it.
    """

    def __init__(self, posterior: Any, prior: Distribution | None = None) -> None:
        self.base = as_base_posterior(posterior, prior)

    def fit(
        self, theta: Any = None, y: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """The posterior, unchanged; the pairs are not used, except for the shape of `y` if the posterior does not hold it."""
        shape = self.base.x_shape
        if shape is None:
            if y is None:
                raise ValueError(
                    "Expected y, as this posterior does not hold the shape of its data, got y=None. Call fit(y=y)."
                )
            shape = as_tensor(y, "y").shape[1:]
        return asked_at_y(self.base, shape, "NPE", {"seconds": [0.0]}, num_pairs=0)
