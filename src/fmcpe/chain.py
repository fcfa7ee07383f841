r"""What a posterior of the library draws from: a chain from an observation to \( \tilde x \), and on to θ.

`CorrectedPosterior` knows chains only through this interface. The flows of the method are one (`fmcpe.corrector`), a
mixture over a pool of simulations is another (`fmcpe.transport`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fmcpe.proposal import Proposal
from fmcpe.spaces import ParameterSpace


class Chain(nn.Module, ABC):
    r"""\( y \to \tilde x \to \theta \), around a frozen base posterior.

    Attributes:
        proposal: The base posterior \( \hat p(\theta | x) \).
        space: Physical θ <-> z.
    """

    proposal: Proposal
    space: ParameterSpace

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of one x̃."""

    @property
    def observation_shape(self) -> torch.Size:
        """Shape of one real observation."""
        return self.proposal.raw_shape or self.shape

    def prepare(self, y: Tensor) -> Tensor:
        """A whole batch of observations as the methods below take it, row by row; they may be given any of its rows."""
        return self.proposal.summarise(y)

    @abstractmethod
    def draw_z0(self, y: Tensor, copies: int = 1) -> Tensor:
        """θ_0 ~ p̂(θ | x̃), in z: `copies` consecutive rows for each row of `prepare`'s answer."""

    @abstractmethod
    def draw_theta(self, y: Tensor, copies: int = 1) -> Tensor:
        """Physical θ: `copies` consecutive rows for each row of `prepare`'s answer."""

    @abstractmethod
    def source(self, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The components x̃ whose mixture is the density of θ_0, for one prepared observation, and a number for each.

        Args:
            y: One row of `prepare`'s answer, (1, ...).
            number: How many draws of x̃ are wanted, where they are drawn.
        """

    @abstractmethod
    def log_prob(self, theta: Tensor, y: Tensor, x: Tensor, log_acceptance: Tensor) -> Tensor:
        """Log density of physical θ (N, p), inside the support, given one prepared observation and its `source`: (N,)."""
