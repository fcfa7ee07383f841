"""A Gaussian likelihood whose mean and covariance are a network's output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fmcpe.nn.ridge import fit_ridge


class GaussianLikelihood(nn.Module):
    """m(θ) and Σ(θ) as functions of z: a linear map and a perceptron give the mean and a Cholesky factor.

    Args:
        dim: Number of parameters.
        summaries: Number of summaries d.
    """

    width = 64
    """Width of the hidden layers."""
    floor = 1e-3
    """Smallest diagonal element of the Cholesky factor, in standard deviations of a summary over simulations."""

    def __init__(self, dim: int, summaries: int) -> None:
        super().__init__()
        self.dim, self.size = dim, summaries
        below = torch.tril_indices(summaries, summaries, -1)
        self.register_buffer("below", below, persistent=False)
        outputs = 2 * summaries + below.shape[1]
        self.linear = nn.Linear(dim, summaries)
        self.net = nn.Sequential(
            nn.Linear(dim, self.width),
            nn.SiLU(),
            nn.Linear(self.width, self.width),
            nn.SiLU(),
            nn.Linear(self.width, outputs),
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, d) and Cholesky factors (B, d, d) at z (B, p)."""
        d, below = self.size, self.get_buffer("below")
        mean, scale, rest = self.net(z).split([d, d, below.shape[1]], dim=1)
        mean = mean + self.linear(z)
        root = torch.diag_embed(nn.functional.softplus(scale) + self.floor)
        return mean, root.index_put((torch.arange(len(z), device=z.device)[:, None], below[0], below[1]), rest)

    @torch.no_grad()
    def start(self, z: Tensor, s: Tensor) -> None:
        """Start the training from the ridge regression of s on z, with its residual deviations as noise."""
        ridge = fit_ridge(z, s)
        self.linear.weight.copy_(ridge.weight.T)
        self.linear.bias.copy_(ridge.bias - ridge.centre @ ridge.weight)
        spread, last = (s - ridge(z)).std(0).clamp_min(2 * self.floor), self.net[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(0.1)
        last.bias.zero_()
        last.bias[self.size : 2 * self.size] = torch.expm1(spread).log()  # the inverse of softplus

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Means and covariances, (B, d) and (B, d, d), in double precision."""
        mean, root = self(z.float())
        root = root.double()
        return mean.double(), root @ root.mT

    def loss(self, z: Tensor, s: Tensor) -> Tensor:
        """Negative log likelihood up to a constant, (B,)."""
        mean, root = self(z)
        white = torch.linalg.solve_triangular(root, (s - mean)[..., None], upper=False)[..., 0]
        return root.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * white.square().sum(1)
