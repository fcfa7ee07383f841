"""Code shared by the baselines: wrapping a posterior, real observations without θ, and simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._checks import as_unlabelled, parameter_dim, sbi_prior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.base_posteriors.npe import FlowSize, Rows, simulate
from fmcpe.base_posteriors.rows import that_worked
from fmcpe.candidates.base import Posterior, Shared, Transported
from fmcpe.nn.embeddings import made_aware
from fmcpe.nn.training import Training
from fmcpe.posterior import CorrectedPosterior
from fmcpe.record import Record
from fmcpe.spaces import ParameterSpace


def asked_at_y(
    base: BasePosterior, shape: torch.Size, method: str, history: dict[str, list[float]], num_pairs: int
) -> CorrectedPosterior:
    r"""\( \hat p(\theta | X = y) \): the posterior evaluated at y as if y were simulated.

    Args:
        base: The posterior.
        shape: Shape of one observation.
        method: Name of the method.
        history: Losses, and the fit time in seconds.
        num_pairs: Number of calibration pairs used.
    """
    shared = shared_of(base)
    return wrapped(Transported(base.summarised(), shared.space), shared, shape, method, history, num_pairs)


def shared_of(base: BasePosterior) -> Shared:
    """The components that all parts of a posterior on this base share."""
    return Shared(base, ParameterSpace.of(base.prior), base.prior, torch.zeros(0, parameter_dim(base.prior)))


def wrapped(
    inner: Posterior, shared: Shared, shape: torch.Size, method: str, history: dict[str, list[float]], num_pairs: int
) -> CorrectedPosterior:
    """Wrap a posterior over z as a `CorrectedPosterior`; `history["seconds"]` holds the fit time."""
    record = Record(method, num_pairs, history.pop("seconds", [0.0])[0], history)
    return CorrectedPosterior(inner, shared, shape, record)


def with_unlabelled(y: Tensor, more: Any) -> Tensor:
    """All real observations: those of the pairs, and those without θ."""
    return y if more is None else torch.cat([y, as_unlabelled(more, y)])


def simulated_pool(
    base: BasePosterior,
    simulator: Callable[[Tensor], Any] | None,
    number: int,
    given: tuple[Any, Any] | None,
    device: torch.device,
    y: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finite simulations at draws of the prior, or the given ones: θ (K, p), and x (K, ...) in the shape of real data y."""
    theta, rows = simulate(simulator, base.prior, number, given)
    theta, x = that_worked(theta.to(device), rows[:].to(device))
    shape = tuple(x.shape[1:])
    if y is not None and y.shape[1:] != shape:
        raise ValueError(
            f"Expected y with rows of shape {shape}, as the simulations have, got y of shape {tuple(y.shape)}. Bring each row "
            "of y into that shape, or pass simulations of its shape."
        )
    if base.raw_shape not in (None, x.shape[1:]):
        raise ValueError(
            f"Expected simulations with rows of shape {tuple(base.raw_shape or ())}, as the posterior was trained on, got "
            f"{shape}. Pass the simulator, or simulations, that it was trained on."
        )
    refuse_overflow(x)
    return theta, x


def refuse_overflow(x: Tensor) -> None:
    """Refuse simulations, or summaries of them, (K, ...), with a variance that single precision does not hold."""
    if not bool(torch.isfinite(x.flatten(1).var(0)).all()):
        raise ValueError(
            f"Expected simulations whose variance single precision holds, got values up to {float(x.abs().max()):.3g}. Choose "
            "a larger unit, the same for simulations and measurements, or leave out the extreme ones."
        )


class SimulationTrained:
    """Base class of `NNPE`, `NPERS` and `JNPE`, which train their own posterior on simulations."""

    def __init__(
        self,
        simulator: Callable[[Tensor], Any] | None,
        prior: Distribution | None,
        num_simulations: int,
        embedding_net: nn.Module | None,
        simulations: tuple[Any, Any] | None,
        flow: FlowSize | None,
        training: Training | None,
        device: str,
    ) -> None:
        if prior is None:
            raise ValueError(
                f"Expected the prior of the simulations, got prior=None. Call {type(self).__name__}(simulator, prior)."
            )
        self.simulator, self.prior, self.num_simulations = simulator, prior, num_simulations
        self.embedding_net, self.simulations = embedding_net, simulations
        # same as `fmcpe.train_npe`, so that only the method differs from the base posterior
        self.domain_randomisation = True
        self.flow, self.training, self.device = flow or FlowSize(), training or Training(), device

    @property
    def _network(self) -> nn.Module | None:
        """The embedding network, conditioned on the noise level under domain randomisation."""
        return made_aware(self.embedding_net) if self.domain_randomisation else self.embedding_net

    def _simulate(self) -> tuple[Distribution, Tensor, Rows]:
        """The prior in sbi's form, θ and x, drawn in the same order as by `fmcpe.train_npe`."""
        prior = sbi_prior(self.prior)
        return prior, *simulate(self.simulator, prior, self.num_simulations, self.simulations)
