"""Ridge regression with a free intercept, its penalty chosen by leave-one-out."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

from fmcpe.nn.fitted import Fitted


class Ridge(Fitted):
    """A linear map with intercept, (B, features) -> (B, targets)."""

    centre: Tensor
    weight: Tensor
    bias: Tensor

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) @ self.weight + self.bias

    def mapped(self, matrix: Tensor, offset: Tensor) -> Ridge:
        """The same regression with its targets t replaced by t @ matrix + offset."""
        return Ridge(centre=self.centre, weight=self.weight @ matrix, bias=self.bias @ matrix + offset)


def fit_ridge(features: Tensor, targets: Tensor) -> Ridge:
    """The regression of targets (N, t) on features (N, f) with the smallest mean square leave-one-out residual.

    The penalty is one of 37 from 1e-4 to 1e5.
    """
    f, t = features.double().cpu(), targets.double().cpu()
    with np.errstate(invalid="ignore"):  # leave-one-out of a single row is 0/0
        fit = RidgeCV(alphas=np.logspace(-4, 5, 37)).fit(f.numpy(), t.numpy())
    weight = torch.as_tensor(fit.coef_).reshape(t.shape[1], -1).T  # sklearn drops the axis of a single target
    return Ridge(centre=f.mean(0), weight=weight, bias=t.mean(0)).to(features.device)
