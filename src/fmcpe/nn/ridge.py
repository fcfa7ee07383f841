"""Ridge regression with a free intercept, its penalty chosen by leave-one-out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ridge(nn.Module):
    """A linear map with intercept, (B, features) -> (B, targets).

    Args:
        features: How many numbers it takes.
        targets: How many it gives.
    """

    centre: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, features: int, targets: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("weight", torch.zeros(features, targets))
        self.register_buffer("bias", torch.zeros(targets))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) @ self.weight + self.bias

    def mapped(self, matrix: Tensor, offset: Tensor) -> Ridge:
        """The same regression with its targets t replaced by t @ matrix + offset."""
        out = Ridge(len(self.centre), matrix.shape[1]).to(self.centre.device)
        out.centre.copy_(self.centre)
        out.weight.copy_(self.weight @ matrix)
        out.bias.copy_(self.bias @ matrix + offset)
        return out


def fit_ridge(features: Tensor, targets: Tensor) -> Ridge:
    """The regression whose penalty, of 37 from 1e-4 to 1e5, has the smallest mean square leave-one-out residual.

    Args:
        features: (N, features).
        targets: (N, targets).
    """
    f, t = features.double(), targets.double()
    number, f_mean, t_mean = len(f), f.mean(0), t.mean(0)
    u, s, vh = torch.linalg.svd(f - f_mean, full_matrices=False)
    projected, centred = u.T @ (t - t_mean), t - t_mean

    def left_out_error(penalty: float) -> float:
        shrink = s.square() / (s.square() + penalty)
        inside = ((u.square() * shrink).sum(1) + 1 / number).clamp_max(1 - 1e-9)
        residual = (centred - u @ (shrink[:, None] * projected)) / (1 - inside)[:, None]
        return float(residual.square().mean())

    penalty = min(torch.logspace(-4, 5, 37, dtype=torch.float64).tolist(), key=left_out_error)
    ridge = Ridge(f.shape[1], t.shape[1]).to(features.device)
    ridge.centre.copy_(f_mean)
    ridge.bias.copy_(t_mean)
    ridge.weight.copy_(vh.T @ ((s / (s.square() + penalty))[:, None] * projected))
    return ridge
