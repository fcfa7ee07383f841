r"""Ridge regression with a free intercept, its penalty chosen by leave-one-out, with leverage.

The leverage \( h(f) \) is the variance of a prediction in units of the residual variance: the regression's own uncertainty,
large for features unlike all that it was fitted on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_PENALTIES = torch.logspace(-4, 5, 37, dtype=torch.float64).tolist()
_COARSE = 4
LARGEST_LEVERAGE = 30.0


class Ridge(nn.Module):
    """A linear map with intercept.

    Args:
        features: How many numbers it takes.
        targets: How many it gives.
    """

    centre: Tensor
    weight: Tensor
    bias: Tensor
    gram_inverse: Tensor
    count: Tensor

    def __init__(self, features: int, targets: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("weight", torch.zeros(features, targets))
        self.register_buffer("bias", torch.zeros(targets))
        self.register_buffer("gram_inverse", torch.zeros(features, features))
        self.register_buffer("count", torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) @ self.weight + self.bias

    def mapped(self, matrix: Tensor, offset: Tensor) -> Ridge:
        """The same regression with its targets t replaced by t @ matrix + offset."""
        out = Ridge(len(self.centre), matrix.shape[1]).to(self.centre.device)
        for name in ("centre", "gram_inverse", "count"):
            getattr(out, name).copy_(getattr(self, name))
        out.weight.copy_(self.weight @ matrix)
        out.bias.copy_(self.bias @ matrix + offset)
        return out

    def leverage(self, features: Tensor) -> Tensor:
        """Variance of the prediction, (B,), in units of the residual variance."""
        centred = features - self.centre
        return ((centred @ self.gram_inverse) * centred).sum(-1).clamp_max(LARGEST_LEVERAGE) + 1 / self.count


class RidgeFit(NamedTuple):
    """A fitted regression, and what leaving out one row at a time says of it."""

    ridge: Ridge
    residual: Tensor
    """Left-out residuals, (N, targets)."""
    leverage: Tensor
    """Of each row when it is left out, (N,)."""

    @property
    def error(self) -> float:
        """Mean square of the leave-one-out residuals, summed over targets."""
        return float(self.residual.square().mean(0).sum())


def fit_ridge(features: Tensor, targets: Tensor) -> RidgeFit:
    """Ridge regression with a free intercept; the penalty is that with the smallest mean square leave-one-out residual.

    Args:
        features: (N, features).
        targets: (N, targets).
    """
    f, t = features.double(), targets.double()
    number, f_mean, t_mean = len(f), f.mean(0), t.mean(0)
    u, s, vh = torch.linalg.svd(f - f_mean, full_matrices=False)
    projected, centred = u.T @ (t - t_mean), t - t_mean

    def left_out(index: int) -> tuple[float, Tensor, Tensor]:
        shrink = s.square() / (s.square() + _PENALTIES[index])
        inside = ((u.square() * shrink).sum(1) + 1 / number).clamp_max(1 - 1e-9)
        residual = (centred - u @ (shrink[:, None] * projected)) / (1 - inside)[:, None]
        return float(residual.square().mean()), residual, inside

    # a coarse look at all penalties, then a fine one where it is best
    tried = {index: left_out(index) for index in range(0, len(_PENALTIES), _COARSE)}
    best = min(tried, key=lambda index: tried[index][0])
    near = range(max(0, best - _COARSE + 1), min(len(_PENALTIES), best + _COARSE))
    tried |= {index: left_out(index) for index in near if index != best}
    best = min(tried, key=lambda index: tried[index][0])
    penalty, (_, residual, inside) = _PENALTIES[best], tried[best]
    ridge = Ridge(f.shape[1], t.shape[1]).to(features.device)
    ridge.centre.copy_(f_mean)
    ridge.bias.copy_(t_mean)
    ridge.weight.copy_(vh.T @ ((s / (s.square() + penalty))[:, None] * projected))
    ridge.gram_inverse.copy_(vh.T @ ((1 / (s.square() + penalty))[:, None] * vh))
    ridge.count.fill_(number)
    leverage = (inside / (1 - inside)).clamp_max(LARGEST_LEVERAGE)
    return RidgeFit(ridge, residual.to(targets), leverage.to(targets))
