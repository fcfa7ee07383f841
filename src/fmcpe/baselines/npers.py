r"""NPE-RS: a posterior trained on summaries whose distribution is the same for simulations and real data ("Learning robust
statistics for simulation-based inference under model misspecification", Huang et al., 2023).

The embedding h and the flow are trained together on simulations, with a penalty of the distance between summaries of
simulations and of real observations, whose θ need not be known:

\[ -\frac1N \sum_i \log \hat p(\theta_i | h(x_i)) + \lambda\, \mathrm{MMD}^2(\{h(x_i)\}, \{h(y_j)\}). \]

λ = 0 is NPE. With λ → ∞ the summaries say nothing, and the answer is the prior. In between, the summaries forget the directions
of the data in which simulations and real observations differ, as far as θ can do without them.

The paper infers one θ from many replicates, so that \( \{h(y_j)\} \) is a single summary. Here each observation has its own θ,
and the penalty compares the distribution of all real observations with that of simulations from the prior: it takes a
difference of their θ for an error of the simulator, too. MMD is the V-statistic of the paper, with kernels of three widths in
place of one, in units of the spread of the simulated summaries (`mmd2_between`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from sbi.utils.sbiutils import standardizing_net
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import as_tensor, finite_rows, parameter_dim
from fmcpe._options import is_number
from fmcpe._random import seeded
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.base_posteriors.npe import FlowSize, Penalty, Rows, Summarise, fit_npe
from fmcpe.baselines.common import SimulationTrained, asked_at_y, with_unlabelled
from fmcpe.nn.embeddings import embedding_for, has_weights, is_vector
from fmcpe.nn.mmd import squared_distances
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior


class NPERS(SimulationTrained):
    """NPE with robust statistics.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``, called with draws of the prior; None if `simulations` are given.
        prior: Prior over physical θ.
        num_simulations: Number of simulations to run.
        embedding_net: Network that summarises the data for the flow. By default that of `fmcpe.nn.embeddings.embedding_for`,
            for vectors too, with 2p features.
        weight: λ, the weight of the penalty.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        flow: Size of the flow.
        training: Training options; those of `fmcpe.train_npe` by default.
        device: Device to train on.

    Example:
        >>> method = fmcpe.baselines.NPERS(simulator, prior, 500, training=fmcpe.nn.training.Training(max_num_epochs=2))
        >>> posterior = method.fit(y_unlabelled=y_test, seed=0, show_progress_bars=False)
        >>> posterior.sample((10,), x=y_obs, seed=0).shape
        torch.Size([10, 1])
    """

    BATCH = 256
    """Real observations in one minibatch."""

    def __init__(
        self,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        num_simulations: int = 50_000,
        embedding_net: nn.Module | None = None,
        *,
        weight: float = 1.0,
        simulations: tuple[Any, Any] | None = None,
        flow: FlowSize | None = None,
        training: Training | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(simulator, prior, num_simulations, embedding_net, simulations, flow, training, device)
        self.domain_randomisation = False  # robust by the penalty alone
        if not is_number(weight, 0, math.inf):
            raise ValueError(f"Expected a finite number of at least 0, got weight={weight}. Try weight=1.")
        if embedding_net is not None and not has_weights(embedding_net):
            raise ValueError(
                "Expected an embedding_net with weights, got one without, whose output no penalty can change. Leave "
                "embedding_net out for the default one."
            )
        self.weight = float(weight)

    def fit(
        self,
        theta: Any = None,
        y: Any = None,
        *,
        y_unlabelled: Any = None,
        seed: int | None = None,
        show_progress_bars: bool = True,
    ) -> CorrectedPosterior:
        """Train on simulations, with the penalty on real observations.

        Args:
            theta: Not used.
            y: Real measurements, (M, ...), shaped like the simulator's output: those of the pairs.
            y_unlabelled: Real measurements at unknown parameters, (M', ...). One of both is needed, unless the weight is 0.
            seed: Makes the fit reproducible; torch's global generator is restored.
            show_progress_bars: Whether to show progress after two seconds.
        """
        real = _real(y, y_unlabelled)
        if real is None and self.weight > 0:
            raise ValueError(
                f"Expected real observations for weight={self.weight:g}, got none. Call fit(y_unlabelled=...), or "
                "fit(theta, y)."
            )
        started = time.perf_counter()
        with settled(), seeded(seed):
            prior, parameters, x = self._simulate()
            if real is not None and real.shape[1:] != x.shape[1:]:
                raise ValueError(
                    f"Expected real observations of shape (M, {', '.join(map(str, x.shape[1:]))}), like the simulations, got "
                    f"{tuple(real.shape)}. Pass one row per observation."
                )
            net = self._network or _default_embedding(x, 2 * parameter_dim(prior))
            penalty = None if real is None or self.weight == 0 else self._penalty(real.to(self.device))
            posterior = fit_npe(
                parameters, x, prior, net, self.flow, self.training, self.device, show_progress_bars, penalty=penalty,
                what="NPE-RS",
            )  # fmt: skip
        history = posterior.history | {"seconds": [time.perf_counter() - started]}
        return asked_at_y(as_base_posterior(posterior), x.shape[1:], "NPE-RS", history, num_pairs=0)

    def _penalty(self, real: Tensor) -> Penalty:
        """λ MMD² of a minibatch of simulations and one of real observations."""

        def penalty(summarise: Summarise, x: Tensor) -> Tensor:
            y = real
            if len(y) > self.BATCH:
                y = y[torch.randint(len(y), (self.BATCH,), device=y.device)]
            # one batch: a layer that normalises batches must not hide the difference
            summaries = summarise(torch.cat([x, y]))
            return self.weight * mmd2_between(summaries[: len(x)], summaries[len(x) :])

        return penalty


def mmd2_between(s: Tensor, t: Tensor, widths: tuple[float, ...] = (0.5, 1.0, 2.0)) -> Tensor:
    """MMD² between summaries of simulations s (B, d) and of real observations t (M, d), in units of the spread of s.

    The unit follows s in the gradient, so that neither shrinking nor stretching all summaries lowers the penalty. Where t lies
    far away, the kernels are as wide as the distance (constant in the gradient): narrow ones would have no gradient there.
    Widths are in units of the root mean square distance to the mean.
    """
    centre, unit = s.mean(0), s.var(0, correction=0).sum().clamp_min(1e-12).sqrt()
    s, t = (s - centre) / unit, (t - centre) / unit
    far = float(t.detach().square().sum(1).mean().clamp_min(1.0))
    squares, total = [squared_distances(*pair) for pair in ((s, s), (t, t), (s, t))], s.new_zeros(())
    for width in widths:
        ss, tt, st = (torch.exp(each / (-2 * width**2 * far)).mean() for each in squares)
        total = total + ss + tt - 2 * st
    return total / len(widths)


def _real(y: Any, y_unlabelled: Any) -> Tensor | None:
    """All real observations, with or without θ; None if there is not one."""
    name, first, more = ("y_unlabelled", y_unlabelled, None) if y is None else ("y", y, y_unlabelled)
    if first is None:
        return None
    real = as_tensor(first, name, rows=5)
    real = with_unlabelled(real[:, None] if real.ndim == 1 else real, more)
    return real if len(real) else None


def _default_embedding(x: Rows, features: int) -> nn.Module:
    """The embedding for the shape of x; the numbers of a vector, which have units of their own, are standardised first."""
    shape = tuple(x.shape[1:])
    net: nn.Module = embedding_for(shape, features)
    if not is_vector(shape) or shape[0] == 1:
        return net
    # before it, sbi subtracts one mean and divides by one standard deviation
    some = x[slice(5000)]
    some = some[finite_rows(some)]
    some = standardizing_net(some, structured_dims=True)(some)
    mean, std = some.mean(0), some.std(0)
    std = torch.where(std > 0, std, 1.0)
    scale = nn.Linear(len(mean), len(mean)).requires_grad_(False)
    scale.weight.copy_(torch.diag(1 / std))
    scale.bias.copy_(-mean / std)
    return nn.Sequential(scale, net)
