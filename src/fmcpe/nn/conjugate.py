r"""Bayesian multivariate linear regression in closed form.

    s = μ + Bᵀ φ + ε,   ε ~ N(0, Σ),   B | Σ ~ MN(B_0, Λ⁻¹, Σ),   Σ ~ IW(c τ² RᵀR, c + d + 1),   μ flat

B_0 and R are the prior (`Prior`): zero and the identity, or estimates from simulations. The predictive distribution of
a new s is Student's t, and the evidence of the data is known, so that the prior precisions Λ, the noise level τ² and its
pseudo-count c are those of highest evidence (Minka, "Bayesian linear regression", 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import stack_module_state

from fmcpe.nn.fitted import Fitted


class Regression(Fitted):
    """A fitted regression, whitened: residuals have unit scale. `stacked` ones are E regressions, all tensors (E, ...)."""

    feature_mean: Tensor  # (F,)
    target_mean: Tensor  # (d,)
    weight: Tensor  # features to whitened targets, (F, d)
    whitening: Tensor  # targets to whitened ones, (d, d)
    gram_root: Tensor  # Cholesky factor of the inverse Gram matrix, (F, F)
    freedom: Tensor  # degrees of freedom of Student's t
    count: Tensor  # n, the number of pairs

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


def _padded(rows: Tensor, number: int) -> Tensor:
    """Rows (n, d) with rows of zeros below, (number, d)."""
    return torch.nn.functional.pad(rows, (0, 0, 0, number - len(rows)))


@dataclass(frozen=True)
class Prior:
    """The prior of a regression.

    Args:
        mean: B_0, (F, d); zero for further features.
        root: R, (d, d): RᵀR is the noise covariance, up to the factor τ².
        noises: Exponents of the smallest and largest τ², powers of ten.
    """

    mean: Tensor
    root: Tensor
    noises: tuple[int, int]

    @classmethod
    def vague(cls, features: int, targets: int, like: Tensor) -> Prior:
        """B_0 = 0 and R = I, for standardised targets; dtype and device are those of `like`."""
        return cls(like.new_zeros(features, targets), torch.eye(targets).to(like), (-5, 0))


def fit_conjugate(
    features: Tensor,
    targets: Tensor,
    order: Tensor,
    prior: Prior | None = None,
    degree: int | None = None,
    pseudo_counts: Sequence[float] = (1.0, 4.0, 16.0, 64.0),
) -> Fit:
    """The regression of highest evidence, on a grid of Λ (1e-6 to 1e3) and of τ², averaged over τ² and c.

    Args:
        features: φ, (n, F), standardised.
        targets: s, (n, d), standardised.
        order: Order of each feature, (F,), increasing: those above the first have a prior precision of their own.
        prior: B_0 and R; zero and the identity if None.
        degree: Coefficients of features of higher order are fixed at B_0; all are free if None.
        pseudo_counts: Values of c.
    """
    precisions = [10.0**k for k in range(-6, 4)]
    number, d, size = *targets.shape, len(order)
    f, t = features.double(), targets.double()
    prior = prior or Prior.vague(size, d, f)
    prior_mean, unroot = _padded(prior.mean, size), torch.linalg.inv(prior.root)
    f_mean, t_mean = f.mean(0), t.mean(0)
    f = f - f_mean
    t = (t - t_mean - f @ prior_mean) @ unroot  # now B_0 = 0 and R = I
    free = size if degree is None else int((order <= degree).sum())
    f, order = f[:, :free], order[:free]
    gram, cross, squares = f.T @ f, f.T @ t, t.T @ t
    rows = number - 1  # the intercept takes one
    bent = order > 1
    counts, noises = torch.tensor(pseudo_counts).to(f)[:, None], torch.logspace(*prior.noises, 11).to(f)
    before, after = counts + d + 1, counts + d + 1 + rows
    gammas = torch.special.multigammaln(after / 2, d) - torch.special.multigammaln(before / 2, d)

    def evidence_of(linear: float, higher: float) -> tuple[float, float, float]:
        """Evidence averaged over noise level and count, and their posterior means (geometric)."""
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

    # hill climbing on the grid of both precisions, or on its diagonal if there is a single precision
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
    gram_root = f.new_zeros(size, size)
    gram_root[:free, :free] = torch.linalg.cholesky((inverse + inverse.T) / 2)
    regression = Regression(
        feature_mean=f_mean,
        target_mean=t_mean,
        weight=(prior_mean @ unroot + _padded(weight, size)) @ whitening,
        whitening=unroot @ whitening,
        gram_root=gram_root,
        freedom=torch.tensor(freedom, device=f.device),
        count=torch.tensor(number, device=f.device),
    )
    return Fit(regression, value + rows * float(torch.linalg.slogdet(unroot)[1]))
