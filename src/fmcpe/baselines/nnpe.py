r"""NNPE: a posterior trained on simulations with spike-and-slab noise (Ward et al., 2022).

Noise is added to each component of x, in units of its standard deviation \( s_d \) over the simulations:

\[ x_d \leftarrow x_d + s_d\, \epsilon_d, \qquad
   \epsilon_d \sim (1 - q)\, \mathcal N(0, \sigma^2) + q\, \mathrm{Cauchy}(0, c). \]

It uses no pairs, so it learns nothing about the real process; robustness costs a wider posterior.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._options import is_number
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.npe import FlowSize, fit_npe
from fmcpe.baselines.common import SimulationTrained, asked_at_y
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior

LIMIT = 100.0
"""Noise is clipped to ± this many standard deviations, which affects one draw in 1250 with the default slab: an extreme
Cauchy draw would destabilise training."""


@dataclass(frozen=True)
class SpikeAndSlab:
    """Spike-and-slab noise.

    Args:
        slab_probability: q, the probability of the slab.
        spike: σ of the normal, in standard deviations of the component.
        slab: c of the Cauchy, in the same unit.
    """

    slab_probability: float = 0.5
    spike: float = 0.01
    slab: float = 0.25

    def __post_init__(self) -> None:
        for name, most in (("slab_probability", 1.0), ("spike", math.inf), ("slab", math.inf)):
            value = getattr(self, name)
            if not is_number(value, 0, most) or (name == "slab" and value == 0):
                raise ValueError(f"Expected a positive number of at most {most}, got {name}={value}. Try {name}=0.1.")

    def __call__(self, data: Tensor, scale: Tensor) -> Tensor:
        """Noisy copy of data (B, *shape); `scale` (*shape) is the standard deviation of each component."""
        far = torch.rand_like(data) < self.slab_probability
        slab, spike = torch.empty_like(data).cauchy_(sigma=self.slab), self.spike * torch.randn_like(data)
        return data + scale * torch.where(far, slab, spike).clamp(-LIMIT, LIMIT)


class NNPE(SimulationTrained):
    """Noisy neural posterior estimation.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``, called with draws of the prior; None if `simulations` are given.
        prior: Prior over physical θ.
        num_simulations: Number of simulations to run.
        embedding_net: Network that summarises the data for the flow.
        noise: The noise, drawn anew for every minibatch.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        flow: Size of the flow.
        training: Training options; those of `fmcpe.train_npe` by default.
        device: Device to train on.
    """

    def __init__(
        self,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        num_simulations: int = 50_000,
        embedding_net: nn.Module | None = None,
        *,
        noise: SpikeAndSlab | None = None,
        simulations: tuple[Any, Any] | None = None,
        flow: FlowSize | None = None,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(simulator, prior, num_simulations, embedding_net, simulations, flow, training, device)
        self.domain_randomisation = False  # no noise but the method's own
        self.noise = noise or SpikeAndSlab()

    def fit(
        self, theta: Any = None, y: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Train on noisy simulations; the pairs are not used.

        Args:
            theta: Not used.
            y: Not used.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        started = time.perf_counter()
        with settled(), seeded(seed):
            prior, parameters, x = self._simulate()
            scale = x[slice(5000)].std(0).to(self.device)
            # a component that is constant in simulations has no scale, but may vary in real data
            scale = torch.where(scale > 0, scale, scale.mean())
            posterior = fit_npe(
                parameters, x, prior, self._network, self.flow, self.training, self.device, show_progress_bars,
                corrupt=lambda data: self.noise(data, scale), what="NNPE",
            )  # fmt: skip
        history = posterior.history | {"seconds": [time.perf_counter() - started]}
        return asked_at_y(as_base_posterior(posterior), x.shape[1:], "NNPE", history, num_pairs=0)
