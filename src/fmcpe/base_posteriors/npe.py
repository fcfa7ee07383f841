"""The base posterior: sbi's NPE in unconstrained parameter space, with a schedule that trains it in a minute.

The density estimator is sbi's own (a neural spline flow, ``z_score_theta="transform_to_unconstrained"``), and so is the
posterior that comes back. Only the loop differs: one cycle of the learning rate, up to a high peak and down to zero,
reaches in tens of seconds what a small fixed rate reaches in ten minutes (``benchmarks/npe_schedule.py``).
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
from fmcpe.nn.embeddings import WithoutWeights, embedding_width, has_weights, level_aware_part, made_aware
from fmcpe.nn.training import Training, train


@dataclass(frozen=True)
class FlowSize:
    """The neural spline flow of the base posterior.

    Args:
        hidden_features: Width of its conditioners.
        num_transforms: Number of autoregressive transforms.
        num_bins: Bins of each spline.
    """

    hidden_features: int = 64
    num_transforms: int = 3
    num_bins: int = 10


_LOOKED_AT = 1000
_MAX_BYTES = 2**30
"""Simulations that need more memory than this are not kept."""


class SimulationsOnDemand:
    """Simulations too large to keep, run anew for each minibatch at the same θ: indexed like the tensor they would be.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``.
        theta: The parameters, (N, p).
        shape: Shape of one simulation.
    """

    def __init__(self, simulator: Callable[[Tensor], Tensor], theta: Tensor, shape: torch.Size) -> None:
        self.simulator, self.theta = simulator, theta
        self.shape, self.ndim = torch.Size((theta.shape[0], *shape)), 1 + len(shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self.simulator(self.theta[rows])

    def to(self, device: str) -> SimulationsOnDemand:
        """The same with θ, and so what the simulator returns, on another device."""
        return SimulationsOnDemand(self.simulator, self.theta.to(device), self.shape[1:])


Rows = Tensor | SimulationsOnDemand
"""Data, one row per simulation."""


class NPEPosterior(DirectPosterior):
    """An sbi `DirectPosterior` that remembers how its network was built, so that it can be saved.

    Args:
        estimator: The trained density estimator.
        prior: The prior of the simulations.
        flow: The size of the flow.
        embedding_net: The network that summarises x, as the user gave it, before training.
        history: Losses by epoch.
    """

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
    # sbi tries it on a single row, which layers that normalise a batch refuse while they train
    net = nn.Identity() if embedding_net is None else copy.deepcopy(embedding_net).eval()
    # numbers of a vector have units of their own; those of a series or an image share one, if there are several
    z_score = "independent" if embedding_net is None or x[0].numel() == 1 else "structured"
    if z_score == "structured" and x.shape[1] == 1:
        # sbi would take the deviation over the channels, of which there is one
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
        num_simulations: How many simulations to run.
        embedding_net: Network that summarises x before the flow sees it; needed for images and advised for series.
        seed: Makes the training reproducible; torch's global generator is left as it was.
        simulations: ``(theta, x)`` that were run before, in place of the simulator.
        dask: Address of a Dask scheduler, or a client: the simulations are run on that cluster, see `fmcpe.simulate`.
        max_num_epochs: Length of the schedule: the rate rises to `learning_rate` and falls to zero over so many epochs.
        training_batch_size: Simulations per gradient step.
        learning_rate: Peak of the schedule.
        validation_fraction: Share of the simulations that picks the best weights.
        stop_after_epochs: Epochs without a better validation loss after which training ends early.
        clip_max_norm: Largest gradient norm.
        domain_randomisation: Whether part of the simulations are distorted at random, and the network is told how much
            (`fmcpe.base_posteriors.domain_randomisation`). Its summary then survives misspecification, and at level 0, the
            default, it answers as sharply as before. By default where there is an `embedding_net` with weights, unless data
            lie on a baseline that is large against their standard deviation, which a gain would only shift.
        flow: Size of the flow.
        device: Where to train.
        show_progress_bars: Whether to show progress once training takes more than two seconds.

    Returns:
        An sbi posterior, with the losses in ``.history``.
    """
    training = Training(
        max_num_epochs, training_batch_size, learning_rate, validation_fraction, stop_after_epochs, clip_max_norm
    )
    with seeded(seed):  # sbi draws from the prior to check it, and again to build the posterior
        prior = process_prior(prior)[0]
        theta, x = simulate(simulator, prior, num_simulations, simulations, dask, show_progress_bars)
        if domain_randomisation and (embedding_net is None or not has_weights(embedding_net)):
            raise ValueError(
                "Expected an embedding_net with weights, which can learn to survive distortions, with "
                "domain_randomisation=True, got none. Pass embedding_net=, a network to (B, features), or leave it out."
            )
        if domain_randomisation is None:
            with seeded(0):  # simulations on demand draw: a look at them must not shift the noise of what follows
                domain_randomisation = not on_a_baseline(x[:_LOOKED_AT])
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
    """A fresh posterior trained on rows of (θ, x), however they were come by; draws from torch's global generator.

    Args:
        theta: Physical parameters, (N, p).
        x: Data, (N, ...), or something that is indexed like them.
        prior: As sbi's `process_prior` returns it.
        embedding_net: As for `train_npe`.
        flow: Size of the flow.
        training: How it is trained.
        device: Where to train.
        show_progress_bars: Whether to show progress.
        corrupt: Applied to every minibatch of x anew; the network is standardised by x without it.
        weights: What each row counts, (N,).
        num_simulated: How many of the rows, the first, are simulations, and so may be roughened; all if None.
        what: What is trained, for the progress bar and for errors.
    """
    if embedding_net is not None:
        embedding_width(embedding_net, tuple(x.shape[1:]))
    elif x.ndim > 2:
        raise ValueError(
            f"simulations have shape {tuple(x.shape)} and no embedding_net came; data that are not vectors need one. "
            "Pass embedding_net=, a network to (B, features)."
        )
    theta, x = theta.to(device), x.to(device)
    # statistics of 5000 simulations are as good as those of all, where all do not fit into memory
    enough = slice(None) if isinstance(x, Tensor) else slice(5000)
    estimator = build_estimator(theta[enough], x[enough], prior, flow, embedding_net).to(device)

    aware, scale = level_aware_part(estimator), float(x[enough].std())

    def loss(rows: Tensor) -> Tensor:
        data = x[rows] if corrupt is None else corrupt(x[rows])
        if aware is None:
            each = estimator.loss(theta[rows], data)
        else:
            levels = draw_levels(len(rows), data.device)
            if num_simulated is not None:
                levels = levels * (rows < num_simulated)[:, None].to(levels)
            with aware.at(levels):
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
    """Simulations at draws of the prior, or those that are given, checked: θ (N, p) and x (N, ...)."""
    if given is not None:
        theta, x = as_tensor(given[0], "theta"), as_tensor(given[1], "x")
        if theta.ndim != 2 or theta.shape[0] != x.shape[0]:
            raise ValueError(
                f"simulations have theta of shape {tuple(theta.shape)} and x of shape {tuple(x.shape)}; (N, p) and (N, ...) "
                "with the same N were expected."
            )
        if theta.shape[1] != parameter_dim(prior) or not bool(within_support(prior, theta).all()):
            raise ValueError(
                f"simulations have θ of {theta.shape[1]} number(s), some perhaps outside the support; draws of the prior, of "
                f"{parameter_dim(prior)} number(s), were expected. Pass the prior that the simulations came from."
            )
        return theta, x
    if simulator is None:
        raise ValueError("neither a simulator nor simulations came; pass simulator=, or simulations=(theta, x).")
    if number < 100:
        raise ValueError(f"num_simulations={number} came; at least 100 were expected, and 10 000 or more are advised.")
    theta = prior.sample((number,)).to(torch.float32)
    if dask is not None:
        return theta, run_simulator(
            simulator, theta, dask=dask, batch_size=max(1, number // 200), show_progress_bars=show_progress_bars
        )
    checked = CheckedSimulator(simulator, None)
    with seeded(0):  # a look at the shape must not shift the noise of what follows
        shape = checked(theta[:2]).shape[1:]
    if 4 * number * shape.numel() > _MAX_BYTES:
        return theta, SimulationsOnDemand(checked, theta, shape)
    return theta, checked(theta)
