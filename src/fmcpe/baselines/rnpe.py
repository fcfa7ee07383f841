r"""RNPE: the observation is denoised under a spike-and-slab error model before the base posterior sees it ("Robust neural
posterior estimation and statistical model criticism", Ward et al., 2022).

For standardised summaries s(y) of the real data and s(x) of simulations,

\[ s_d(y) = s_d(x) + e_d, \qquad e_d \sim (1 - q)\, \mathcal N(0, \sigma^2) + q\, \mathrm{Cauchy}(0, c), \qquad
   p(\theta | y) = \int \hat p(\theta | x)\, p(x | y)\, dx, \]

with q = 1/2, σ = 0.01 and c = 0.25 as in the paper. p(x | y) ∝ p(y | x) p(x) is sampled for each observation. No pairs are
needed: what is assumed is that errors are sparse, independent between summaries and independent of θ.

The paper fits a flow to p(x) and runs mixed Hamiltonian Monte Carlo, 120 000 steps for one observation. Here p(x) is a mixture
of normals with full covariances, with the number of components of lowest BIC, and the Cauchy is a scale mixture of normals
(`fmcpe.baselines.scale_mixtures`). Then x can be integrated out, and a Gibbs sampler alternates between the indicator and the
scale of each summary, and the component; x is drawn exactly given these. Several hundred chains run as one batch. The width of
the spike is annealed from 1 to σ during warm-up.

Summaries are what the base posterior is conditioned on: the output of its embedding, or raw data of at most 64 numbers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_observations
from fmcpe._options import check_whole
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.baselines.common import shared_of, simulated_pool, wrapped
from fmcpe.baselines.nnpe import SpikeAndSlab
from fmcpe.baselines.scale_mixtures import (
    Summaries,
    cauchy_levels,
    chains_at_once,
    log_normal,
    summaries_of,
    sweep,
    with_diagonal,
)
from fmcpe.candidates.base import Shared, Transported, base_of
from fmcpe.posterior import CorrectedPosterior
from fmcpe.spaces import ParameterSpace

WARM_UP, THIN = 40, 2
"""Sweeps before the first draw of a chain, and between two."""


class Denoised(Transported):
    """The base posterior at denoised observations.

    Args:
        base: The base posterior, as a function of its summary.
        space: Physical θ <-> z.
        summaries: Standardised summaries.
        weights: Of the components of p(s(x)), (K,).
        means: Of the components, (K, d).
        covariances: Of the components, (K, d, d).
        error: The error model, in standard deviations of a summary.
    """

    is_random = True
    weights: Tensor
    means: Tensor
    covariances: Tensor

    def __init__(
        self,
        base: BasePosterior,
        space: ParameterSpace,
        summaries: Summaries,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor,
        error: SpikeAndSlab,
    ) -> None:
        super().__init__(base, space)
        self.summaries, self.error = summaries, error
        for name, value in (("weights", weights), ("means", means), ("covariances", covariances)):
            self.register_buffer(name, value.double())

    @torch.no_grad()
    def source(self, y: Tensor, n: int) -> Tensor:
        """Denoised summaries, (B, n, *summary)."""
        return self.summaries.restore(self._denoise(y, n)[0], y)

    @torch.no_grad()
    def misspecification_probability(self, y: Tensor, num_samples: int = 256) -> Tensor:
        """Posterior probability that a summary's error is from the slab, (B, d); NaN for summaries without variance."""
        found = self._denoise(y, num_samples)[1]
        everywhere = found.new_full((len(y), len(self.summaries.varies)), torch.nan)
        everywhere[:, self.summaries.varies] = found
        return everywhere.float()

    def _denoise(self, y: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Draws of s(x), (B, n, d), and the probabilities of the slab, (B, d)."""
        s = self.summaries(y)
        chains = min(n, max(8, min(256, n // 8)))
        observations = max(1, chains_at_once(s.shape[1]) // chains)
        parts = [self._chains(part, chains, -(-n // chains)) for part in s.split(observations)]
        return torch.cat([x for x, _ in parts])[:, :n], torch.cat([p for _, p in parts])

    def _chains(self, s: Tensor, chains: int, each: int) -> tuple[Tensor, Tensor]:
        """`each` draws of every chain, (B, chains * each, d)."""
        batch, rows = len(s), s.repeat_interleave(chains, dim=0)
        scale, q = cauchy_levels(self.error.slab), max(self.error.slab_probability, 1e-12)
        levels = torch.cat([scale[0].new_zeros(1), scale[0]]).to(rows)
        prior = torch.cat([scale[1].new_tensor([np.log(max(1 - q, 1e-300))]), scale[1] + np.log(q)]).to(rows)
        # start: all errors from the slab, at the scale that the observation's distance to the mean suggests
        middle = self.weights @ self.means
        distance = (rows - middle).square().clamp(1e-2, None).log()
        index = 1 + (distance[..., None] - levels[1:].log()).abs().argmin(2)
        draws, found = [], torch.zeros_like(s)
        for step in range(WARM_UP + THIN * each):
            annealed = max(0.0, 1 - step / (0.75 * WARM_UP))
            levels[0] = max(self.error.spike, 1e-4) ** (2 * (1 - annealed))
            v = levels[index]
            if step % 4 == 0:
                component = self._components(rows, v)
            mean, covariance = self.means[component], self.covariances[component]
            precision = torch.cholesky_inverse(torch.linalg.cholesky_ex(with_diagonal(covariance, v))[0])
            residual = rows - mean
            kept = step - WARM_UP
            if kept >= 0 and kept % THIN == 0:
                # Matheron's rule: a draw of the prior and of the error, conditioned on their sum
                root = torch.linalg.cholesky_ex(covariance)[0]
                x0 = (root @ torch.randn_like(residual)[..., None])[..., 0]
                gap = residual - x0 - v.sqrt() * torch.randn_like(residual)
                x = mean + x0 + (covariance @ (precision @ gap[..., None]))[..., 0]
                draws.append(x.unflatten(0, (batch, chains)))
            index, slab = sweep(precision, residual, index, levels.expand(1, rows.shape[1], -1), prior)
            if kept >= 0:
                found += slab.unflatten(0, (batch, chains)).mean(1) / (THIN * each)
        return torch.stack(draws, dim=2).flatten(1, 2), found

    def _components(self, rows: Tensor, v: Tensor) -> Tensor:
        """Components drawn given the variances of the errors, (R,)."""
        if len(self.weights) == 1:
            return torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        scores = [
            weight.log() + log_normal(rows - mean, with_diagonal(covariance, v))[0]
            for weight, mean, covariance in zip(self.weights, self.means, self.covariances, strict=True)
        ]
        score = torch.stack(scores, dim=1)
        return (score - torch.empty_like(score).exponential_().log()).argmax(1)

    def to_config(self) -> dict[str, Any]:
        error = [self.error.slab_probability, self.error.spike, self.error.slab]
        shape, size = list(self.summaries.scale.mean.shape), list(self.means.shape)
        return super().to_config() | {"summary": shape, "size": size, "error": error}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Denoised:
        base, (k, d) = base_of(config, shared), config["size"]
        summaries = Summaries(base, torch.zeros(2, *config["summary"]))
        means, covariances, error = torch.zeros(k, d), torch.zeros(k, d, d), SpikeAndSlab(*config["error"])
        return cls(base, shared.space, summaries, torch.zeros(k), means, covariances, error)


class RNPE:
    r"""Robust neural posterior estimation (Ward et al., 2022).

    \( p(\theta | y) = \int \hat p(\theta | x)\, p(x | y)\, dx \), where each standardised summary of y is that of x plus an
    error with a spike-and-slab distribution.

    Args:
        posterior: The base posterior: an sbi posterior, or anything that `as_base_posterior` accepts.
        simulator: The simulator it was trained on; None if `simulations` are given.
        prior: The prior of the simulations, if `posterior` does not hold it.
        error: The error model; its numbers are in standard deviations of a summary over simulations.
        num_simulations: Simulations that p(x) is fitted to.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        max_components: Largest number of components of p(x).
        device: Device to sample on.

    Example:
        >>> method = fmcpe.baselines.RNPE(base, simulator)
        >>> posterior = method.fit(seed=0, show_progress_bars=False)
        >>> posterior.sample((10,), x=y_obs, seed=0).shape
        torch.Size([10, 1])
        >>> method.misspecification_probability(y_test).shape  # of each summary
        torch.Size([50, 1])
    """

    POOL = 5000

    def __init__(
        self,
        posterior: Any,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        *,
        error: SpikeAndSlab | None = None,
        num_simulations: int = POOL,
        simulations: tuple[Any, Any] | None = None,
        max_components: int = 16,
        device: str = "cpu",
    ) -> None:
        self.base, self.simulator = as_base_posterior(posterior, prior).to(device), simulator
        check_whole("max_components", max_components, 1, 16)
        if not isinstance(error, SpikeAndSlab | None):
            raise TypeError(
                f"Expected a SpikeAndSlab as error, got a {type(error).__name__}. Try error=SpikeAndSlab()."
            )
        self.error, self.max_components = error or SpikeAndSlab(), max_components
        self.num_simulations, self.simulations, self.device = num_simulations, simulations, torch.device(device)
        self._fitted: CorrectedPosterior | None = None

    def fit(
        self, theta: Any = None, y: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Fit p(x) to simulations; the pairs are not used.

        Args:
            theta: Not used.
            y: Not used.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Not used.
        """
        started = time.perf_counter()
        with settled(), seeded(seed), torch.no_grad():
            pool = simulated_pool(self.base, self.simulator, self.num_simulations, self.simulations, self.device)[1]
            pool = pool[: self.num_simulations]
            summaries = summaries_of(self.base, pool, "RNPE").to(self.device)
            mixture = _mixture(summaries(pool).cpu().numpy(), self.max_components)
            weights, means, covariances = (torch.as_tensor(part, device=self.device) for part in mixture)
            shared = shared_of(self.base)
            working, space = self.base.summarised(), shared.space.to(self.device)
            inner = Denoised(working, space, summaries, weights, means, covariances, self.error)
        history = {"seconds": [time.perf_counter() - started]}
        self._fitted = wrapped(inner, shared, pool.shape[1:], "RNPE", history, num_pairs=0)
        return self._fitted

    def misspecification_probability(self, y: Any, num_samples: int = 256, *, seed: int | None = 0) -> Tensor:
        """Posterior probability that each summary of each observation is misspecified.

        Args:
            y: Real observations, (B, ...).
            num_samples: Draws of the chains that estimate it.
            seed: Makes it reproducible.

        Returns:
            (B, d), in the order of the numbers of y, or of the embedding's output; NaN for a summary that is the same for all
            simulations.
        """
        if self._fitted is None:
            raise RuntimeError("Expected a fitted RNPE, got one before fit. Call fit() first.")
        y = as_observations(y, self._fitted.observation_shape).to(self.device)
        inner = self._fitted.inner
        assert isinstance(inner, Denoised)
        with settled(), seeded(seed):
            return inner.misspecification_probability(y, num_samples)


def _mixture(s: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and covariances of the mixture of normals of lowest BIC, of 1, 2, 4, ... components."""
    if len(s) <= s.shape[1]:
        raise ValueError(
            f"Expected more simulations than summaries for RNPE, got {len(s)} of {s.shape[1]} numbers. Pass more, better "
            "thousands."
        )
    best, number = None, 1
    while number <= most and number * s.shape[1] < len(s):
        model = GaussianMixture(number, reg_covar=1e-5, max_iter=50, random_state=int(torch.randint(2**31, ())))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            score = model.fit(s).bic(s)
        if best is not None and score > best[0]:
            break
        best, number = (score, model), 2 * number
    assert best is not None
    return best[1].weights_, best[1].means_, best[1].covariances_
