"""Principal directions of data, the regression targets for long vectors, series and images."""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.nn.embeddings import is_vector
from fmcpe.nn.fitted import Fitted


class Directions(Fitted):
    """Leading directions of data, standardised: (B, ...) -> (B, q)."""

    mean: Tensor  # (d,)
    matrix: Tensor  # (d, q)

    @classmethod
    def of(cls, y: Tensor, most: int) -> Directions:
        """The leading directions of data (n, ...): all of a short vector, at most `most` of others."""
        flat = y.flatten(1).double()
        lost = min(1, len(flat) - 1)  # the deviation of a single row is zero
        share_unit = not is_vector(y.shape[1:])  # the entries of a series or an image share one unit
        std = flat.std(correction=lost).expand(flat.shape[1]) if share_unit else flat.std(0, correction=lost)
        std = torch.where(std > 1e-9 * flat.abs().amax(0).clamp_min(1e-30), std, torch.ones_like(std))
        centred = (flat - flat.mean(0)) / std
        size = min(most, flat.shape[1], max(1, len(flat) - 2))
        if flat.shape[1] <= most:
            matrix = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
        elif flat.shape[1] > 1000:
            matrix = torch.svd_lowrank(centred, q=size, niter=4)[2]
        else:
            matrix = torch.linalg.svd(centred, full_matrices=False)[2][:size].T
        spread = (centred @ matrix).std(0, correction=lost)
        scale = torch.ones_like(spread) if flat.shape[1] <= most else 1 / spread.max().clamp_min(1e-30)
        return cls(mean=flat.mean(0), matrix=matrix * scale / std[:, None])

    def forward(self, y: Tensor) -> Tensor:
        return (y.flatten(1) - self.mean) @ self.matrix
