r"""MF-NPE: the simulation-trained estimator, fine-tuned on the calibration pairs (Krouglova et al., 2025).

A copy of \( \hat p(\theta | x) \), embedding included, is trained further on \( -\log \hat p(\theta_j | X = y_j) \) at a low
learning rate, with early stopping on a held-out fifth of the pairs.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from sbi.inference.posteriors import DirectPosterior
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_pairs
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import DensityBase
from fmcpe.baselines.common import asked_at_y
from fmcpe.nn.training import Training, train
from fmcpe.posterior import CorrectedPosterior

FINE_TUNING = Training(
    max_num_epochs=1000,
    training_batch_size=100,
    learning_rate=5e-4,
    validation_fraction=0.2,
    stop_after_epochs=30,
    one_cycle=False,
    keep_start=True,
)
"""A tenth of the peak learning rate of the base posterior; early stopping may keep the initial weights."""


class MFNPE:
    """Multi-fidelity neural posterior estimation.

    Args:
        posterior: The base posterior, from `fmcpe.train_npe` or any sbi `DirectPosterior`. It is copied, not changed.
        prior: The prior of the pairs, if it differs from that of `posterior`.
        training: Training options.
        device: Device to train on.
    """

    def __init__(
        self,
        posterior: Any,
        prior: Distribution | None = None,
        *,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        estimator = None
        if isinstance(posterior, DensityBase):
            posterior, prior, estimator = posterior.posterior, prior or posterior.prior, posterior.estimator
        if not isinstance(posterior, DirectPosterior):
            raise TypeError(
                f"Expected an sbi DirectPosterior, whose density estimator can be fine-tuned, got a "
                f"{type(posterior).__name__}. Train one with fmcpe.train_npe(simulator, prior), or with sbi's NPE."
            )
        self.posterior, self.prior = posterior, prior or posterior.prior
        self.estimator = estimator or posterior.posterior_estimator
        self.training, self.device = training or FINE_TUNING, device

    def fit(
        self, theta: Any, y: Any, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Fine-tune on the pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support.
            y: Real measurements at these parameters, (N, ...), shaped like the simulator's output.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        base = DensityBase(self.posterior, self.prior, copy.deepcopy(self.estimator))
        assert base.x_shape is not None
        theta, y, _ = as_pairs(theta, y, None, self.prior, base.x_shape)
        theta, y = theta.to(self.device), y.to(self.device)
        estimator = base.estimator.to(self.device).requires_grad_(True)

        def loss(rows: Tensor) -> Tensor:
            return estimator.loss(theta[rows], y[rows])

        started = time.perf_counter()
        with settled(), seeded(seed):
            history = train(estimator, loss, theta.shape[0], self.training, "MF-NPE", show_progress_bars)
        history["seconds"] = [time.perf_counter() - started]
        return asked_at_y(base, base.x_shape, "MF-NPE", history, theta.shape[0])
