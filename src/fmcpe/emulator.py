"""What the simulator shows on average, as a polynomial of θ: features for a regression of real data (`fmcpe.forward`).

Reality often answers to the products and powers of θ that the simulator answers to (a colour times an intensity), if not in
the same way. Few pairs cannot find these among all products; simulations, of which there are many, can.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.polynomials import Powers, count

DEGREE = 3
MOST_FEATURES = 300
_MOST_SHOWN, _LEAST_SHARE = 3, 0.02
_SKETCH = 32
_LEAST_EXPLAINED, _LEAST_BENT = 0.5, 0.02


def emulate(u: Tensor, x: Tensor) -> Tensor | None:
    """Coefficients (F, r) of cubic polynomials for the leading directions of simulations that bend with θ.

    Args:
        u: Standardised parameters, (M, p).
        x: Simulations at them, (M, ...).

    Returns:
        None where θ explains no direction, where all go straight with it, or where there are too many products.
    """
    if count(u.shape[1], DEGREE) > min(MOST_FEATURES, len(u) // 4):
        return None
    flat = x.flatten(1)
    centred = flat - flat.mean(0)
    left, size, _ = torch.svd_lowrank(centred, q=min(_SKETCH, *centred.shape), niter=1)
    large = size[:_MOST_SHOWN].square() > _LEAST_SHARE * centred.square().sum()
    shown = left[:, :_MOST_SHOWN][:, large].double() * len(u) ** 0.5
    features = Powers(u.shape[1], DEGREE)(u).double()
    coefficients, left_over = _regressed(features, shown)
    _, not_straight = _regressed(u.double(), shown)
    useful = (left_over < 1 - _LEAST_EXPLAINED) & (not_straight - left_over > _LEAST_BENT)
    return coefficients[:, useful].to(u) if bool(useful.any()) else None


def _regressed(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares: coefficients without the intercept, and the share of each target that is left over."""
    features, targets = features - features.mean(0), targets - targets.mean(0)
    coefficients = torch.linalg.lstsq(features, targets).solution
    left_over = (targets - features @ coefficients).square().sum(0) / targets.square().sum(0).clamp_min(1e-30)
    return coefficients, left_over
