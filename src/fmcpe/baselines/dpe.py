"""DPE: neural posterior estimation on the calibration pairs alone, without the simulator.

It converges to the true posterior as the number of pairs grows. With few pairs, early stopping is its only regularisation.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_pairs, sbi_prior
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.npe import FlowSize, fit_npe
from fmcpe.baselines.common import asked_at_y
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior

FEW_PAIRS = Training(
    max_num_epochs=500,
    training_batch_size=100,
    learning_rate=1e-3,
    validation_fraction=0.2,
    stop_after_epochs=30,
    one_cycle=False,
)
"""Early stopping on a fifth of the pairs. A one-cycle schedule would need the number of epochs in advance."""

SMALL_FLOW = FlowSize(hidden_features=32, num_transforms=3, num_bins=5)


class DPE:
    """Direct posterior estimation: neural posterior estimation on the pairs.

    Args:
        prior: Prior over physical θ; its support bounds the draws.
        embedding_net: Network that summarises y before the flow sees it; needed for images, advised for series.
        flow: Size of the flow.
        training: Training options.
        device: Device to train on.
    """

    def __init__(
        self,
        prior: Distribution,
        embedding_net: nn.Module | None = None,
        *,
        flow: FlowSize | None = None,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        self.prior, self.embedding_net, self.device = prior, embedding_net, device
        self.flow, self.training = flow or SMALL_FLOW, training or FEW_PAIRS

    def fit(
        self, theta: Any, y: Any, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Train on the pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support.
            y: Real measurements at these parameters, (N, ...).
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        started = time.perf_counter()
        with settled(), seeded(seed):
            prior = sbi_prior(self.prior)
            theta, y, _ = as_pairs(theta, y, None, prior, None)
            posterior = fit_npe(
                theta, y, prior, self.embedding_net, self.flow, self.training, self.device, show_progress_bars, what="DPE"
            )  # fmt: skip
        history = posterior.history | {"seconds": [time.perf_counter() - started]}
        return asked_at_y(as_base_posterior(posterior), torch.Size(y.shape[1:]), "DPE", history, theta.shape[0])
