r"""J-NPE: one posterior trained on simulations and calibration pairs together.

\[ D = \{(\theta_i, x_i)\}_{i \le N_{sim}} \cup \{(\theta_j, y_j)\}_{j \le N_{cal}}, \]

the plain union of the paper, in which 50 000 simulations outweigh a few pairs; `pair_weight` increases the weight of the
pairs in the loss. Without pairs it equals NPE exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_pairs, as_tensor, refuse_missing
from fmcpe._options import is_positive
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.npe import FlowSize, Rows, SimulationsOnDemand, fit_npe
from fmcpe.baselines.common import SimulationTrained, asked_at_y
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior


class JNPE(SimulationTrained):
    """Joint neural posterior estimation.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``, called with draws of the prior; None if `simulations` are given.
        prior: Prior over physical θ.
        num_simulations: Number of simulations to run.
        embedding_net: Network that summarises the data for the flow.
        pair_weight: Weight of a pair in the loss, relative to a simulation; 1 is the plain union of the paper.
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
        pair_weight: float = 1.0,
        simulations: tuple[Any, Any] | None = None,
        flow: FlowSize | None = None,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(simulator, prior, num_simulations, embedding_net, simulations, flow, training, device)
        if not is_positive(pair_weight):
            raise ValueError(f"Expected a positive finite number, got pair_weight={pair_weight}. Try pair_weight=1.")
        self.pair_weight = pair_weight

    def fit(
        self, theta: Any = None, y: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Train on simulations and pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support; None or N = 0 is allowed.
            y: Real measurements at these parameters, (N, ...), shaped like the simulations.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        started, paired = time.perf_counter(), _has_rows(theta, y)
        with settled(), seeded(seed):
            prior, parameters, x = self._simulate()
            number, weights = 0, None
            if paired:
                theta, y, _ = as_pairs(theta, y, None, prior, x.shape[1:])
                number, simulated = theta.shape[0], parameters.shape[0]
                parameters, x = torch.cat([parameters, theta]), _followed_by(x, y)
                weights = torch.cat([torch.ones(simulated), torch.full((number,), float(self.pair_weight))])
            posterior = fit_npe(
                parameters, x, prior, self._network, self.flow, self.training, self.device, show_progress_bars,
                weights=weights, num_simulated=len(parameters) - number, what="J-NPE",
            )  # fmt: skip
        history = posterior.history | {"seconds": [time.perf_counter() - started]}
        return asked_at_y(as_base_posterior(posterior), x.shape[1:], "J-NPE", history, number)


def _has_rows(theta: Any, y: Any) -> bool:
    """Whether there are pairs; θ without y, or y without θ, is an error before any simulation runs."""
    if theta is None and y is None:
        return False
    refuse_missing(theta, y)
    return any(len(as_tensor(part, name)) > 0 for part, name in ((theta, "theta"), (y, "y")))


def _followed_by(x: Rows, y: Tensor) -> Rows:
    """Rows of x, then rows of y; x stays simulated on demand if it was."""
    if isinstance(x, Tensor):
        return torch.cat([x, y])
    return _SimulationsThenPairs(x, y)


class _SimulationsThenPairs(SimulationsOnDemand):
    def __init__(self, x: SimulationsOnDemand, y: Tensor) -> None:
        super().__init__(x.simulator, x.theta, y.shape[1:])
        self.y = y
        self.shape = torch.Size((x.shape[0] + y.shape[0], *y.shape[1:]))

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        simulated = self.theta.shape[0]
        index = torch.arange(self.shape[0])[rows]
        out = self.y.new_empty(len(index), *self.y.shape[1:])
        paired = index >= simulated
        if not bool(paired.all()):
            out[~paired] = self.simulator.attempt(self.theta[index[~paired]], simulated)[0]
        out[paired] = self.y[index[paired] - simulated]
        return out

    def to(self, device: str) -> SimulationsOnDemand:
        return _SimulationsThenPairs(super().to(device), self.y.to(device))
