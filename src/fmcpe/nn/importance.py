"""Importance sampling: proposals with heavy tails, and systematic resampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class TMixture:
    """Equal parts of multivariate t distributions, for each row.

    Args:
        centre: (B, C, p).
        root: Cholesky factors of the precision matrices, (B, C, p, p).
        freedom: Degrees of freedom, for heavier tails than those of a Laplace approximation.
        wider: Factor of the scale, for the same reason.
    """

    def __init__(self, centre: Tensor, root: Tensor, freedom: int = 5, wider: float = 1.3) -> None:
        self.centre, self.root, self.freedom, self.wider = centre, root, freedom, wider

    def sample(self, number: int) -> Tensor:
        """Stratified draws, equally many from each part: (B, number, p)."""
        batch, parts, dim = self.centre.shape
        of = torch.arange(number, device=self.centre.device) % parts
        normal = torch.randn(batch, number, dim, 1, device=self.centre.device)
        # with an integer number of degrees of freedom, a chi-squared variable is a sum of squares
        chi = torch.randn(batch, number, self.freedom, device=self.centre.device).square().sum(-1, keepdim=True)
        step = torch.linalg.solve_triangular(self.root[:, of].mT, normal, upper=True)[..., 0]
        return self.centre[:, of] + self.wider * step * (self.freedom / chi).sqrt()

    def log_prob(self, z: Tensor) -> Tensor:
        """(B, n, p) -> (B, n)."""
        dim, each = z.shape[2], []
        for k in range(self.centre.shape[1]):
            away = ((z - self.centre[:, None, k]) @ self.root[:, k]) / self.wider
            log_det = self.root[:, k].diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
            each.append(log_det - 0.5 * (self.freedom + dim) * torch.log1p(away.square().sum(-1) / self.freedom))
        constant = (
            math.lgamma((self.freedom + dim) / 2) - math.lgamma(self.freedom / 2)
            - 0.5 * dim * math.log(self.freedom * math.pi) - dim * math.log(self.wider) - math.log(len(each))
        )  # fmt: skip
        return torch.stack(each).logsumexp(0) + constant


def tempered(log_weights: Tensor, number: int = 32, within: float = 3.0) -> Tensor:
    """Weights (B, M) of sum one, flattened by a power so that `number` of them lie within a factor exp(`within`)."""
    size, log_weights = (
        log_weights.shape[1],
        log_weights.nan_to_num(neginf=-1e30),
    )  # a power of zero times infinity is NaN
    kth = log_weights.kthvalue(size - min(number - 1, size - 1), dim=1, keepdim=True).values
    power = (within / (log_weights.amax(1, keepdim=True) - kth).clamp_min(1e-6)).clamp_max(1.0)
    return (power * log_weights).softmax(1)


def systematic(weights: Tensor, n: int) -> Tensor:
    """Systematic resampling: indices (B, n) by weights (B, M), in random order."""
    ladder = weights.double().cumsum(1)
    ladder = ladder / ladder[:, -1:]
    start = torch.rand(len(weights), 1, dtype=ladder.dtype, device=weights.device)
    places = (start + torch.arange(n, device=weights.device)) / n
    index = torch.searchsorted(ladder, places).clamp_max(weights.shape[1] - 1)
    return index.gather(1, torch.rand(len(weights), n, device=weights.device).argsort(1))


def pareto_k(log_weights: Tensor) -> Tensor:
    r"""Shape \( \hat k \) of a generalised Pareto distribution fitted to the largest importance weights, (B, M) -> (B,).

    Above 0.7, estimates from these weights are unreliable (Vehtari et al., "Pareto smoothed importance sampling", 2024). The
    fit is that of Zhang and Stephens (2009), with the weak prior of the former.
    """
    size = log_weights.shape[1]
    tail = max(5, int(min(0.2 * size, 3 * math.sqrt(size))))
    top = log_weights.double().sort(dim=1).values[:, -tail - 1 :]
    scaled = (top - top[:, -1:]).exp()
    x = (scaled[:, 1:] - scaled[:, :1]).clamp_min(1e-300)  # exceedances, ascending, (B, n)
    number, grid = x.shape[1], 30 + int(math.sqrt(x.shape[1]))
    steps = torch.arange(1, grid + 1, dtype=x.dtype, device=x.device)
    quartile = x[:, max(0, int(number / 4 + 0.5) - 1)]
    b = (1 - (grid / (steps - 0.5)).sqrt()) / (3 * quartile[:, None]) + 1 / x[:, -1:]
    k = torch.log1p(-b[..., None] * x[:, None]).mean(2)
    profile = number * ((-b / k).log() - k - 1)
    best = (b * profile.nan_to_num(-torch.inf).softmax(1)).sum(1, keepdim=True)
    shape = torch.log1p(-best * x).mean(1)
    return ((shape * number + 5) / (number + 10)).nan_to_num(torch.inf).to(log_weights)
