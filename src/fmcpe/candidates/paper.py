"""The method as published: the joint flows of `fmcpe.candidates.joint_flow` on raw data, fitted once on all pairs.

The defaults of `Paper` are those of the paper's text, or ours where it is silent. `fmcpe.paper_settings` has those of
the authors' code. ``docs/deviations.md`` lists the differences.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fmcpe._options import LARGEST, POSITIVE, SHARE, check_option, check_options, check_whole_numbers
from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import number_held_out
from fmcpe.candidates.joint_flow import JointFlowed
from fmcpe.flows.matching import Field, matching_loss
from fmcpe.flows.solvers import METHODS, Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead
from fmcpe.nn.embeddings import embedding_for, embedding_width
from fmcpe.nn.ensemble import Alone
from fmcpe.nn.training import CONSTANT, descend
from fmcpe.problem import Problem
from fmcpe.spaces import Standardiser

Stages = Literal["joint", "sequential", "x-only", "theta-only"]
_CHOICES = {
    "checkpoint": ("last", "best"),
    "schedule": ("constant", "cosine"),
    "solver": tuple(METHODS),
    "source": ("observation", "normal"),
    "x_head": ("dense", "embedding"),
    "stages": get_args(Stages),
}
_PHASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "joint": (("x", "theta"),),
    "sequential": (("x",), ("theta",)),
    "x-only": (("x",),),
    "theta-only": (("theta",),),
}
"""The velocity fields that are trained together in each phase."""


@dataclass(frozen=True)
class Paper:
    """The recipe of the paper.

    Args:
        stages: ``"joint"``; ``"sequential"``: u_X first, then u_Θ on its frozen source; ``"x-only"``: stop at θ_0;
            ``"theta-only"``: u_Θ starts from the base posterior at y itself.
        epochs: Passes over the calibration pairs.
        batch_size: Pairs per gradient step.
        learning_rate: Learning rate of Adam.
        schedule: ``"constant"`` or ``"cosine"``.
        clip: Maximum gradient norm, of each network; 1e9 clips nothing.
        clip_jointly: Clip the gradient norm of both networks together.
        checkpoint: Weights of the ``"last"`` epoch, or of the ``"best"`` by the sum of both validation losses.
        validation_fraction: Share of the pairs held out for the validation losses.
        validate_every: Epochs between two validations.
        solver: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: Solver steps, in training and in sampling.
        source: The x-source, ``"observation"`` for N(y, σ² I), ``"normal"`` for N(0, I).
        sigma: σ, in standardised data.
        hidden: Width of the residual blocks of the velocity networks.
        blocks: Number of residual blocks.
        hidden_x: Widths of the blocks of u_X, in place of `hidden` and `blocks`.
        hidden_theta: Widths of the blocks of u_Θ, in place of `hidden` and `blocks`.
        x_head: Embedding of (x_t, t) for u_X: ``"dense"``, a perceptron, or ``"embedding"``, the default embedding of
            data of that shape.
        embedding_dim: Number of features of the default embedding of y.
        embedding_net: Embedding of standardised observations for both velocity fields, in place of the default one.
        summaries: Use the base posterior's embedding of the data, if any, in place of the raw data; no effect if
            `embedding_net` is given.
        num_statistics: Simulations from the prior that standardise x.
    """

    stages: Stages = "joint"
    epochs: int = 200
    batch_size: int = 256
    learning_rate: float = 1e-3
    schedule: str = "constant"
    clip: float = 1.0
    clip_jointly: bool = False
    checkpoint: str = "last"
    validation_fraction: float = 0.2
    validate_every: int = 4
    solver: str = "euler"
    steps: int = 50
    source: str = "observation"
    sigma: float = 0.5
    hidden: int = 128
    blocks: int = 3
    hidden_x: tuple[int, ...] = ()
    hidden_theta: tuple[int, ...] = ()
    x_head: str = "dense"
    embedding_dim: int = 32
    embedding_net: nn.Module | None = field(default=None, compare=False)
    summaries: bool = False
    num_statistics: int = 2000

    simulations_per_pair: ClassVar[int] = 0
    """None before training: each gradient step runs its own."""

    @property
    def bank(self) -> int:
        """Simulations from the prior."""
        return self.num_statistics

    def __post_init__(self) -> None:
        limits = {
            "num_statistics": (100, LARGEST), "steps": (1, 100_000), "validation_fraction": SHARE, "clip": (POSITIVE, 1e30),
        }  # fmt: skip
        check_options(self, limits, LARGEST)
        for name, choices in _CHOICES.items():
            given = getattr(self, name)
            known = isinstance(given, str) and given in choices
            check_option(self, name, known, f"one of {', '.join(map(repr, choices))}")
        for name in ("hidden_x", "hidden_theta"):
            check_whole_numbers(self, name, LARGEST, "(64, 64)")
        net = self.embedding_net
        check_option(self, "embedding_net", net is None or isinstance(net, nn.Module), "a torch module or None")

    def fit(self, problem: Problem, show_progress_bars: bool = False) -> tuple[JointFlowed, dict[str, list[float]]]:
        """Train both flows on all pairs, with torch's global generator; returns the trained chain and the losses by epoch."""
        base, simulator = problem.base, problem.simulator
        if self.summaries and self.embedding_net is None:
            base = problem.summarised
        x = None if simulator is not None or problem.x_mean is None else base.summarise(problem.x_mean)
        pairs = _Pairs(problem.theta, problem.z, base.summarise(problem.y), x)
        chain = self._build(problem, base, pairs)
        simulate = None if simulator is None else lambda theta: base.summarise(simulator(theta))
        return chain, _train(chain, pairs, simulate, self, show_progress_bars)

    def num_simulations(self, pairs: int) -> int:
        """Number of simulations that a fit on `pairs` pairs runs, without those that standardise x."""
        held_out = number_held_out(pairs, self.validation_fraction)
        phases = sum("x" in fields for fields in _PHASES[self.stages])
        validations = -(-self.epochs // self.validate_every)
        return phases * (self.epochs * (pairs - held_out) + validations * held_out * -(-64 // held_out))

    def _build(self, problem: Problem, base: BasePosterior, pairs: _Pairs) -> JointFlowed:
        """Statistics of the simulations, and untrained velocity fields."""
        shape, widths = tuple(pairs.y.shape[1:]), (self.hidden,) * self.blocks
        x = pairs.y if pairs.x is None else pairs.x
        if problem.bank_x is not None and self.stages != "theta-only":
            x = base.summarise(problem.bank_x)

        def field(dim: int, widths: tuple[int, ...], head: str | None = None) -> Field:
            own = self.embedding_net
            net = embedding_for(shape, self.embedding_dim) if own is None else copy.deepcopy(own)
            embedded: DenseHead | EmbeddingHead | None = None
            if head == "dense":
                embedded = DenseHead(dim, widths[0])
            elif head == "embedding":
                embedded = EmbeddingHead(shape, self.embedding_dim)
            return Field(dim, net, embedding_width(net, shape), widths, embedded)

        return JointFlowed(
            base,
            problem.space,
            Standardiser(x),
            Standardiser(pairs.y),
            None if self.stages == "theta-only" else field(math.prod(shape), self.hidden_x or widths, self.x_head),
            None if self.stages == "x-only" else field(problem.space.dim, self.hidden_theta or widths),
            None if self.source == "normal" else self.sigma,
            Solver(self.solver, self.steps),
        ).to(pairs.y.device)


class _Pairs(NamedTuple):
    theta: Tensor
    z: Tensor
    y: Tensor
    x: Tensor | None

    def rows(self, index: Tensor) -> _Pairs:
        return _Pairs(self.theta[index], self.z[index], self.y[index], None if self.x is None else self.x[index])


def _losses(chain: JointFlowed, pairs: _Pairs, simulate: Any, fields: tuple[str, ...]) -> dict[str, Tensor]:
    """The terms of the loss (`fmcpe.candidates.joint_flow`) for one minibatch: "x", "theta" or both."""
    theta_1, z_1, y, x_paired = pairs
    condition = chain.y_scale(y)
    x_0 = chain.draw_x0(condition, 1)
    losses = {}
    if "x" in fields:
        assert chain.u_x is not None
        x_1 = chain.x_scale(simulate(theta_1) if simulate is not None else x_paired).flatten(1)
        losses["x"] = matching_loss(chain.u_x, x_0[:, 0], x_1, condition).mean()
    if "theta" in fields:
        assert chain.u_theta is not None
        with torch.no_grad():
            x = y if chain.u_x is None else chain.carry_x(x_0, condition)[:, 0]
            z_0 = chain.space.to_z_safely(chain.base.sample(x, 1)[:, 0])
        losses["theta"] = matching_loss(chain.u_theta, z_0, z_1, condition).mean()
    return losses


def _train(
    chain: JointFlowed, pairs: _Pairs, simulate: Any, recipe: Paper, show_progress_bars: bool
) -> dict[str, list[float]]:
    """Train the fields phase by phase; those of one phase keep the weights of the same epoch.

    In joint training, u_Θ corrects the source that u_X produces in the same epoch.
    """
    order = torch.randperm(len(pairs.z), device=pairs.z.device)
    held_out = number_held_out(len(order), recipe.validation_fraction)
    training, validation = order[held_out:], order[:held_out]
    validation = validation.repeat(-(-64 // held_out))  # at least 64 rows: each copy gets its own noise and time
    per_epoch = -(-len(training) // recipe.batch_size)
    validation_seed = int(torch.randint(2**31, ()))  # common random numbers: epochs differ in their weights only
    batches: list[Tensor] = []
    history: dict[str, list[float]] = {}

    def total(kind: str, rows: Tensor, fields: tuple[str, ...], share: float = 1.0, begins: bool = True) -> Tensor:
        """The sum of the terms; each is recorded, as a mean over the `share` of an epoch that these rows are."""
        losses = _losses(chain, pairs.rows(rows), simulate, fields)
        for name, value in losses.items():
            record = history.setdefault(f"{kind}_{name}", [])
            if begins:
                record.append(0.0)
            record[-1] += share * float(value.detach())
        return torch.stack(list(losses.values())).sum()

    def loss(fields: tuple[str, ...], step: int) -> Tensor:
        begins = step % per_epoch == 0
        if begins:
            chain.train()
            batches[:] = training[torch.randperm(len(training), device=training.device)].tensor_split(per_epoch)
        rows = batches[step % per_epoch]
        return total("training", rows, fields, len(rows) / len(training), begins)

    @torch.no_grad()
    def validate(fields: tuple[str, ...]) -> Tensor:
        chain.eval()
        with seeded(validation_seed):
            return total("validation", validation, fields)

    def cosine(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * (step // per_epoch) / recipe.epochs))

    schedule = CONSTANT if recipe.schedule == "constant" else partial(LambdaLR, lr_lambda=cosine)
    for fields in _PHASES[recipe.stages]:
        networks = nn.ModuleDict({name: getattr(chain, f"u_{name}") for name in sorted(fields)})
        parts = [Alone(networks)] if recipe.clip_jointly else [Alone(each) for each in networks.values()]
        best = descend(
            parts, partial(loss, fields), recipe.epochs * per_epoch, recipe.learning_rate, schedule,
            partial(validate, fields), every=recipe.validate_every * per_epoch, clip=recipe.clip, keep_start=False,
            bar="fitting the correction" if show_progress_bars else None,
        )  # fmt: skip
        if recipe.checkpoint == "best":
            for part, weights in zip(parts, best, strict=True):
                part.module.load_state_dict(weights)
        losses = torch.tensor([history[f"validation_{name}"][-1] for name in fields])
        if not all(bool(each.isfinite().all()) for each in (losses, *networks.parameters())):
            raise RuntimeError(
                "Expected finite validation losses, got NaN or infinite ones: training diverged. Lower the learning "
                "rate, e.g. recipe=Paper(learning_rate=1e-4), and look for outliers in y."
            )
    chain.eval()
    return history
