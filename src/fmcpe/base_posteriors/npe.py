"""The base posterior: sbi's NPE in unconstrained parameter space, trained in about a minute.

The density estimator (a neural spline flow, ``z_score_theta="transform_to_unconstrained"``) and the posterior are
sbi's. Only the training loop differs: one cycle of the learning rate reaches in tens of seconds what a small constant
rate reaches in ten minutes (``benchmarks/npe_schedule.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior
from sbi.neural_nets import posterior_nn
from sbi.neural_nets.estimators.base import ConditionalDensityEstimator
from sbi.utils import process_prior
from sbi.utils.sbiutils import standardizing_net, within_support
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._checks import CheckedSimulator, as_tensor, parameter_dim
from fmcpe._random import seeded
from fmcpe.base_posteriors.domain_randomisation import distort, draw_levels, on_a_baseline
from fmcpe.base_posteriors.simulation import simulate as run_simulator
from fmcpe.nn.embeddings import WithoutWeights, at_levels, embedding_width, has_weights, level_aware_part, made_aware
from fmcpe.nn.training import Training, train


@dataclass(frozen=True)
class FlowSize:
    """Size of the neural spline flow of the base posterior."""

    hidden_features: int = 64
    num_transforms: int = 3
    num_bins: int = 10


class SimulationsOnDemand:
    """Simulations that do not fit into memory: indexed like a tensor (N, *shape), simulated anew at each access.

    Args:
        simulator: ``theta (N, p) -> x (N, *shape)``.
        theta: The parameters, (N, p).
        shape: Shape of one simulation.
    """

    max_bytes = 2**30
    """Simulations that need at most this much memory are kept in a tensor instead."""

    def __init__(self, simulator: Callable[[Tensor], Tensor], theta: Tensor, shape: torch.Size) -> None:
        self.simulator, self.theta = simulator, theta
        self.shape, self.ndim = torch.Size((theta.shape[0], *shape)), 1 + len(shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self.simulator(self.theta[rows])

    def to(self, device: str) -> SimulationsOnDemand:
        return SimulationsOnDemand(self.simulator, self.theta.to(device), self.shape[1:])


Rows = Tensor | SimulationsOnDemand
"""Data, one row per simulation."""


class NPEPosterior(DirectPosterior):
    """An sbi `DirectPosterior` that can be saved: it stores the flow's size and the untrained `embedding_net`."""

    def __init__(
        self,
        estimator: ConditionalDensityEstimator,
        prior: Distribution,
        flow: FlowSize,
        embedding_net: nn.Module | None,
        history: dict[str, list[float]],
    ) -> None:
        super().__init__(estimator, prior)
        self.flow, self.embedding_net, self.history = flow, embedding_net, history


def build_estimator(
    theta: Tensor, x: Tensor, prior: Distribution, flow: FlowSize, embedding_net: nn.Module | None
) -> ConditionalDensityEstimator:
    """Sbi's neural spline flow over the prior's support, standardised by the statistics of `theta` and `x`."""
    # sbi calls it with a single row, which batch normalisation refuses in training mode
    net = nn.Identity() if embedding_net is None else copy.deepcopy(embedding_net).eval()
    # each number of a vector has its own unit; those of a series or an image share one
    z_score = "independent" if embedding_net is None or x[0].numel() == 1 else "structured"
    if z_score == "structured" and x.shape[1] == 1:
        # sbi would take the standard deviation over the single channel
        net, z_score = nn.Sequential(standardizing_net(x.flatten(1), structured_dims=True), net), "none"
    build = posterior_nn(
        "zuko_nsf",
        z_score_theta="transform_to_unconstrained",
        z_score_x=z_score,
        embedding_net=net if has_weights(net) else WithoutWeights(net),
        x_dist=prior,
        **asdict(flow),
    )
    return build(theta, x)


def train_npe(
    simulator: Callable[[Tensor], Any] | None,
    prior: Distribution,
    num_simulations: int = 50_000,
    embedding_net: nn.Module | None = None,
    seed: int | None = None,
    *,
    simulations: tuple[Any, Any] | None = None,
    dask: Any = None,
    max_num_epochs: int = 20,
    training_batch_size: int = 512,
    learning_rate: float = 5e-3,
    validation_fraction: float = 0.05,
    stop_after_epochs: int = 10,
    clip_max_norm: float = 5.0,
    domain_randomisation: bool | None = None,
    flow: FlowSize | None = None,
    device: str = "cpu",
    show_progress_bars: bool = True,
) -> NPEPosterior:
    """Train a posterior on simulations.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``, called with draws of the prior; None if `simulations` are given.
        prior: Prior over physical θ.
        num_simulations: Number of simulations.
        embedding_net: Network that embeds x, (B, ...) -> (B, features); needed for images, advised for series.
        seed: Makes the training reproducible; torch's generator is left as it was.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        dask: Address of a Dask scheduler, or a client, to simulate on that cluster (`fmcpe.simulate`).
        max_num_epochs: Length of the cycle of the learning rate.
        training_batch_size: Simulations per gradient step.
        learning_rate: Peak of the cycle.
        validation_fraction: Share of the simulations used for early stopping.
        stop_after_epochs: Epochs without improvement before training stops early.
        clip_max_norm: Maximum gradient norm.
        domain_randomisation: Train part of the time on distorted simulations, so that the embedding is robust to
            misspecification (`fmcpe.base_posteriors.domain_randomisation`). Default: if `embedding_net` has weights,
            unless the mean of the data is large against their standard deviation.
        flow: Size of the flow.
        device: Where to train.
        show_progress_bars: Show progress after two seconds.

    Returns:
        An sbi posterior, with the losses in ``.history``.

    Example:
        >>> base = fmcpe.train_npe(simulator, prior, num_simulations=500, max_num_epochs=2, seed=0)
        >>> base.sample((10,), x=y_obs, show_progress_bars=False).shape
        torch.Size([10, 1])
    """
    training = Training(
        max_num_epochs, training_batch_size, learning_rate, validation_fraction, stop_after_epochs, clip_max_norm
    )
    with seeded(seed):  # sbi draws from the prior to check it, and again to build the posterior
        prior = process_prior(prior)[0]
        theta, x = simulate(simulator, prior, num_simulations, simulations, dask, show_progress_bars)
        if domain_randomisation and (embedding_net is None or not has_weights(embedding_net)):
            raise ValueError(
                "Expected an embedding_net with weights for domain_randomisation=True, got none. Pass embedding_net=, "
                "a network to (B, features), or leave domain_randomisation out."
            )
        if domain_randomisation is None:
            with seeded(0):  # simulations on demand consume random numbers
                domain_randomisation = not on_a_baseline(x[:1000])
        if embedding_net is not None and domain_randomisation:
            embedding_width(embedding_net, tuple(x.shape[1:]))
            embedding_net = made_aware(embedding_net)
        return fit_npe(theta, x, prior, embedding_net, flow or FlowSize(), training, device, show_progress_bars)


def fit_npe(
    theta: Tensor,
    x: Rows,
    prior: Distribution,
    embedding_net: nn.Module | None,
    flow: FlowSize,
    training: Training,
    device: str = "cpu",
    show_progress_bars: bool = False,
    *,
    corrupt: Callable[[Tensor], Tensor] | None = None,
    weights: Tensor | None = None,
    num_simulated: int | None = None,
    what: str = "the base posterior",
) -> NPEPosterior:
    """A posterior trained on rows θ (N, p) and x (N, ...), with torch's global generator.

    `prior` is the output of sbi's `process_prior`. `corrupt` is applied to each minibatch of x, but not to the rows
    that standardise it. `weights`, (N,), weight the rows in the loss. Only the first `num_simulated` rows are
    domain-randomised, or all. `what` names the network in the progress bar and in errors.
    """
    if embedding_net is not None:
        embedding_width(embedding_net, tuple(x.shape[1:]))
    elif x.ndim > 2:
        raise ValueError(
            f"Expected an embedding_net for simulations of shape {tuple(x.shape)}, which are not vectors, got none. "
            "Pass embedding_net=, a network to (B, features)."
        )
    theta, x = theta.to(device), x.to(device)
    # 5000 simulations give good statistics where all of them do not fit into memory
    enough = slice(None) if isinstance(x, Tensor) else slice(5000)
    estimator = build_estimator(theta[enough], x[enough], prior, flow, embedding_net).to(device)

    aware, scale = level_aware_part(estimator) is not None, float(x[enough].std())

    def loss(rows: Tensor) -> Tensor:
        data = x[rows] if corrupt is None else corrupt(x[rows])
        if not aware:
            each = estimator.loss(theta[rows], data)
        else:
            levels = draw_levels(len(rows), data.device)
            if num_simulated is not None:
                levels = levels * (rows < num_simulated)[:, None].to(levels)
            with at_levels(estimator, levels):
                each = estimator.loss(theta[rows], distort(data, levels, scale))
        return each if weights is None else each * weights[rows].to(each)

    history = train(estimator, loss, theta.shape[0], training, what, show_progress_bars)
    return NPEPosterior(estimator, prior, flow, embedding_net, history)


def simulate(
    simulator: Callable[[Tensor], Any] | None,
    prior: Distribution,
    number: int,
    given: tuple[Any, Any] | None,
    dask: Any = None,
    show_progress_bars: bool = False,
) -> tuple[Tensor, Rows]:
    """Simulations at draws of the prior, or the given ones after a check: θ (N, p) and x (N, ...)."""
    if given is not None:
        theta, x, dim = as_tensor(given[0], "theta"), as_tensor(given[1], "x"), parameter_dim(prior)
        if theta.ndim != 2 or theta.shape[1] != dim or theta.shape[0] != x.shape[0]:
            raise ValueError(
                f"Expected simulations=(theta, x) of shapes (N, {dim}) and (N, ...) with the same N, got "
                f"{tuple(theta.shape)} and {tuple(x.shape)}. Pass one row per simulation, one column per parameter."
            )
        outside = int((~within_support(prior, theta)).sum())
        if outside:
            raise ValueError(
                f"Expected simulations at theta inside the prior's support, got {outside} of {len(theta)} rows "
                "outside. Pass the prior that the simulations came from."
            )
        return theta, x
    if simulator is None:
        raise ValueError("Expected a simulator or simulations, got neither. Pass simulator= or simulations=(theta, x).")
    if number < 100:
        raise ValueError(f"Expected num_simulations of at least 100, got {number}. Pass 10 000 or more.")
    theta = prior.sample((number,)).to(torch.float32)
    if dask is not None:
        return theta, run_simulator(
            simulator, theta, dask=dask, batch_size=max(1, number // 200), show_progress_bars=show_progress_bars
        )
    checked = CheckedSimulator(simulator, None)
    with seeded(0):  # a call for the shape only must not consume random numbers
        shape = checked(theta[:2]).shape[1:]
    if 4 * number * shape.numel() > SimulationsOnDemand.max_bytes:
        return theta, SimulationsOnDemand(checked, theta, shape)
    return theta, checked(theta)
