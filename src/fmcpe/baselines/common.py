"""What the baselines share: how an answer is wrapped, and where simulations come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sbi.utils import process_prior
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._checks import parameter_dim
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.base_posteriors.npe import FlowSize, Rows, simulate
from fmcpe.candidates.base import Posterior, Shared, Transported
from fmcpe.nn.embeddings import made_aware
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior
from fmcpe.report import Report
from fmcpe.spaces import ParameterSpace


def asked_at_y(
    base: BasePosterior, shape: torch.Size, method: str, history: dict[str, list[float]], num_pairs: int
) -> CorrectedPosterior:
    r"""\( \hat p(\theta | X = y) \): a posterior asked about y as if it were simulated.

    Args:
        base: The posterior.
        shape: Shape of one observation.
        method: The name of the method.
        history: Losses, and the seconds of the fit.
        num_pairs: How many calibration pairs went into it.
    """
    shared = shared_of(base)
    return wrapped(Transported(base.summarised(), shared.space), shared, shape, method, history, num_pairs)


def shared_of(base: BasePosterior) -> Shared:
    """What all parts of a posterior on this base share."""
    return Shared(base, ParameterSpace.of(base.prior), base.prior, torch.zeros(0, parameter_dim(base.prior)))


def wrapped(
    inner: Posterior, shared: Shared, shape: torch.Size, method: str, history: dict[str, list[float]], num_pairs: int
) -> CorrectedPosterior:
    """A posterior in z as users see it; `history` holds the seconds of the fit, too."""
    report = Report(method, num_pairs, history.pop("seconds", [0.0])[0], history)
    return CorrectedPosterior(inner, shared, shape, report)


class SimulationTrained:
    """A method that trains a posterior of its own on simulations: what `NNPE` and `JNPE` have in common."""

    def __init__(
        self,
        simulator: Callable[[Tensor], Any] | None,
        prior: Distribution | None,
        num_simulations: int,
        embedding_net: nn.Module | None,
        simulations: tuple[Any, Any] | None,
        flow: FlowSize | None,
        training: Training | None,
        device: str,
    ) -> None:
        if prior is None:
            raise ValueError(
                f"prior is missing; the prior of the simulations was expected. Type {type(self).__name__}(simulator, prior)."
            )
        self.simulator, self.prior, self.num_simulations = simulator, prior, num_simulations
        self.embedding_net, self.simulations = embedding_net, simulations
        # as `fmcpe.train_npe` does: what differs from the base posterior is then the method alone
        self.domain_randomisation = True
        self.flow, self.training, self.device = flow or FlowSize(), training or Training(), device

    @property
    def _network(self) -> nn.Module | None:
        """The embedding network, told how rough its input is where simulations are roughened."""
        return made_aware(self.embedding_net) if self.domain_randomisation else self.embedding_net

    def _simulate(self) -> tuple[Distribution, Tensor, Rows]:
        """The prior as sbi wants it, θ and x; draws as `fmcpe.train_npe` does, in the same order."""
        prior = process_prior(self.prior)[0]
        return prior, *simulate(self.simulator, prior, self.num_simulations, self.simulations)
