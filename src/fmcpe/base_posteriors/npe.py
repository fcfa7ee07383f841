"""The base posterior: sbi's NPE in unconstrained parameter space, trained in about a minute.

The density estimator (a neural spline flow, ``z_score_theta="transform_to_unconstrained"``) and the posterior are
sbi's. Only the training loop differs: one cycle of the learning rate reaches in tens of seconds what a small constant
rate reaches in ten minutes (``benchmarks/npe_schedule.py``).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sbi.inference.posteriors import DirectPosterior
from sbi.neural_nets import posterior_nn
from sbi.neural_nets.estimators.base import ConditionalDensityEstimator
from sbi.utils.sbiutils import standardizing_net
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._ambient import settled
from fmcpe._checks import check_prior_device, finite_rows, parameter_dim, refuse_coarse, sbi_prior
from fmcpe._names import Names, as_names, columns_of, in_order
from fmcpe._options import is_number
from fmcpe._random import seeded
from fmcpe.base_posteriors.domain_randomisation import distort, draw_levels, on_a_baseline
from fmcpe.base_posteriors.rows import Rows, SimulationsOnDemand, refuse_no_pair, simulate, that_worked
from fmcpe.nn.embeddings import (
    WithoutWeights,
    at_levels,
    automatic,
    embedding_width,
    has_weights,
    level_aware_part,
    made_aware,
)
from fmcpe.nn.mmd import mmd2_to_normal
from fmcpe.nn.training import Training, train
from fmcpe.spaces import unbounded_map

Summarise = Callable[[Tensor], Tensor]
"""The embedding of data, (B, ...) -> (B, features), without the level of domain randomisation."""
Penalty = Callable[[Summarise, Tensor], Tensor]
"""Of the embedding while it trains, given it and a minibatch of undistorted simulations: a number."""


@dataclass(frozen=True)
class FlowSize:
    """Size of the neural spline flow of the base posterior."""

    hidden_features: int = 64
    num_transforms: int = 3
    num_bins: int = 10


def _in_turn(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method of sbi that draws from the global generators, in its thread's turn (`fmcpe._turns`)."""

    @functools.wraps(method)
    def call(self: NPEPosterior, *arguments: Any, **options: Any) -> Tensor:
        with seeded(None):
            return method(self, *arguments, **options)

    return call


class NPEPosterior(DirectPosterior):
    """An sbi `DirectPosterior` that can be saved: it stores the flow's size and the untrained `embedding_net`.

    `names` are those of the parameters, if they were given.
    """

    names: Names | None = None

    sample = _in_turn(DirectPosterior.sample)
    sample_batched = _in_turn(DirectPosterior.sample_batched)
    map = _in_turn(DirectPosterior.map)
    leakage_correction = _in_turn(DirectPosterior.leakage_correction)  # of densities

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
    embedding_net: nn.Module | str | None = None,
    seed: int | None = None,
    *,
    names: Sequence[str] | None = None,
    simulations: tuple[Any, Any] | None = None,
    max_failed: float = 0.1,
    simulation_batch_size: int | None = None,
    simulation_timeout: float | None = None,
    dask: Any = None,
    max_num_epochs: int = 20,
    training_batch_size: int = 512,
    learning_rate: float = 5e-3,
    validation_fraction: float = 0.05,
    stop_after_epochs: int = 10,
    clip_max_norm: float = 5.0,
    domain_randomisation: bool | None = None,
    gaussian_summaries: float = 0.0,
    flow: FlowSize | None = None,
    device: str = "cpu",
    show_progress_bars: bool = True,
) -> NPEPosterior:
    r"""Train a posterior on simulations.

    Args:
        simulator: ``theta (N, p) -> x (N, ...)``, called with draws of the prior; None if `simulations` are given.
        prior: Prior over physical θ.
        num_simulations: Number of simulations.
        embedding_net: Network that embeds x, (B, ...) -> (B, features); needed for images, advised for series. ``"auto"``
            chooses one by the shape of x (`fmcpe.nn.embeddings.automatic`), and none for short vectors.
        seed: Makes the training reproducible; the global generators of torch, numpy and Python are left as they were. A
            simulator with a generator of its own, such as ``numpy.random.default_rng()``, has to be seeded by its author.
        names: Of the parameters, kept with the posterior; by default those of a prior file or of the columns of a DataFrame.
        simulations: Existing simulations ``(theta, x)``, in place of the simulator.
        max_failed: Share of the simulations that may fail, by NaN, infinite values or an error; these are dropped, with a
            warning.
        simulation_batch_size: Rows per call of the simulator, for slow ones: a progress bar then shows the time left. All at
            once if None.
        simulation_timeout: Seconds that one call of the simulator may take; more are an error. No limit if None.
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
        gaussian_summaries: Weight γ of a penalty that moves the embeddings h(x) of simulations towards a standard normal
            distribution, for tests of misspecification in their space (Schmitt et al., 2024): the loss
            is \( -\log \hat p(\theta | h(x)) + \gamma\, \mathrm{MMD}^2(h(x), \mathcal N(0, I)) \). Try 10; 0 is none.
        flow: Size of the flow.
        device: Where to train; the prior has to be there, too, and the simulator gets θ there.
        show_progress_bars: Show progress after two seconds.

    Returns:
        An sbi posterior, with the losses in ``.history``.

    Example:
        >>> base = fmcpe.train_npe(simulator, prior, num_simulations=500, max_num_epochs=2, seed=0)
        >>> base.sample((10,), x=y_obs, show_progress_bars=False).shape
        torch.Size([10, 1])
    """
    _refuse_swapped(simulator, prior)
    training = Training(
        max_num_epochs, training_batch_size, learning_rate, validation_fraction, stop_after_epochs, clip_max_norm
    )
    given = names or getattr(prior, "names", None)
    if simulations is not None:
        refuse_no_pair(simulations)
        given = given or columns_of(simulations[0])
        simulations = in_order(simulations[0], given, "theta"), simulations[1]
    with settled(), seeded(seed):  # sbi draws from the prior to check it, and again to build the posterior
        prior = sbi_prior(prior)
        check_prior_device(prior, device)
        refuse_coarse(prior)
        unbounded_map(prior, device)  # fail here, not after the simulations
        known = None if given is None else as_names(given, parameter_dim(prior))
        theta, x = simulate(
            simulator, prior, num_simulations, simulations, dask, show_progress_bars, max_failed, simulation_batch_size,
            simulation_timeout,
        )  # fmt: skip
        if isinstance(embedding_net, str):
            embedding_net = automatic(embedding_net, tuple(x.shape[1:]))
        if not isinstance(embedding_net, nn.Module | None):
            raise TypeError(
                f'Expected embedding_net="auto", a torch.nn.Module or None, got a {type(embedding_net).__name__}. Write a '
                "function as the forward method of a torch.nn.Module."
            )
        if not is_number(gaussian_summaries, 0, math.inf):
            raise ValueError(
                f"Expected a finite number of at least 0, got gaussian_summaries={gaussian_summaries}. Try "
                "gaussian_summaries=10."
            )
        wanted = {"domain_randomisation": domain_randomisation, "gaussian_summaries": gaussian_summaries}
        for name, value in wanted.items():
            if value and (embedding_net is None or not has_weights(embedding_net)):
                raise ValueError(
                    f"Expected an embedding_net with weights for {name}={value}, got none. Pass embedding_net=, a network "
                    f"to (B, features), or leave {name} out."
                )
        if domain_randomisation is None:
            with seeded(0):  # simulations on demand consume random numbers
                some = x[:1000]
                domain_randomisation = not on_a_baseline(some[finite_rows(some)])
        if embedding_net is not None and domain_randomisation:
            embedding_width(embedding_net, tuple(x.shape[1:]))
            embedding_net = made_aware(embedding_net)
        posterior = fit_npe(
            theta, x, prior, embedding_net, flow or FlowSize(), training, device, show_progress_bars,
            penalty=_gaussian(gaussian_summaries) if gaussian_summaries else None,
        )  # fmt: skip
    posterior.names = known
    if isinstance(x, SimulationsOnDemand):
        x.simulator.warn()
    return posterior


def _refuse_swapped(simulator: Any, prior: Any) -> None:
    """Refuse arguments of `train_npe` in the wrong order."""
    if hasattr(simulator, "log_prob") and callable(prior) and not hasattr(prior, "sample"):
        raise TypeError(
            f"Expected a simulator and then a prior, got a {type(simulator).__name__} and then a function. They look swapped: "
            "call train_npe(simulator, prior)."
        )


def _gaussian(weight: float) -> Penalty:
    """The penalty of `gaussian_summaries`."""
    return lambda summarise, x: weight * mmd2_to_normal(summarise(x))


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
    penalty: Penalty | None = None,
    what: str = "the base posterior",
) -> NPEPosterior:
    """A posterior trained on rows θ (N, p) and x (N, ...), with torch's global generator.

    `prior` is the output of sbi's `process_prior`. `corrupt` is applied to each minibatch of x, but not to the rows
    that standardise it. `weights`, (N,), weight the rows in the loss. Only the first `num_simulated` rows are
    domain-randomised, or all. `penalty` is added to the loss. `what` names the network in the progress bar and in errors.
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
    some_theta, some_x = theta[enough], x[enough]
    if not isinstance(x, Tensor):
        some_theta, some_x = that_worked(some_theta, some_x)
    estimator = build_estimator(some_theta, some_x, prior, flow, embedding_net).to(device)

    aware, scale = level_aware_part(estimator) is not None, float(some_x.std())

    def summarise(data: Tensor) -> Tensor:
        features: Tensor = estimator.embedding_net(data)
        return features[:, :-1] if aware else features

    def loss(rows: Tensor) -> Tensor:
        data = x[rows]
        if not isinstance(x, Tensor):
            rows, data = that_worked(rows, data)
        clean = data
        data = data if corrupt is None else corrupt(data)
        if not aware:
            each = estimator.loss(theta[rows], data)
        else:
            levels = draw_levels(len(rows), data.device)
            if num_simulated is not None:
                levels = levels * (rows < num_simulated)[:, None].to(levels)
            with at_levels(estimator, levels):
                each = estimator.loss(theta[rows], distort(data, levels, scale))
        each = each if weights is None else each * weights[rows].to(each)
        return each if penalty is None else each + penalty(summarise, clean)

    with settled(x.shape[1:].numel()):
        history = train(estimator, loss, theta.shape[0], training, what, show_progress_bars)
    return NPEPosterior(estimator, prior, flow, embedding_net, history)
