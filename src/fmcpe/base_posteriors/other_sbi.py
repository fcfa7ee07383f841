"""Adapters of other sbi posteriors (filtered, NPE-A, variational), without sbi's rejection loop."""

from __future__ import annotations

from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior, VectorFieldPosterior, VIPosterior
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from sbi.inference.posteriors.filtered_direct_posterior import FilteredDirectPosterior
from sbi.inference.posteriors.npe_a_posterior import NPE_A_Posterior
from sbi.inference.potentials.posterior_based_potential import PosteriorBasedPotential
from sbi.inference.potentials.vector_field_potential import VectorFieldBasedPotential
from torch import Tensor
from torch.distributions import Distribution

from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.base_posteriors.potential import of_potential


class FilteredBase(BasePosterior):
    """A `FilteredDirectPosterior` (TabPFN): the context of simulations is chosen separately for each x."""

    amortised = False
    components = 4
    leakage_draws = 50
    redraws, tries = 2, 10

    def __init__(self, posterior: FilteredDirectPosterior, prior: Distribution | None = None) -> None:
        self.posterior, self.estimator = posterior, posterior.posterior_estimator.eval()
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _draw(self, x: Tensor, n: int) -> Tensor:
        parts = []
        for one in x.split(1):
            self.posterior._set_context_for_x_o(one)
            parts.append(self.estimator.sample(torch.Size((n,)), condition=one)[:, 0])
        return torch.stack(parts).to(x)

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        parts = []
        for each, one in zip(theta, x.split(1), strict=True):
            self.posterior._set_context_for_x_o(one)
            parts.append(self.estimator.log_prob(each[:, None], condition=one)[:, 0])
        return torch.stack(parts).to(theta)


class CorrectedMixture(BasePosterior):
    """An `NPE_A_Posterior`: a mixture of Gaussians, divided by the proposal of the last round."""

    def __init__(self, posterior: NPE_A_Posterior, prior: Distribution | None = None) -> None:
        self.posterior, self.estimator = posterior, posterior.posterior_estimator.eval()
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _draw(self, x: Tensor, n: int) -> Tensor:
        theta = self.posterior._get_corrected_mog(x).sample(torch.Size((n,)))
        if self.estimator.has_input_transform:
            theta = self.estimator._inverse_transform_input(theta)
        return theta.movedim(0, 1).contiguous()

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.posterior._corrected_log_prob(theta.movedim(1, 0), x).movedim(0, 1)

    def to(self, device: str | torch.device) -> BasePosterior:
        self.posterior.to(device)
        return self


class AmortisedVariational(BasePosterior):
    """A `VIPosterior` after `train_amortized`: its conditional flow."""

    def __init__(self, posterior: VIPosterior, prior: Distribution | None = None) -> None:
        self.estimator: Any = posterior._amortized_q
        self.estimator.eval()
        super().__init__(prior or posterior._prior, torch.Size(self.estimator.condition_shape))

    def _draw(self, x: Tensor, n: int) -> Tensor:
        return self.estimator.sample(torch.Size((n,)), condition=x).movedim(0, 1).contiguous()

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.estimator.log_prob(theta.movedim(1, 0), condition=x).movedim(0, 1)


def other_base(posterior: NeuralPosterior, prior: Distribution | None) -> BasePosterior | DirectPosterior | Any | None:
    """A base posterior, or the amortised sbi posterior behind a sampler; None if neither can be had."""
    if isinstance(posterior, FilteredDirectPosterior):
        return FilteredBase(posterior, prior)
    if isinstance(posterior, NPE_A_Posterior):
        return CorrectedMixture(posterior, prior)
    if isinstance(posterior, VIPosterior) and posterior._amortized_q is not None:
        return AmortisedVariational(posterior, prior)
    potential = posterior.potential_fn
    own = prior or getattr(potential, "prior", None)
    if own is None:
        return None
    # a sampler on the density of NPE, or of FMPE, is there to avoid leakage only
    if isinstance(potential, PosteriorBasedPotential):
        return DirectPosterior(potential.posterior_estimator, own)
    if isinstance(potential, VectorFieldBasedPotential):
        return VectorFieldPosterior(potential.vector_field_estimator, own)
    return of_potential(potential, own)
