r"""sbi's posteriors with an unnormalised density (NLE, NRE; MCMC, rejection, variational or importance sampling).

    p̂(θ|x) ∝ p(θ) exp ℓ(θ, x),   ℓ = log q(x|θ) of a likelihood estimator, or the log ratio of a ratio estimator

Their own samplers run for seconds or minutes per x and have no bound. Here each x gets the same small number of evaluations of
ℓ, by adaptive importance sampling (population Monte Carlo: Cappé et al., 2004) in unconstrained parameters z:

    z ~ prior, w = exp ℓ;   then some rounds:   z ~ q = 0.05 prior + 0.95 mixture of Student-t kernels,   w = p(z) exp ℓ / q(z)

Kernels sit on draws resampled by w^β and have their covariance, times Silverman's factor; β ≤ 1 is the largest power that
leaves a minimal effective sample size. Rounds end once that is large for every x, or at a fixed number of them. The mean of the
last w estimates the evidence, which normalises the density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sbi.inference.potentials.likelihood_based_potential import LikelihoodBasedPotential
from sbi.inference.potentials.ratio_based_potential import RatioBasedPotential
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior, Remembered
from fmcpe.spaces import ParameterSpace


class PotentialBase(BasePosterior):
    """A prior and `log_ratio`, a function ℓ(θ (M, p), x (M, ...)) -> (M,): log likelihood or log ratio, up to a function of x.

    `estimator` is the network that it uses, if any.
    """

    components = 16
    amortised = False
    rounds = 12
    """Maximum number of rounds with kernel proposals."""
    enough = 0.3
    """Effective sample size, relative to the number of particles, that ends the rounds."""
    particles = 256
    """Minimum number of draws per round."""
    kernels = 32
    """Kernels of the proposal."""
    smallest_ess = 24.0
    """Minimum effective sample size that determines β."""
    freedom = 5.0
    """Degrees of freedom of the kernels."""
    rows_at_once = 100_000

    def __init__(
        self,
        log_ratio: Callable[[Tensor, Tensor], Tensor],
        prior: Distribution,
        x_shape: torch.Size | None,
        estimator: Any = None,
    ) -> None:
        super().__init__(prior, x_shape)
        self.log_ratio, self.estimator = log_ratio, estimator
        self.space = ParameterSpace.of(prior)
        self.effective = 1.0
        """Effective sample size over particles in the last call, the smallest over x."""
        self._last = Remembered()

    def _draw(self, x: Tensor, n: int) -> Tensor:
        z, log_w, _ = self._population(x, max(self.particles, 4 * n))
        picked = torch.multinomial((log_w - log_w.amax(1, keepdim=True)).exp(), n, replacement=True)
        z = z.gather(1, picked[..., None].expand(-1, -1, z.shape[2]))
        return self.space.to_theta(z.flatten(0, 1)).unflatten(0, z.shape[:2])

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        ratio = self._evaluate(theta.flatten(0, 1), x.repeat_interleave(theta.shape[1], dim=0))
        log_joint = self._times_prior(ratio, theta.flatten(0, 1)).unflatten(0, theta.shape[:2])
        return log_joint - self.log_evidence(x)[:, None]

    @torch.no_grad()
    def log_evidence(self, x: Tensor) -> Tensor:
        """Log ∫ p(θ) exp ℓ(θ, x) dθ for each row, (B,), from fixed draws."""

        def compute() -> Tensor:
            with seeded(0):
                return torch.cat([self._population(part, 4 * self.particles)[2] for part in x.split(50)])

        return self._last(x, compute)

    def _population(self, x: Tensor, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Particles z (B, S, p), their log weights (B, S) and the log evidence (B,), with `last` particles at last."""
        number, dim = len(x), self.space.dim
        z = self._prior_draws(2 * self.particles, x.device)[None].expand(number, -1, -1)
        log_w = self._ratio_at(z, x)
        for k in range(self.rounds):
            at_last = k == self.rounds - 1 or float(_effective(log_w).min()) > self.enough
            size = last if at_last else self.particles
            centres, scale = self._kernels(z, log_w)
            which = torch.randint(centres.shape[1], (number, size), device=x.device)
            gamma = torch.distributions.Chi2(z.new_tensor(self.freedom)).sample((number, size, 1)) / self.freedom
            noise = torch.randn(number, size, dim, device=x.device) / gamma.sqrt()
            z = centres.gather(1, which[..., None].expand(-1, -1, dim)) + noise @ scale.mT
            wide = max(1, round(0.05 * size))
            z = torch.cat([self._prior_draws(wide, x.device).expand(number, -1, -1), z[:, wide:]], dim=1)
            log_prior = self._log_prior(z)
            kernel = self._log_kernel(z, centres, scale)
            log_q = torch.logaddexp(log_prior + math.log(wide / size), kernel + math.log(1 - wide / size))
            log_w = torch.nan_to_num(self._ratio_at(z, x) + log_prior - log_q, nan=-1e30, neginf=-1e30)
            if at_last:
                break
        self.effective = float(_effective(log_w).min())
        return z, log_w, log_w.logsumexp(1) - math.log(log_w.shape[1])

    def _kernels(self, z: Tensor, log_w: Tensor) -> tuple[Tensor, Tensor]:
        """Centres (B, M, p) and the Cholesky factor of the kernels' covariance (B, p, p)."""
        number, dim = len(z), z.shape[2]
        powers = torch.logspace(-4, 0, 41, device=z.device)[:, None, None]
        tempered = torch.nan_to_num((log_w - log_w.amax(1, keepdim=True)) * powers, nan=-1e30, neginf=-1e30).exp()
        ess = tempered.sum(2).square() / tempered.square().sum(2)  # (41, B), falls with the power
        best = (ess >= self.smallest_ess).sum(0).sub(1).clamp_min(0)
        w = tempered[best, torch.arange(number, device=z.device)]
        w = w / w.sum(1, keepdim=True)
        mean = (w[..., None] * z).sum(1, keepdim=True)
        covariance = ((z - mean) * w[..., None]).mT @ (z - mean)
        silverman = (4 / ((dim + 2) * self.kernels)) ** (2 / (dim + 4))
        jitter = 1e-8 + 1e-4 * covariance.diagonal(dim1=1, dim2=2)
        scale = torch.linalg.cholesky(silverman * covariance + torch.diag_embed(jitter))
        picked = torch.multinomial(w, self.kernels, replacement=True)
        return z.gather(1, picked[..., None].expand(-1, -1, dim)), scale

    def _log_kernel(self, z: Tensor, centres: Tensor, scale: Tensor) -> Tensor:
        """Log density of the mixture of Student-t kernels at z (B, S, p): (B, S)."""
        dim, nu = z.shape[2], self.freedom
        white, around = (torch.linalg.solve_triangular(scale, a.mT, upper=False).mT for a in (z, centres))
        distance = torch.cdist(white, around).square()
        constant = math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - dim / 2 * math.log(nu * math.pi)
        each = constant - (nu + dim) / 2 * torch.log1p(distance / nu)
        log_det = scale.diagonal(dim1=1, dim2=2).log().sum(1)
        return each.logsumexp(2) - math.log(centres.shape[1]) - log_det[:, None]

    def _prior_draws(self, size: int, device: torch.device) -> Tensor:
        return self.space.to_z_safely(self.prior.sample(torch.Size((size,))).to(device, torch.float32))

    def _log_prior(self, z: Tensor) -> Tensor:
        """Log density of the prior in z, (B, S)."""
        theta = self.space.to_theta(z.flatten(0, 1))
        log_det = self.space.log_abs_det(theta, z.flatten(0, 1))
        return self._times_prior(-log_det, theta).unflatten(0, z.shape[:2])

    def _times_prior(self, log_factor: Tensor, theta: Tensor) -> Tensor:
        """A log factor plus the log density of the prior at θ (M, p): (M,), -inf outside, where some priors raise an error."""
        inside = self._inside(theta)
        with seeded(0):
            somewhere = self.prior.sample(torch.Size((1,))).to(theta)
        prior = self.prior.log_prob(torch.where(inside[:, None], theta, somewhere))
        return torch.where(inside, log_factor + prior, -torch.inf)

    def _ratio_at(self, z: Tensor, x: Tensor) -> Tensor:
        theta = self.space.to_theta(z.flatten(0, 1))
        return self._evaluate(theta, x.repeat_interleave(z.shape[1], dim=0)).unflatten(0, z.shape[:2])

    def _evaluate(self, theta: Tensor, x: Tensor) -> Tensor:
        parts = zip(theta.split(self.rows_at_once), x.split(self.rows_at_once), strict=True)
        return torch.cat([self.log_ratio(*part).reshape(-1) for part in parts])

    def _may_leak(self) -> bool:
        return False  # draws are made in z

    def to(self, device: str | torch.device) -> BasePosterior:
        self.space.to(device)
        return super().to(device)


def _effective(log_w: Tensor) -> Tensor:
    """Effective sample size over particles, (B,)."""
    return (2 * log_w.logsumexp(1) - (2 * log_w).logsumexp(1)).exp() / log_w.shape[1]


def of_potential(potential: Any, prior: Distribution) -> PotentialBase | None:
    """The base posterior of sbi's potential, if that is made of a likelihood or ratio estimator."""
    if isinstance(potential, LikelihoodBasedPotential):
        likelihood = potential.likelihood_estimator.eval()
        return PotentialBase(
            lambda theta, x: likelihood.log_prob(x[None], condition=theta)[0],
            prior, torch.Size(likelihood.input_shape), likelihood,
        )  # fmt: skip
    if isinstance(potential, RatioBasedPotential):
        ratio: Any = potential.ratio_estimator.eval()
        return PotentialBase(ratio, prior, torch.Size(ratio.condition_shape), ratio)
    return None
