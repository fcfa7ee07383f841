"""Priors that torch does not have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, Uniform, constraints
from torch.distributions.transforms import ExpTransform
from torch.distributions.utils import broadcast_all


class LogUniform(TransformedDistribution):
    """A positive number whose logarithm is uniform: every factor of ten is as likely as the next.

    Args:
        low: Smallest value, positive.
        high: Largest value.
    """

    arg_constraints = {"low": constraints.positive, "high": constraints.positive}  # noqa: RUF012 - as in torch

    def __init__(self, low: Tensor, high: Tensor, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(Uniform(self.low.log(), self.high.log(), validate_args=False), ExpTransform(), validate_args)

    def expand(self, batch_shape: Any, _instance: Distribution | None = None) -> LogUniform:
        """The same distribution, repeated."""
        return LogUniform(self.low.expand(batch_shape), self.high.expand(batch_shape))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """From `low` to `high`."""
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 - as in torch
        """Draws, kept inside the support in spite of rounding."""
        return torch.minimum(torch.maximum(super().rsample(sample_shape), self.low), self.high)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 - as in torch
        """Draws, without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    @property
    def mean(self) -> Tensor:
        """(high - low) / log(high / low)."""
        return (self.high - self.low) / (self.high / self.low).log()

    @property
    def variance(self) -> Tensor:
        """(high² - low²) / (2 log(high / low)) - mean²."""
        return (self.high.square() - self.low.square()) / (2 * (self.high / self.low).log()) - self.mean.square()
