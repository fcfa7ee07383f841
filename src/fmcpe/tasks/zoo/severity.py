"""How strong a misspecification has to be for its severity: a quick stand-in for a base posterior decides.

Ridge regression of unconstrained θ on random features of simulations, with a second regression for the size of its
residuals, gives intervals as a trained network would; the strength is found at which 90 % intervals hold the real θ in the
share of cases that the severity says.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SEVERITIES = {"mild": 0.78, "moderate": 0.55, "severe": 0.25}
"""Share of the stand-in's 90 % intervals that hold the truth, mean over parameters, which the strength is chosen for."""

RANGES = {"none": (0.82, 0.97), "mild": (0.6, 0.92), "moderate": (0.3, 0.78), "severe": (0.0, 0.55)}
"""Share of a trained base posterior's 90 % intervals that hold the truth, mean over parameters."""

SIMULATIONS, TESTS = 3000, 500
_FEATURES, _PENALTY, _DOUBLINGS, _HALVINGS = 128, 10.0, 12, 6


class QuickPosterior:
    """Normal intervals for z by regression on random features.

    Args:
        z: Unconstrained parameters of simulations, (N, p).
        x: The simulations, (N, ...).
    """

    def __init__(self, z: Tensor, x: Tensor) -> None:
        x = _flat(x)
        self.mean, self.std = x.mean(0), x.std(0).clamp_min(1e-6)
        self.weights = torch.randn(x.shape[1], _FEATURES) / math.sqrt(x.shape[1])
        self.bias = torch.randn(_FEATURES)
        features, third = self._features(x), len(z) // 3
        first, second, last = slice(third), slice(third, 2 * third), slice(2 * third, None)
        self.regression = _ridge(features[first], z[first])
        # the size of residuals is learned from simulations that the regression has not seen, and scaled on yet others
        size = (z[second] - features[second] @ self.regression).abs().clamp_min(1e-4).log()
        self.size = _ridge(features[second], size)
        predicted = features[last] @ self.size
        # networks stay confident where they have seen nothing: no interval is wider than those of simulations
        self.narrowest, self.widest = predicted.quantile(0.02, dim=0), predicted.quantile(0.98, dim=0)
        self.factor = torch.ones(z.shape[1])
        self.factor = self._standardised(z[last], x[last]).abs().quantile(0.9, dim=0)

    def coverage(self, z: Tensor, x: Tensor) -> float:
        """Share of 90 % intervals that hold z, mean over parameters."""
        return float((self._standardised(z, _flat(x)).abs() <= 1).double().mean())

    def _standardised(self, z: Tensor, x: Tensor) -> Tensor:
        features = self._features(x)
        size = torch.minimum(torch.maximum(features @ self.size, self.narrowest), self.widest).exp()
        return (z - features @ self.regression) / (size * self.factor)

    def _features(self, x: Tensor) -> Tensor:
        standardised = (x - self.mean) / self.std
        hidden = torch.nn.functional.leaky_relu(standardised @ self.weights * 1.5 + self.bias, 0.1)
        return torch.cat([torch.ones(len(x), 1), standardised[:, :_FEATURES], hidden], dim=1)


def _flat(x: Tensor) -> Tensor:
    """Rows of numbers; of an image, means over 8 by 8 patches, in which noise averages out."""
    return torch.nn.functional.adaptive_avg_pool2d(x, 8).flatten(1) if x.ndim == 4 else x.flatten(1)


def _ridge(features: Tensor, targets: Tensor) -> Tensor:
    gram = features.T @ features + _PENALTY * torch.eye(features.shape[1])
    return torch.linalg.solve(gram, features.T @ targets)


def strength_for(target: float, largest: float, coverage: Callable[[float], float]) -> float | None:
    """The smallest strength at which coverage is down to the target; None if there is none up to the largest.

    Strengths are tried in steps of a factor of two, and the first that is enough is narrowed down by bisection.

    Args:
        target: Coverage.
        largest: Strength beyond which none is tried.
        coverage: Coverage by strength.
    """
    low = 0.0
    for step in range(_DOUBLINGS, -1, -1):
        high = largest / 2**step
        if coverage(high) <= target:
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if coverage(middle) > target else (low, middle)
            return high
        low = high
    return None
