r"""Bayesian multivariate linear regression in closed form.

    s = μ + Bᵀ φ + ε,   ε ~ N(0, Σ),   B | Σ ~ MN(0, Λ⁻¹, Σ),   Σ ~ IW(c τ² I, c + d + 1),   μ flat

The predictive distribution of a new s is Student's t, and the evidence of the data is known, so that the prior precisions Λ,
the noise level τ² and its pseudo-count c are those of highest evidence (Minka, "Bayesian linear regression", 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import stack_module_state

from fmcpe.nn.fitted import Fitted


class Regression(Fitted):
    """A fitted regression, whitened: residuals have unit scale. `stacked` ones are E regressions, all tensors (E, ...).

    Attributes:
        feature_mean: (F,).
        target_mean: (d,).
        weight: Features to whitened targets, (F, d).
        whitening: Targets to whitened ones, (d, d).
        gram_root: Cholesky factor of the inverse Gram matrix, (F, F).
        freedom: Degrees of freedom of Student's t.
        count: n, the number of pairs.
    """

    feature_mean: Tensor
    target_mean: Tensor
    weight: Tensor
    whitening: Tensor
    gram_root: Tensor
    freedom: Tensor
    count: Tensor

    @classmethod
    def stacked(cls, regressions: Sequence[Regression]) -> Regression:
        """Several regressions as one batch."""
        return cls(**stack_module_state(list(regressions))[1])

    def whiten(self, targets: Tensor) -> Tensor:
        """Data in units of the residual scale, (..., d)."""
        return (targets - self.target_mean) @ self.whitening

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened mean, (..., n, d), and factor of the residual variance, (..., n), at features (..., n, F)."""
        centred = features - self.feature_mean[..., None, :]
        leverage = (centred @ self.gram_root).square().sum(-1)
        return centred @ self.weight, 1 + 1 / self.count[..., None] + leverage

    def log_likelihood(self, squared_distance: Tensor, factor: Tensor) -> Tensor:
        """Log density of Student's t, up to a constant, at a squared distance of whitened data to the mean, (..., n)."""
        d, freedom = self.target_mean.shape[-1], self.freedom[..., None]
        return -0.5 * d * factor.log() - 0.5 * (freedom + d) * torch.log1p(squared_distance / (freedom * factor))


@dataclass(frozen=True)
class Fit:
    """A regression and its log evidence."""

    regression: Regression
    evidence: float


def fit_conjugate(
    features: Tensor, targets: Tensor, order: Tensor, pseudo_counts: Sequence[float] = (1.0, 4.0, 16.0, 64.0)
) -> Fit:
    """The regression of highest evidence, on a grid of Λ (1e-6 to 1e3) and of τ² (1e-5 to 1), averaged over τ² and c.

    Args:
        features: φ, (n, F), standardised.
        targets: s, (n, d), standardised.
        order: 1 for linear features and more for others, (F,): those have a prior precision of their own.
        pseudo_counts: Values of c.
    """
    precisions = [10.0**k for k in range(-6, 4)]
    f, t = features.double(), targets.double()
    number, d = t.shape
    f_mean, t_mean = f.mean(0), t.mean(0)
    f, t = f - f_mean, t - t_mean
    gram, cross, squares = f.T @ f, f.T @ t, t.T @ t
    rows = number - 1  # the intercept takes one
    bent = order > 1
    counts, noises = torch.tensor(pseudo_counts).to(f)[:, None], torch.logspace(-5, 0, 11).to(f)
    before, after = counts + d + 1, counts + d + 1 + rows
    gammas = torch.special.multigammaln(after / 2, d) - torch.special.multigammaln(before / 2, d)

    def evidence_of(linear: float, higher: float) -> tuple[float, float, float]:
        """Highest evidence over noise level and count, and these."""
        precision = torch.where(bent, higher, linear).to(f)
        root = torch.linalg.cholesky(gram + precision.diag())
        solved = torch.linalg.solve_triangular(root, cross, upper=False)
        left = torch.linalg.eigvalsh(squares - solved.T @ solved).clamp_min(0.0)
        shrink = 0.5 * d * (precision.log().sum() - 2 * root.diagonal().log().sum())
        log_left = (left + (counts * noises)[..., None]).log().sum(-1)
        value = shrink + 0.5 * before * d * (counts * noises).log() - 0.5 * after * log_left + gammas
        best = value.flatten().logsumexp(0)
        share = value.flatten().softmax(0)
        c = float((share @ counts.expand_as(value).flatten().log()).exp())
        noise = float((share @ noises.expand_as(value).flatten().log()).exp())
        return float(best), c, noise

    # uphill on the grid of both precisions, or along its diagonal if there is one precision only
    moves = [(1, 1), (-1, -1)] + ([(1, 0), (-1, 0), (0, 1), (0, -1), (0, 3)] if bool(bent.any()) else [])
    grid, found, best = range(len(precisions)), dict[tuple[int, int], tuple[float, float, float]](), (0, 0)
    near = [(k, k) for k in grid[::2]]
    while near:
        found |= {(i, j): evidence_of(precisions[i], precisions[j]) for i, j in near}
        best = max(found, key=lambda key: found[key][0])
        around = {(best[0] + i, best[1] + j) for i, j in moves}
        near = [(i, j) for i, j in around - found.keys() if i in grid and j in grid]
    value, c, noise = found[best]
    precision = torch.where(bent, precisions[best[1]], precisions[best[0]]).to(f)
    inverse = torch.linalg.inv(gram + precision.diag())
    weight = inverse @ cross
    scatter = squares - cross.T @ weight + c * noise * torch.eye(d, dtype=f.dtype, device=f.device)
    freedom = c + d + 1 + rows - d + 1
    root = torch.linalg.cholesky((scatter + scatter.T) / (2 * freedom))
    whitening = torch.linalg.inv(root).T
    regression = Regression(
        feature_mean=f_mean,
        target_mean=t_mean,
        weight=weight @ whitening,
        whitening=whitening,
        gram_root=torch.linalg.cholesky((inverse + inverse.T) / 2),
        freedom=torch.tensor(freedom, device=f.device),
        count=torch.tensor(number, device=f.device),
    )
    return Fit(regression, value)
