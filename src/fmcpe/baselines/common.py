"""What the baselines share: how an answer is wrapped, and where simulations come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sbi.utils import process_prior
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import seeded
from fmcpe.corrector import Corrector
from fmcpe.npe import FlowSize, Rows, simulate
from fmcpe.ode import Solver
from fmcpe.posterior import CorrectedPosterior
from fmcpe.proposal import Proposal
from fmcpe.recipe import Recipe
from fmcpe.roughen import made_aware
from fmcpe.spaces import ParameterSpace, Standardiser
from fmcpe.training import Training


def asked_at_y(
    proposal: Proposal, shape: torch.Size, method: str, history: dict[str, list[float]], num_pairs: int
) -> CorrectedPosterior:
    r"""\( \hat p(\theta | X = y) \): a posterior asked about y as if it were simulated, without any flow.

    Args:
        proposal: The posterior.
        shape: Shape of one observation.
        method: The name of the method.
        history: Losses, and the seconds of the fit.
        num_pairs: How many calibration pairs went into it.
    """
    identity = Standardiser(torch.zeros(2, *shape))
    corrector = Corrector(proposal, parameter_space(proposal.prior), identity, identity, None, None, 1.0, Solver())
    return CorrectedPosterior(corrector.eval(), Recipe(), "none", history, num_pairs, method)


def parameter_space(prior: Distribution) -> ParameterSpace:
    """Physical θ <-> z with the statistics of draws of the prior, always the same draws."""
    with seeded(0):
        return ParameterSpace(prior, prior.sample((Recipe.num_statistics,)).to(torch.float32))


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
        self.roughen = True
        self.flow, self.training, self.device = flow or FlowSize(), training or Training(), device

    @property
    def _network(self) -> nn.Module | None:
        """The embedding network, told how rough its input is where simulations are roughened."""
        return made_aware(self.embedding_net) if self.roughen else self.embedding_net

    def _simulate(self) -> tuple[Distribution, Tensor, Rows]:
        """The prior as sbi wants it, θ and x; draws as `fmcpe.train_npe` does, in the same order."""
        prior = process_prior(self.prior)[0]
        return prior, *simulate(self.simulator, prior, self.num_simulations, self.simulations)
