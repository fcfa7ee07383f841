r"""RSNL: a synthetic likelihood with adjustment parameters ("Misspecification-robust sequential neural likelihood for
simulation-based inference", Kelly et al., 2024), amortised over observations.

\[ s(y) = m(\theta) + \Gamma + \varepsilon, \qquad \varepsilon \sim \mathcal N(0, \Sigma(\theta)), \qquad
   \Gamma_d \sim \mathrm{Laplace}(0, \lambda_d u_d). \]

m and Σ are the output of one network, trained on simulations from the prior by maximum likelihood. The Laplace prior
shrinks the adjustment Γ of a summary that the simulator can match to 0; one that it cannot match is adjusted in place of θ.
What is assumed is that few summaries are off, and that Γ is independent of θ. No pairs are needed.

θ and Γ are sampled jointly for each observation, with Γ integrated out while θ moves. A Laplace error is a scale mixture of
normals (`fmcpe.baselines.scale_mixtures`): given its variances v, s(y) has mean m(θ) and covariance Σ(θ) + diag v. A Gibbs
sweep over v alternates with differential-evolution Metropolis steps of θ, whose proposals are differences of past states of
the observation's own chains (ter Braak and Vrugt, 2008). All chains of many observations run as one batch.

The paper takes λ from the data, 0.3 |s(y)|, standardised by the simulations of earlier rounds. Here there is one round,
whose likelihood serves every observation, and s(y) is standardised by the posterior predictive under λ = 1, from the first
half of the warm-up: with its mean \( \bar m_d \) and deviation \( \bar\sigma_d \),

\[ \lambda_d = 0.3 \max(1, |s_d(y) - \bar m_d| / \bar\sigma_d), \]

in units \( u_d \) of the noise. So a summary is adjusted freely only where the posterior predictive misses it.

MCMC gives draws, not a density: `log_prob` is a kernel density estimate in unconstrained space, of 256 draws.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_observations
from fmcpe._options import is_positive
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.baselines.common import shared_of, simulated_pool, wrapped
from fmcpe.baselines.gaussian_likelihood import GaussianLikelihood
from fmcpe.baselines.scale_mixtures import (
    Summaries,
    chains_at_once,
    laplace_levels,
    log_normal,
    summaries_of,
    sweep,
    with_diagonal,
)
from fmcpe.candidates.base import Posterior, Remembered, Shared
from fmcpe.candidates.prior import log_prior
from fmcpe.nn.importance import systematic
from fmcpe.nn.training import Training, train
from fmcpe.posterior import CorrectedPosterior

LIKELIHOOD = Training(max_num_epochs=40, training_batch_size=256, validation_fraction=0.1)
WARM_UP, THIN, MOVES = 60, 3, 3
"""Sweeps before the first draw of a chain, sweeps between two, and Metropolis steps of θ per sweep."""


class Adjusted(Posterior):
    """p(θ, Γ | y), sampled by MCMC.

    Args:
        shared: Base posterior, space and prior.
        summaries: Standardised summaries.
        likelihood: m and Σ.
        pool: Draws of the prior in z, (L, p), where chains start.
        shrinkage: Scale of the Laplace prior, relative to a summary's distance from the posterior predictive.
    """

    components = 256
    pool: Tensor

    def __init__(
        self, shared: Shared, summaries: Summaries, likelihood: GaussianLikelihood, pool: Tensor, shrinkage: float
    ) -> None:
        super().__init__()
        object.__setattr__(self, "space", shared.space)
        self.prior, self.shrinkage = shared.base.prior, shrinkage
        self.summaries, self.likelihood = summaries, likelihood
        self.register_buffer("pool", pool)
        self._last = Remembered()

    @torch.no_grad()
    def sample(self, y: Tensor, n: int) -> Tensor:
        return self._draws(y, n)[0]

    @torch.no_grad()
    def adjustments(self, y: Tensor, n: int) -> Tensor:
        """Draws of Γ, (B, n, d), in standard deviations of a summary over simulations; NaN for summaries without variance."""
        found = self._draws(y, n)[1]
        everywhere = found.new_full((*found.shape[:2], len(self.summaries.varies)), torch.nan)
        everywhere[..., self.summaries.varies] = found
        return everywhere.float()

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        draws, root = self._last(y, lambda: self._kernels(y))
        white = torch.linalg.solve_triangular(root[:, None], (z[:, :, None] - draws[:, None]).mT, upper=False)
        log_det = root.diagonal(dim1=1, dim2=2).log().sum(1)[:, None]
        each = (-0.5 * white.square().sum(2)).logsumexp(2)
        number, dim = draws.shape[1:]
        return each - log_det - math.log(number) - 0.5 * dim * math.log(2 * math.pi)

    @torch.no_grad()
    def _kernels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Draws, (B, n, p), and Cholesky factors of the kernels' covariance by Silverman's rule: always the same."""
        with seeded(0):
            draws = self.sample(y, self.components)
        number, dim = draws.shape[1:]
        centred = draws - draws.mean(1, keepdim=True)
        covariance = centred.mT @ centred / number + 1e-8 * torch.eye(dim).to(draws)
        width = (4 / ((dim + 2) * number)) ** (1 / (dim + 4))
        return draws, width * torch.linalg.cholesky(covariance)

    def _draws(self, y: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """z, (B, n, p), and Γ, (B, n, d)."""
        chains = min(n, max(8, min(64, n // 8)))
        s = self.summaries(y)
        observations = max(1, chains_at_once(s.shape[1]) // chains)
        parts = [self._chains(part, chains, -(-n // chains)) for part in s.split(observations)]
        z, gamma = (torch.cat(part)[:, :n] for part in zip(*parts, strict=True))
        return z.to(y.dtype), gamma

    def _chains(self, s: Tensor, chains: int, each: int) -> tuple[Tensor, Tensor]:
        """`each` draws of every chain, (B, chains * each, p) and (B, chains * each, d)."""
        batch, dim, rows = len(s), self.pool.shape[1], s.repeat_interleave(chains, dim=0)
        levels, weights = (part.to(s) for part in laplace_levels())
        past = self._starts(s, max(chains, 5 * dim))  # (B, T, p)
        z = past[:, torch.arange(chains) % past.shape[1]].flatten(0, 1)
        mean, covariance = self.likelihood.moments(z)
        first = covariance.diagonal(dim1=1, dim2=2).unflatten(0, (batch, chains)).mean(1)  # squared units (B, d)
        table = first[..., None] * levels
        index = ((rows - mean).square()[..., None] / table.repeat_interleave(chains, 0)).log().abs().argmin(2)
        prior, half = self._log_prior(z), WARM_UP // 2
        means: list[Tensor] = []
        variances: list[Tensor] = []
        kept: list[tuple[Tensor, Tensor]] = []
        for step in range(WARM_UP + THIN * each):
            if step == half:
                table = self._shrunk(s, torch.stack(means), torch.stack(variances))[..., None] * levels
            every = table.repeat_interleave(chains, dim=0)
            v = every.gather(2, index[..., None])[..., 0]
            now, root = log_normal(rows - mean, with_diagonal(covariance, v))
            for _ in range(MOVES):
                there = self._proposal(z, past, chains)
                there_mean, there_covariance = self.likelihood.moments(there)
                there_prior = self._log_prior(there)
                score, there_root = log_normal(rows - there_mean, with_diagonal(there_covariance, v))
                accepted = torch.rand_like(score).log() < score + there_prior - now - prior
                one, two = accepted[:, None], accepted[:, None, None]
                z, mean = torch.where(one, there, z), torch.where(one, there_mean, mean)
                covariance, root = torch.where(two, there_covariance, covariance), torch.where(two, there_root, root)
                now, prior = torch.where(accepted, score, now), torch.where(accepted, there_prior, prior)
            states = z.unflatten(0, (batch, chains))
            # early states are far from stationary: the archive forgets them
            past = torch.cat(
                [past[:, chains if step < WARM_UP and past.shape[1] > 10 * chains else 0 :], states], dim=1
            )
            precision, residual, after = torch.cholesky_inverse(root), rows - mean, step - WARM_UP
            if half // 2 <= step < half:
                means.append(mean.unflatten(0, (batch, chains)))
                variances.append(covariance.diagonal(dim1=1, dim2=2).unflatten(0, (batch, chains)))
            if after >= 0 and after % THIN == 0:
                # Matheron's rule: Γ and ε are drawn, then conditioned on their sum
                noise = torch.linalg.cholesky_ex(covariance)[0] @ torch.randn_like(residual)[..., None]
                gamma = v.sqrt() * torch.randn_like(residual)
                gamma = gamma + v * (precision @ (residual[..., None] - gamma[..., None] - noise))[..., 0]
                kept.append((states, gamma.unflatten(0, (batch, chains))))
            index = sweep(precision, residual, index, every, weights)[0]
        return tuple(torch.stack(part, dim=2).flatten(1, 2) for part in zip(*kept, strict=True))  # type: ignore[return-value]

    def _shrunk(self, s: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        """Squared scales of the Laplace prior, (B, d), from moments at states of the chains, (T, B, C, d)."""
        noise = variances.mean((0, 2))
        predictive = noise + means.movedim(2, 1).flatten(0, 1).var(0, correction=0)
        distance = (s - means.mean((0, 2))).abs() / predictive.sqrt()
        return (self.shrinkage * distance.clamp_min(1.0)).square() * noise

    def _log_prior(self, z: Tensor) -> Tensor:
        """Of z, (R,); minus infinity beyond the range where the map to θ is accurate."""
        value = log_prior(self.prior, self.space, z.float()).double().nan_to_num(-torch.inf)
        return torch.where((z.abs() <= self.space.limit).all(1), value, -torch.inf)

    def _proposal(self, z: Tensor, past: Tensor, chains: int) -> Tensor:
        """Differential evolution with the archive `past`, (B, T, p): one move in ten has full length, to change modes."""
        batch, number, dim = past.shape
        pair = torch.randint(number, (2, batch, chains, 1), device=z.device).expand(-1, -1, -1, dim)
        difference = past.gather(1, pair[0]) - past.gather(1, pair[1])
        length = torch.where(torch.rand(batch, chains, 1).to(z) < 0.1, 1.0, 2.38 / math.sqrt(2 * dim))
        scale = torch.exp(0.5 * torch.randn_like(length))  # lengths vary: the archive may be wider than the target
        return (
            z
            + (length * torch.where(length == 1.0, 1.0, scale) * difference).flatten(0, 1)
            + 1e-3 * torch.randn_like(z)
        )

    def _starts(self, s: Tensor, number: int) -> Tensor:
        """Draws of the prior, picked by a likelihood with adjustments of scale 1 and independent summaries: (B, number, p)."""
        mean, covariance = self.likelihood.moments(self.pool)
        unit = covariance.diagonal(dim1=1, dim2=2).sqrt()
        score = s.new_zeros(len(s), len(mean))
        for j in range(s.shape[1]):
            distance = (s[:, j, None] - mean[:, j]).abs() / unit[:, j]
            score -= torch.where(distance < 1, 0.5 * distance.square(), distance - 0.5) + unit[:, j].log()
        # tempered so that some tens of draws count
        kth = score.kthvalue(score.shape[1] - min(31, score.shape[1] - 1), dim=1, keepdim=True).values
        tempering = (3.0 / (score.amax(1, keepdim=True) - kth).clamp_min(1e-6)).clamp_max(1.0)
        return self.pool.double()[systematic((tempering * score).softmax(1), number)]

    def to_config(self) -> dict[str, Any]:
        size = [self.likelihood.size, self.likelihood.dim]
        return {
            "summary": list(self.summaries.scale.mean.shape),
            "size": size,
            "pool": list(self.pool.shape),
            "shrinkage": self.shrinkage,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Adjusted:
        summaries, (d, dim) = Summaries(shared.base, torch.zeros(2, *config["summary"])), config["size"]
        likelihood = GaussianLikelihood(dim, d)
        return cls(shared, summaries, likelihood, torch.zeros(config["pool"]), config["shrinkage"])


class RSNL:
    r"""Robust synthetic likelihood with adjustment parameters (Kelly et al., 2024).

    \( s(y) = m(\theta) + \Gamma + \varepsilon \) with Gaussian ε of covariance Σ(θ) and a Laplace prior of Γ; m and Σ are
    regressed on θ from simulations, and (θ, Γ) is sampled by MCMC for each observation.

    Args:
        posterior: The base posterior: an sbi posterior, or anything that `as_base_posterior` accepts. Its embedding, if any,
            gives the summaries; its density is not used.
        simulator: The simulator it was trained on; None if `simulations` are given.
        prior: The prior of the simulations, if `posterior` does not hold it.
        shrinkage: Scale of the Laplace prior of an adjustment, relative to the distance of the summary from the posterior
            predictive.
        num_simulations: Simulations that the likelihood is trained on.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        training: Training options of the likelihood.
        device: Device to train and sample on.

    Example:
        >>> method = fmcpe.baselines.RSNL(base, simulator, num_simulations=1000)
        >>> posterior = method.fit(seed=0, show_progress_bars=False)
        >>> posterior.sample((10,), x=y_obs, seed=0).shape
        torch.Size([10, 1])
        >>> method.adjustments(y_test, 20).shape  # draws, observations, summaries
        torch.Size([20, 50, 1])
    """

    POOL = 10_000

    def __init__(
        self,
        posterior: Any,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        *,
        shrinkage: float = 0.3,
        num_simulations: int = POOL,
        simulations: tuple[Any, Any] | None = None,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        self.base, self.simulator = as_base_posterior(posterior, prior).to(device), simulator
        if not is_positive(shrinkage):
            raise ValueError(f"Expected a positive finite number, got shrinkage={shrinkage}. Try shrinkage=0.3.")
        self.shrinkage, self.training = float(shrinkage), training or LIKELIHOOD
        self.num_simulations, self.simulations, self.device = num_simulations, simulations, torch.device(device)
        self._fitted: CorrectedPosterior | None = None

    def fit(
        self, theta: Any = None, y: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Train the likelihood; the pairs are not used.

        Args:
            theta: Not used.
            y: Not used.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        started = time.perf_counter()
        with settled(), seeded(seed):
            parameters, pool = simulated_pool(
                self.base, self.simulator, self.num_simulations, self.simulations, self.device
            )
            parameters, pool = parameters[: self.num_simulations], pool[: self.num_simulations]
            shared = shared_of(self.base)
            shared.space.to(self.device)
            with torch.no_grad():
                summaries = summaries_of(self.base, pool, "RSNL").to(self.device)
                z, s = shared.space.to_z_safely(parameters), summaries(pool).float()
            likelihood = GaussianLikelihood(z.shape[1], s.shape[1]).to(self.device)
            likelihood.start(z, s)
            history = train(
                likelihood,
                lambda rows: likelihood.loss(z[rows], s[rows]),
                len(z),
                self.training,
                "RSNL's likelihood",
                show_progress_bars,
            )
            with torch.no_grad():
                starts = shared.space.to_z_safely(self.base.prior.sample((2000,)).to(z))
            inner = Adjusted(shared, summaries, likelihood.requires_grad_(False), starts, self.shrinkage)
        history["seconds"] = [time.perf_counter() - started]
        self._fitted = wrapped(inner, shared, pool.shape[1:], "RSNL", history, num_pairs=0)
        return self._fitted

    def adjustments(self, y: Any, num_samples: int = 256, *, seed: int | None = 0) -> Tensor:
        """Posterior draws of the adjustment of each summary of each observation; their mean is ``.mean(0)``.

        Args:
            y: Real observations, (B, ...).
            num_samples: Number of draws.
            seed: Makes them reproducible.

        Returns:
            (num_samples, B, d), in standard deviations of a summary over simulations, in the order of the numbers of y, or of
            the embedding's output; NaN for a summary that is the same for all simulations.
        """
        if self._fitted is None:
            raise RuntimeError("Expected a fitted RSNL, got one before fit. Call fit() first.")
        y = as_observations(y, self._fitted.observation_shape).to(self.device)
        inner = self._fitted.inner
        assert isinstance(inner, Adjusted)
        with settled(), seeded(seed):
            return inner.adjustments(y, num_samples).movedim(1, 0)
