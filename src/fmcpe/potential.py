"""The density of a corrected posterior as sbi's optimisers and samplers want it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sbi.inference.potentials.base_potential import BasePotential
from torch import Tensor

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


class CorrectedPotential(BasePotential):
    """log p(θ | y) as sbi's optimisers and samplers want it, with the draws of x̃ kept between calls."""

    allow_iid_x = False

    def __init__(self, posterior: CorrectedPosterior, prior: Any) -> None:
        self._posterior, self._y, self._mixture = posterior, torch.empty(0), (torch.empty(0), torch.empty(0))
        super().__init__(prior, x_o=None, device=str(posterior.corrector.space.standardiser.mean.device))

    def set_x(self, x_o: Tensor | None, x_is_iid: bool | None = False) -> None:
        super().set_x(x_o, x_is_iid=x_is_iid)
        if x_o is not None:
            self._y = self._posterior._observation(x_o)
            self._mixture = self._posterior._source(self._y, 256, seed=0)

    def __call__(self, theta: Tensor, track_gradients: bool = True) -> Tensor:
        return self._posterior._log_prob(theta, self._y, self._mixture, track_gradients)
