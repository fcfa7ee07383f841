r"""Flow Matching Corrected Posterior Estimation: the algorithm.

Given a frozen base posterior \( \hat p(\theta|x) \), a simulator \( S \) and a few pairs \( (\theta_1, y) \), two velocity
fields are learned jointly (equations 3, 7 and 8, algorithms 1 and 2 of the paper). One step, for a minibatch of pairs:

    x_1 = S(θ_1)                            fresh noise every time
    x_0 ~ N(y, σ² I)                        the source of the x-flow
    x̃   = ODE(u_X; x_0, y)                  no gradient flows through this
    θ_0 ~ p̂(θ | x̃)                          frozen
    t, τ ~ U[0, 1]
    loss = |u_X(t, (1-t) x_0 + t x_1, y) - (x_1 - x_0)|²
         + |u_Θ(τ, (1-τ) θ_0 + τ θ_1, y) - (θ_1 - θ_0)|²

Here x, y and θ are standardised, and θ is freed of its bounds; the simulator and the base posterior see physical values.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from tqdm.auto import tqdm

from fmcpe._checks import CheckedSimulator, as_device, as_pairs
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.adapters import as_proposal
from fmcpe.chain import Chain
from fmcpe.corrector import Corrector, theta_field, x_field
from fmcpe.crossfit import CrossFit
from fmcpe.flow import matching_loss
from fmcpe.networks import embedding_for
from fmcpe.ode import Solver
from fmcpe.posterior import CorrectedPosterior
from fmcpe.proposal import Proposal
from fmcpe.recipe import Recipe
from fmcpe.spaces import ParameterSpace, Standardiser
from fmcpe.starts import Starts

Simulator = Callable[[Tensor], Tensor]
Stages = Literal["joint", "sequential", "x-only", "theta-only"]


class FMCPE:
    """Corrects a simulation-trained posterior with a few real measurements.

    Args:
        posterior: The base posterior: an sbi posterior, or anything that `as_proposal` accepts.
        simulator: The simulator it was trained on, ``theta (N, p) -> x (N, ...)``, called with physical θ inside the prior
            only. Without one, `fit` needs ``x=``, simulations paired with `theta`.
        prior: The prior of the simulations, where `posterior` does not carry it.
        recipe: ``"default"``, ``"paper"`` or a `Recipe`.
        stages: ``"joint"``; ``"sequential"`` trains u_X first, then u_Θ on its frozen source (the default recipe always does
            so); ``"x-only"`` stops at θ_0; ``"theta-only"`` starts u_Θ from the base posterior at y itself.
        embedding_net: Network that embeds (standardised) observations for both velocity fields of the paper's algorithm, which
            it implies, whatever the recipe; by default one that suits their shape.
        device: Where the flows are trained.

    Example:
        >>> posterior = FMCPE(base, simulator).fit(theta_cal, y_cal, seed=0)      # doctest: +SKIP
        >>> posterior.sample((1000,), x=y_obs)                                    # doctest: +SKIP
    """

    def __init__(
        self,
        posterior: Any,
        simulator: Callable[[Tensor], Any] | None = None,
        prior: Distribution | None = None,
        *,
        recipe: str | Recipe = "default",
        stages: Stages = "joint",
        embedding_net: nn.Module | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = as_device(device)
        self.proposal = as_proposal(posterior, prior).to(self.device)
        self.simulator = simulator
        self.recipe = _as_recipe(recipe)
        if stages not in get_args(Stages):
            raise ValueError(f"stages={stages!r} came; one of {get_args(Stages)} was expected.")
        self.stages, self.embedding_net = stages, embedding_net

    def fit(
        self, theta: Any, y: Any, x: Any = None, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Learn the correction from calibration pairs.

        Args:
            theta: Physical parameters, (N, p), inside the prior's support.
            y: Real measurements taken at them, (N, ...), shaped like the simulator's output.
            x: Simulations at the same parameters, shaped like y; used in place of the simulator.
            seed: Makes the fit reproducible; torch's global generator is left as it was.
            show_progress_bars: Whether to show progress once the fit takes more than two seconds.

        Returns:
            The corrected posterior; ``x=`` of its methods is the real observation.
        """
        theta, y, x = as_pairs(theta, y, x, self.proposal.prior, self.proposal.raw_shape)
        if theta.shape[0] < 10:
            warnings.warn(
                f"only {theta.shape[0]} calibration pairs: so few say little of what is wrong, and the result may be "
                "badly calibrated. Ten or more are advised.",
                FMCPEWarning,
                stacklevel=2,
            )
        fit = self._fit_warm if self.recipe.warm_start and self.embedding_net is None else self._fit_flows
        started = time.perf_counter()
        with seeded(seed):
            pairs = _Pairs(theta.to(self.device), y.to(self.device), None if x is None else x.to(self.device))
            chain, kept, history = fit(pairs, show_progress_bars)
        history["seconds"] = [time.perf_counter() - started]
        return CorrectedPosterior(chain.eval(), self.recipe, kept, history, num_pairs=theta.shape[0])

    def _fit_flows(self, pairs: _Pairs, show_progress_bars: bool) -> tuple[Chain, str, dict[str, list[float]]]:
        """The method of the paper: both flows, trained jointly."""
        # an embedding_net of the user's own is made for raw data
        proposal = self.proposal.summarised() if self.recipe.summaries and self.embedding_net is None else self.proposal
        simulator = self._simulator(proposal, pairs.y.shape[1:], pairs.x)
        summarise = proposal.summarise
        pairs = _Pairs(pairs.theta, summarise(pairs.y), None if pairs.x is None else summarise(pairs.x))
        corrector = self._build(proposal, pairs, simulator)
        training, validation = pairs.split(self.recipe.validation_fraction)
        history = _train(corrector, training, validation, simulator, self.recipe, self.stages, show_progress_bars)
        return corrector, self.stages, history

    def _fit_warm(self, pairs: _Pairs, show_progress_bars: bool) -> tuple[Chain, str, dict[str, list[float]]]:
        """The default recipe: a warm start that evidence chooses, refined by the θ-flow (`fmcpe.crossfit`)."""
        theta, y, x = pairs
        simulator = self._simulator(self.proposal, y.shape[1:], x)
        prior_theta = self.proposal.prior.sample((self.recipe.num_statistics,)).to(self.device, torch.float32)
        replay = None if simulator is None else (prior_theta, simulator(prior_theta))
        space = ParameterSpace(self.proposal.prior, prior_theta)
        starts = Starts(self.proposal, theta, y, x, simulator, replay, space, self.recipe, show_progress_bars)
        return CrossFit(starts).run(self.stages)

    def _simulator(self, proposal: Proposal, shape: torch.Size, x: Tensor | None) -> Simulator | None:
        """The user's simulator, checked, followed by the summary that the flows work on."""
        if x is not None or (self.stages == "theta-only" and self.simulator is None):
            return None
        if self.simulator is None:
            raise ValueError(
                "neither a simulator nor paired simulations came; one of the two was expected. Give FMCPE(posterior, "
                "simulator), or fit(theta, y, x=simulations_at_theta)."
            )
        checked = CheckedSimulator(self.simulator, shape)
        return lambda theta: proposal.summarise(checked(theta))

    def _build(self, proposal: Proposal, pairs: _Pairs, simulator: Simulator | None) -> Corrector:
        """Spaces from the simulations' statistics, and fresh velocity fields."""
        recipe, shape = self.recipe, pairs.y.shape[1:]
        theta = proposal.prior.sample((recipe.num_statistics,)).to(self.device, torch.float32)
        if simulator is not None and self.stages != "theta-only":
            x = simulator(theta)
        else:
            x = pairs.y if pairs.x is None else pairs.x
        space = ParameterSpace(proposal.prior, theta)

        def embedding() -> nn.Module:
            user = self.embedding_net
            return embedding_for(tuple(shape), recipe.embedding_dim) if user is None else copy.deepcopy(user)

        return Corrector(
            proposal,
            space,
            Standardiser(x),
            Standardiser(pairs.y),
            u_x=None if self.stages == "theta-only" else x_field(recipe, shape, embedding()),
            u_theta=None if self.stages == "x-only" else theta_field(recipe, space.dim, shape, embedding()),
            sigma=recipe.sigma,
            solver=Solver(recipe.solver, recipe.steps),
            source=recipe.source,
        ).to(self.device)


class _Pairs(NamedTuple):
    theta: Tensor
    y: Tensor
    x: Tensor | None

    def rows(self, index: Tensor) -> _Pairs:
        return _Pairs(self.theta[index], self.y[index], None if self.x is None else self.x[index])

    def split(self, fraction: float) -> tuple[_Pairs, _Pairs]:
        """A random split into training and validation pairs, at least one of each."""
        order = torch.randperm(len(self.theta), device=self.theta.device)
        held_out = max(1, round(fraction * len(order)))
        return self.rows(order[held_out:]), self.rows(order[:held_out])

    def repeated(self, rows: int) -> _Pairs:
        """Copies of all pairs until there are at least `rows`: each copy gets its own noise and time."""
        copies = -(-rows // len(self.theta))
        return self.rows(torch.arange(len(self.theta), device=self.theta.device).repeat(copies))


def _losses(corrector: Corrector, pairs: _Pairs, simulator: Simulator | None, fields: set[str]) -> dict[str, Tensor]:
    """The two terms of the loss for one minibatch, as in the module's docstring; those of `fields` only."""
    theta_1, y, x_paired = pairs
    y_scaled = corrector.y_scale(y)
    x_0 = corrector.draw_x0(y)
    losses = {}
    if "x" in fields and corrector.u_x is not None:
        simulated = simulator(theta_1) if simulator is not None else x_paired
        x_1 = corrector.x_scale(simulated).flatten(1)
        losses["x"] = matching_loss(corrector.u_x, x_0, x_1, corrector.u_x.embed(y_scaled)).mean()
    if "theta" in fields and corrector.u_theta is not None:
        z_0, z_1 = corrector.draw_z0(y, x0=x_0), corrector.space.to_z_safely(theta_1)
        losses["theta"] = matching_loss(corrector.u_theta, z_0, z_1, corrector.u_theta.embed(y_scaled)).mean()
    return losses


_PHASES: dict[str, list[set[str]]] = {
    "joint": [{"x", "theta"}],
    "sequential": [{"x"}, {"theta"}],
    "x-only": [{"x"}],
    "theta-only": [{"theta"}],
}
"""Which velocity fields are trained together, phase after phase."""


def _train(
    corrector: Corrector,
    training: _Pairs,
    validation: _Pairs,
    simulator: Simulator | None,
    recipe: Recipe,
    stages: Stages,
    show_progress_bars: bool,
) -> dict[str, list[float]]:
    """Gradient steps on the training pairs; the networks of a phase keep the weights of one and the same epoch.

    In joint training u_Θ has learned to correct the source that u_X made in the same epoch: u_X of another epoch makes another
    source.
    """
    history: dict[str, list[float]] = {}
    validation = validation.repeated(64)
    number = len(training.theta)
    steps_per_epoch = -(-number // recipe.batch_size)
    # the same noise each time: epochs are compared on their weights, not on their luck
    validation_seed = int(torch.randint(2**31, ()))

    for fields in _PHASES[stages]:
        networks = nn.ModuleDict({name: getattr(corrector, f"u_{name}") for name in sorted(fields)})
        optimiser = torch.optim.Adam(networks.parameters(), lr=recipe.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.epochs)
        lowest, kept = float("inf"), networks.state_dict()
        bar = tqdm(
            range(recipe.epochs),
            desc="fitting the correction",
            delay=2,
            disable=not show_progress_bars,
            leave=False,
        )
        for epoch in bar:
            corrector.train()
            totals: dict[str, float] = dict.fromkeys(fields, 0.0)
            shuffled = torch.randperm(number, device=training.theta.device)
            for batch in shuffled.tensor_split(steps_per_epoch):
                losses = _losses(corrector, training.rows(batch), simulator, fields)
                optimiser.zero_grad()
                sum(losses.values(), torch.zeros((), device=batch.device)).backward()
                for clipped in [networks] if recipe.clip_jointly else networks.values():
                    nn.utils.clip_grad_norm_(clipped.parameters(), recipe.clip)
                optimiser.step()
                for name, loss in losses.items():
                    totals[name] += float(loss.detach()) * len(batch) / number
            if recipe.schedule == "cosine":
                schedule.step()

            for name in fields:
                history.setdefault(f"training_{name}", []).append(totals[name])
            if (epoch + 1) % recipe.validate_every and epoch + 1 < recipe.epochs:
                continue
            corrector.eval()
            with torch.no_grad(), seeded(validation_seed):
                validated = {k: float(v) for k, v in _losses(corrector, validation, simulator, fields).items()}
            for name in fields:
                history.setdefault(f"validation_{name}", []).append(validated[name])
            if sum(validated.values()) < lowest:
                lowest, kept = sum(validated.values()), copy.deepcopy(networks.state_dict())
        if recipe.checkpoint == "best":
            networks.load_state_dict(kept)
        reached = lowest if recipe.checkpoint == "best" else float(sum(validated.values()))
        if not math.isfinite(reached) or not bool(torch.isfinite(corrector.draw_theta(validation.y)).all()):
            raise RuntimeError(
                "Training diverged: expected finite validation losses and draws, got NaN or infinite ones. Lower the learning "
                "rate, e.g. recipe=Recipe.paper(learning_rate=1e-4), and look for outliers in y."
            )
    return history


def _as_recipe(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe == "default":
        return Recipe.default()
    if recipe == "paper":
        return Recipe.paper()
    raise ValueError(
        f'Expected recipe "default", "paper" or a Recipe, got {recipe!r}. Try recipe=Recipe.paper(sigma=0.1).'
    )
