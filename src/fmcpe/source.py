r"""Where the θ-flow of the default recipe starts: closed-form warm starts, fitted by ridge regression.

Two maps, both affine, both shrunk towards doing nothing, their penalties chosen by leave-one-out:

- `Move` carries y to where simulations of the same θ lie: \( \tilde x \sim N(\hat x(y), (1 + h(y)) \Sigma + \Sigma_S) \), with
  \( \hat x \) the regression of simulations on real data, \( \Sigma \) its residual covariance, \( h(y) \) the leverage (the
  regression's own uncertainty, large for a y unlike all pairs) and \( \Sigma_S \) the simulator's noise.
- `Step` stretches the draws of the base posterior about their mean, and moves them: \( z = T z_0 + (1 - T) c(y) + g(y) \).
  \( T \) is the optimal-transport map from their covariance to that of the leave-one-out residuals, \( c \) a linear
  approximation of their mean, and \( g \) a regression of the error of that mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

_PENALTIES = torch.logspace(-4, 5, 37, dtype=torch.float64).tolist()
_COARSE = 4
_BELIEVED = 3.0
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
        """Mean square of the left-out residuals, summed over targets."""
        return squares(self.residual)


def squares(residual: Tensor) -> float:
    """Size of residuals (N, targets): their mean square, summed over targets. What counts is where they are large."""
    return float(residual.square().mean(0).sum())


def log_volume(residual: Tensor) -> float:
    """Size of residuals (N, targets): log of the volume of the ellipsoid they fill, the same in all units and mixtures.

    A target with little noise counts as much as one with much: one that is to be inverted tells most. Of few rows, how
    targets go together is hardly believed.
    """
    covariance = residual.T @ residual / len(residual)
    own = covariance.diagonal()
    rounding = 1e-9 * own.mean() + 1e-30  # a target that is the sum of others has residuals, too
    return float(torch.logdet(covariance + torch.diag(_BELIEVED / len(residual) * own + rounding)))


def fit_ridge(features: Tensor, targets: Tensor, size: Callable[[Tensor], float] = squares) -> RidgeFit:
    """Ridge regression with a free intercept; the penalty is that with the smallest leave-one-out residuals.

    Args:
        features: (N, features).
        targets: (N, targets).
        size: How large residuals are.
    """
    f, t = features.double(), targets.double()
    number, f_mean, t_mean = len(f), f.mean(0), t.mean(0)
    u, s, vh = torch.linalg.svd(f - f_mean, full_matrices=False)
    projected, centred = u.T @ (t - t_mean), t - t_mean

    def left_out(index: int) -> tuple[float, Tensor, Tensor]:
        shrink = s.square() / (s.square() + _PENALTIES[index])
        inside = ((u.square() * shrink).sum(1) + 1 / number).clamp_max(1 - 1e-9)
        residual = (centred - u @ (shrink[:, None] * projected)) / (1 - inside)[:, None]
        return size(residual), residual, inside

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


class Move(nn.Module):
    """y -> x̃, in standardised coordinates of the simulations.

    Args:
        features: Numbers that describe y.
        dim: Numbers of x.
    """

    along: Tensor
    root: Tensor
    noise_root: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.ridge = Ridge(features, dim)
        self.register_buffer("along", torch.zeros(()))
        self.register_buffer("root", torch.zeros(dim, dim))
        self.register_buffer("noise_root", torch.zeros(dim, dim))

    def draw(self, features: Tensor, y: Tensor, copies: int) -> Tensor:
        """`copies` consecutive x̃ for each row of `features`, and of `y` in the coordinates of x: (B * copies, d)."""
        return self._around(self.along * y + self.ridge(features), self.ridge.leverage(features), copies)

    def _around(self, centre: Tensor, leverage: Tensor, copies: int) -> Tensor:
        spread = (1 + leverage).sqrt().repeat_interleave(copies)[:, None]
        centre = centre.repeat_interleave(copies, dim=0)
        noise = torch.randn_like(centre) @ self.root.T * spread + torch.randn_like(centre) @ self.noise_root.T
        return centre + noise


class MoveFit(NamedTuple):
    """A fitted move, and draws of x̃ for the very pairs it was fitted on, each left out in its turn."""

    move: Move
    left_out: Tensor


def fit_move(features: Tensor, y: Tensor, x: Tensor, copies: int) -> MoveFit:
    """Regress simulations on real data, towards y itself or towards their mean, whichever predicts better.

    Args:
        features: Numbers that describe y, (N, f).
        y: Real data in the coordinates of x, (N, d).
        x: Simulations at the same θ, several each, (N, S, d).
        copies: How many x̃ to draw for each pair.
    """
    mean, number = x.mean(1), x.shape[0]
    fits = {along: fit_ridge(features, mean - along * y) for along in (0.0, 1.0)}
    along = min(fits, key=lambda a: fits[a].error)
    fit = fits[along]
    move = Move(features.shape[1], y.shape[1]).to(y.device)
    move.ridge = fit.ridge
    move.along.fill_(along)
    residual = fit.residual / (1 + fit.leverage).sqrt()[:, None]
    spread = residual.T @ residual / number
    if x.shape[1] > 1:
        noise = (x - mean[:, None]).flatten(0, 1)
        noise = noise.T @ noise / (number * (x.shape[1] - 1))
        move.noise_root.copy_(_root(noise))
        spread = _without(spread, noise, x.shape[1])
    move.root.copy_(_root(spread))
    return MoveFit(move, move._around(mean - fit.residual, fit.leverage, copies))


class Step(nn.Module):
    """z = T z_0 + (1 - T) c(y) + g(y).

    Args:
        features: Numbers that describe y.
        dim: Number of parameters.
    """

    stretch: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.centre, self.error = Ridge(features, dim), Ridge(features, dim)
        self.register_buffer("stretch", torch.eye(dim))

    def _shift(self, features: Tensor) -> Tensor:
        centre = self.centre(features)
        return centre - centre @ self.stretch.T + self.error(features)

    def forward(self, z: Tensor, features: Tensor) -> Tensor:
        return z @ self.stretch.T + self._shift(features)

    def inverse(self, z: Tensor, features: Tensor) -> Tensor:
        """The z_0 that `forward` takes to z."""
        return torch.linalg.solve(self.stretch, (z - self._shift(features)).T).T

    def log_det(self) -> Tensor:
        """Log of the factor by which `forward` stretches volumes."""
        return torch.linalg.slogdet(self.stretch).logabsdet


def fit_step(features: Tensor, z0: Tensor, z0_left_out: Tensor, z1: Tensor) -> Step:
    """Fit the step from draws of the source to the true parameters, all in z.

    Args:
        features: Numbers that describe y, (N, f).
        z0: Draws of the source as it will be used, (N, S, p).
        z0_left_out: Draws of the source for each pair when that is left out, (N, S, p).
        z1: True parameters, (N, p).
    """
    mean = z0_left_out.mean(1)
    within = (z0_left_out - mean[:, None]).flatten(0, 1)
    error = fit_ridge(features, z1 - mean)
    step = Step(features.shape[1], z1.shape[1]).to(z1.device)
    step.centre, step.error = fit_ridge(features, z0.mean(1)).ridge, error.ridge
    source = within.T @ within / (len(within) - len(mean))
    step.stretch.copy_(transport_map(source, _without(_shrunk(error.residual), source, z0_left_out.shape[1])))
    return step


def transport_map(source: Tensor, target: Tensor) -> Tensor:
    """The symmetric T with T S T = R: optimal transport between centred Gaussians of covariances S and R."""
    root = _symmetric_power(source.double(), 0.5)
    inverse = _symmetric_power(source.double(), -0.5)
    return (inverse @ _symmetric_power(root @ target.double() @ root, 0.5) @ inverse).to(source)


def _without(covariance: Tensor, noise: Tensor, draws: int) -> Tensor:
    """A covariance of errors of means over so many draws, less what is due to there being so few, at most half of it."""
    inverse = _symmetric_power(covariance.double(), -0.5)
    largest = float(torch.linalg.eigvalsh(inverse @ noise.double() @ inverse).max())
    return covariance - noise * min(1 / draws, 0.5 / max(largest, 1e-12))


def _shrunk(residual: Tensor) -> Tensor:
    """Covariance of residuals about zero, drawn towards its diagonal where there are few."""
    number, dim = residual.shape
    covariance = residual.T @ residual / number
    weight = (dim + 2) / (number + dim + 2)
    return (1 - weight) * covariance + weight * covariance.diagonal().diag()


def _root(covariance: Tensor) -> Tensor:
    return _symmetric_power(covariance.double(), 0.5).to(covariance)


def _symmetric_power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    floor = 1e-8 * values.max().clamp_min(1e-12)
    return vectors @ torch.diag(values.clamp_min(floor) ** power) @ vectors.T
