r"""Real data regressed on the parameters that made them: a likelihood out of a few pairs.

    s(y) = B φ(θ) + b + ε,   s: the leading directions of the data, φ: powers and products of θ, or θ and what the simulator
                             shows there (`fmcpe.emulator`), ε: Student's t

A pair says what reality makes of a θ, with no simulator in between. Where that is smooth in θ, as it is for a sensor, an
intensity or a curve that bends with θ, few coefficients describe it, and Bayes' rule (`fmcpe.inversion`) turns them into a
posterior that is right as far as the regression is. The degree of the polynomial, the number of directions and how far they
are believed to be off independently are those with which the posterior is highest at left-out θ; a factor of the variance, for
what no polynomial describes, is a mean over several, by the same (`fmcpe.sizes`), or larger, if left-out draws are hardly
worse so. Where data have a random phase, the regression finds nothing, and the evidence throws it away.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fmcpe.emulator import DEGREE, emulate
from fmcpe.networks import SERIES_FROM
from fmcpe.polynomials import Powers, count
from fmcpe.source import LARGEST_LEVERAGE, Ridge, fit_ridge, log_volume
from fmcpe.spaces import FlatStandardiser, Standardiser

_MOST_DIRECTIONS = 64


class Size(NamedTuple):
    """How large a regression is."""

    degree: int
    """Of the polynomial in θ."""
    directions: int
    """Of the data."""
    widening: float = 1.0
    """Factor of the variance of what is seen."""
    belief: float = 1.0
    """Pairs that the belief is worth that directions are off independently of each other."""
    shown: int = 0
    """Numbers that the simulator shows, as further features."""


class Forward(nn.Module):
    """The regression, its residuals whitened.

    Args:
        parameters: p.
        numbers: How many numbers an observation has.
        size: How large it is.
    """

    shown: Tensor
    directions: Tensor
    whitening: Tensor
    freedom: Tensor

    def __init__(self, parameters: int, numbers: int, size: Size) -> None:
        super().__init__()
        self.size = size
        own = count(parameters, size.degree)
        # those of the lower degree come first
        self.all_powers = Powers(parameters, max(size.degree, DEGREE) if size.shown else size.degree)
        features, shown = own + size.shown, count(parameters, DEGREE) if size.shown else 0
        self.register_buffer("shown", torch.zeros(shown, size.shown))
        self.theta_scale = Standardiser(torch.zeros(2, parameters))
        self.feature_scale = Standardiser(torch.zeros(2, features))
        self.data_scale = FlatStandardiser(torch.zeros(2, numbers))
        self.register_buffer("directions", torch.zeros(numbers, size.directions))
        self.register_buffer("whitening", torch.eye(size.directions))
        self.register_buffer("freedom", torch.ones(()))
        self.ridge = Ridge(features, size.directions)

    @property
    def is_straight(self) -> bool:
        """Whether what is expected goes straight with θ."""
        return self.size.degree == 1 and not self.size.shown

    def see(self, y: Tensor) -> Tensor:
        """Observations (B, ...) in whitened directions, (B, q)."""
        return self.data_scale(y.flatten(1)) @ self.directions @ self.whitening

    def see_reduced(self, data: Tensor, where: Coordinates) -> Tensor:
        """The same for observations in the coordinates that it was fitted in, (B, r)."""
        directions = self.directions if where.basis is None else where.basis.T @ self.directions
        return data @ directions @ self.whitening

    def features(self, theta: Tensor) -> Tensor:
        """What data are regressed on, from physical θ, standardised, (B, F)."""
        return self.feature_scale(self.powers(self.theta_scale(theta)))

    def powers(self, u: Tensor) -> Tensor:
        """Powers and products of standardised θ, and what the simulator shows there on average, (B, F)."""
        powers = self.all_powers(u)
        if not self.size.shown:
            return powers
        own = len(self.feature_scale.mean) - self.size.shown
        return torch.cat([powers[:, :own], powers[:, : len(self.shown)] @ self.shown], dim=1)

    def expect(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen at θ on average, (B, q), and the factor of its variance for what the regression does not know, (B,)."""
        features = self.features(theta)
        return self.ridge(features) @ self.whitening, self.size.widening * (1 + self.ridge.leverage(features))

    @torch.no_grad()
    def expecting(self) -> Expectation:
        """`expect` with all that is affine in it made one matrix, and its slopes another: for asking it often."""
        ridge, scale, u_scale = self.ridge, self.feature_scale, self.theta_scale
        values, vectors = torch.linalg.eigh(ridge.gram_inverse.double())
        root = (vectors * values.clamp_min(0.0).sqrt()).to(ridge.weight)
        matrix = torch.cat([ridge.weight @ self.whitening, root], dim=1)
        offset = torch.cat([ridge.bias @ self.whitening, torch.zeros_like(ridge.centre)])
        offset = offset - (scale.mean / scale.std + ridge.centre) @ matrix
        matrix = matrix / scale.std[:, None]
        if self.size.shown:  # what is shown is a polynomial, too
            own, shown = matrix.tensor_split([len(matrix) - self.size.shown])
            matrix = own.new_zeros(len(self.all_powers.terms), own.shape[1])
            matrix[: len(own)] += own
            matrix[: len(self.shown)] += self.shown @ shown
        slopes = self.all_powers.slopes().to(matrix) @ matrix[:, : self.size.directions] / u_scale.std[:, None, None]
        return Expectation(self, matrix, offset, slopes[:, 1:].transpose(0, 1).flatten(1), slopes[:, 0].flatten())

    def log_likelihood(self, squared_distance: Tensor, factor: Tensor) -> Tensor:
        """Student's t: what is left of a normal distribution whose coefficients and covariance the pairs have to tell, too.

        With coefficients that nothing is known of beforehand, and an inverse Wishart for the covariance, it is exact.

        Args:
            squared_distance: Between what is seen and what is expected.
            factor: Of the variance, shaped to go with it.
        """
        tail = torch.log1p(squared_distance / (float(self.freedom) * factor))
        return torch.add(-0.5 * self.size.directions * factor.log(), tail, alpha=-0.5 * (float(self.freedom) + 1))

    def weight(self, squared_distance: Tensor, factor: Tensor) -> Tensor:
        """Precision of the normal distribution that is as steep there as Student's t."""
        return (self.freedom + 1) / (factor * self.freedom + squared_distance)

    def row_by_row(self, expected: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        """Log likelihood of each row of θ, of which so much is expected, for its own row of what is seen (B, q)."""
        mean, factor = expected
        return self.log_likelihood((seen - mean).square().sum(-1), factor)

    def against_all(self, expected: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        """Log likelihood of all θ, of which N are `expect`ed, for all rows of what is seen (K, q): (K, N)."""
        mean, factor = expected
        return self.log_likelihood(self.distances(mean, seen), factor)

    @staticmethod
    def distances(mean: Tensor, seen: Tensor) -> Tensor:
        """Squared distances of all rows of what is seen, (K, q), to all rows of what is expected, (N, q): (K, N)."""
        squared = torch.addmm(mean.square().sum(1), seen, mean.T, alpha=-2) + seen.square().sum(1)[:, None]
        return squared.clamp_min(0.0)


class Expectation(NamedTuple):
    """A regression at work: powers of θ, one matrix, and what it makes of them."""

    forward: Forward
    matrix: Tensor
    offset: Tensor
    slope_matrix: Tensor
    slope_offset: Tensor

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """As `Forward.expect`."""
        return self._expected(self._powers(theta))

    def with_slopes(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and how what is seen on average changes with θ: (B, p, q)."""
        powers = self._powers(theta)
        slopes = torch.addmm(self.slope_offset, powers, self.slope_matrix)
        return *self._expected(powers), slopes.unflatten(1, (theta.shape[1], self.forward.size.directions))

    def _expected(self, powers: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = torch.addmm(self.offset, powers, self.matrix).tensor_split([self.forward.size.directions], dim=1)
        leverage = spread.square().sum(-1).clamp_max(LARGEST_LEVERAGE) + 1 / self.forward.ridge.count
        return mean, self.forward.size.widening * (1 + leverage)

    def _powers(self, theta: Tensor) -> Tensor:
        return self.forward.all_powers(self.forward.theta_scale(theta))


class Coordinates(NamedTuple):
    """Where regressions of one set of pairs work: units that all share, and few directions where there are many numbers."""

    theta_scale: Standardiser
    data_scale: FlatStandardiser
    basis: Tensor | None
    """Orthonormal directions of standardised data, (d, r); all of them if None."""
    shown: Tensor | None = None
    """What the simulator shows on average, as coefficients of a polynomial, (F, r) (`fmcpe.emulator`)."""

    def reduce(self, y: Tensor) -> Tensor:
        """Data (N, ...) in these coordinates, (N, r)."""
        data = self.data_scale(y.flatten(1))
        return data if self.basis is None else data @ self.basis


def coordinates(y: Tensor, prior_theta: Tensor, simulations: tuple[Tensor, Tensor] | None = None) -> Coordinates:
    """Coordinates for pairs with these observations, (N, ...), and a prior with these draws, (M, p).

    `simulations` are θ and x of some, where there are any.
    """
    flat = y.flatten(1)
    scale = FlatStandardiser(flat)
    share_unit = y.ndim > 2 or flat.shape[1] >= SERIES_FROM  # numbers of a series or an image do
    if share_unit:
        scale.std.fill_(float(flat.std().clamp_min(1e-30)))
    basis = None
    if flat.shape[1] > 4 * _MOST_DIRECTIONS:
        basis = torch.svd_lowrank(scale(flat), q=min(_MOST_DIRECTIONS, len(flat)), niter=4)[2]
    theta_scale = Standardiser(prior_theta)
    if simulations is None:
        return Coordinates(theta_scale, scale, basis)
    x = simulations[1].flatten(1)
    shown = emulate(theta_scale(simulations[0]), x if share_unit else Standardiser(x)(x))
    return Coordinates(theta_scale, scale, basis, shown)


def fit_forward(theta: Tensor, data: Tensor, where: Coordinates, size: Size, leading: Tensor | None = None) -> Forward:
    """Fit the regression.

    Args:
        theta: Physical parameters of the pairs, (N, p).
        data: Their observations in these coordinates, (N, r).
        where: The coordinates.
        size: How large the regression is.
        leading: `leading_directions` of the data, if they are known already.
    """
    number, basis = len(data), where.basis
    forward = Forward(theta.shape[1], where.data_scale.mean.numel(), size).to(data.device)
    forward.theta_scale, forward.data_scale = where.theta_scale, where.data_scale
    if size.shown:
        assert where.shown is not None
        forward.shown.copy_(where.shown)
    directions = (leading_directions(data) if leading is None else leading)[:, : size.directions]
    forward.directions.copy_(directions if basis is None else basis @ directions)
    powers = forward.powers(forward.theta_scale(theta))
    forward.feature_scale = Standardiser(powers)
    fit = fit_ridge(forward.feature_scale(powers), data @ directions, log_volume)
    forward.ridge = fit.ridge
    used = (fit.leverage / (1 + fit.leverage)).sum()  # coefficients for each direction, but for what the penalty takes
    forward.freedom.copy_((number + size.belief - used).clamp_min(1.0))
    residual = (fit.residual / (1 + fit.leverage).sqrt()[:, None]).double()
    covariance = residual.T @ residual / number
    # the fewer pairs, the less their residuals say of how directions go together
    own = covariance.diagonal().clamp_min(1e-9 * float(covariance.diagonal().mean()) + 1e-30)
    covariance = (number * covariance + size.belief * torch.diag(own)) / (number + size.belief)
    root = torch.linalg.cholesky(covariance)
    forward.whitening.copy_(torch.linalg.inv(root).T)
    return forward


def leading_directions(data: Tensor) -> Tensor:
    """Orthonormal directions in which rows (N, r) differ, most first: (r, min(N, r))."""
    return torch.linalg.svd(data - data.mean(0), full_matrices=False)[2].T
