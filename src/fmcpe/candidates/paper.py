"""The method as published: the joint flows of `fmcpe.candidates.joint_flow` on raw data, fitted once on all pairs.

`Paper` has the values that the paper's text states and ours where it is silent; `paper_settings` those of the authors'
published code. ``docs/deviations.md`` lists every difference.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.joint_flow import JointFlowed
from fmcpe.flows.matching import Field, matching_loss
from fmcpe.flows.solvers import Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead
from fmcpe.nn.embeddings import embedding_for, embedding_width
from fmcpe.nn.ensemble import Alone
from fmcpe.nn.training import CONSTANT, Schedule, descend
from fmcpe.problem import Problem
from fmcpe.spaces import Standardiser

Stages = Literal["joint", "sequential", "x-only", "theta-only"]
_CHOICES = {
    "checkpoint": ("last", "best"),
    "schedule": ("constant", "cosine"),
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
"""Which velocity fields are trained together, phase after phase."""


@dataclass(frozen=True)
class Paper:
    """The recipe of the paper.

    Args:
        stages: ``"joint"``; ``"sequential"`` trains u_X first, then u_Θ on its frozen source; ``"x-only"`` stops at θ_0;
            ``"theta-only"`` starts u_Θ from the base posterior at y itself.
        epochs: Passes over the calibration pairs.
        batch_size: Pairs per gradient step.
        learning_rate: Of Adam.
        schedule: Of the learning rate, ``"constant"`` or ``"cosine"``.
        clip: Largest gradient norm; of each network by itself, or of both together with `clip_jointly`.
        clip_jointly: Whether the gradient norm of both networks together is clipped.
        checkpoint: The epoch whose weights both networks keep: the ``"last"``, or the ``"best"`` by the sum of both validation
            losses.
        validation_fraction: Share of the pairs that is not trained on and that the validation losses come from.
        validate_every: Epochs between two validations.
        solver: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: Solver steps, in training and when drawing.
        source: The x-source, ``"observation"`` for N(y, σ² I), ``"normal"`` for N(0, I).
        sigma: σ, in standardised data.
        hidden: Width of the residual blocks of the velocity networks.
        blocks: How many.
        hidden_x: Widths of the blocks of u_X, in place of `hidden` and `blocks`.
        hidden_theta: Widths of the blocks of u_Θ, likewise.
        x_head: What embeds (x_t, t) for u_X. ``"dense"``: a perceptron. ``"embedding"``: a network that suits the shape of the
            data, like that of y.
        embedding_dim: Size of the embedding of y, where it is the library's.
        embedding_net: Network that embeds standardised observations for both velocity fields; by default one that suits their
            shape.
        summaries: Work on the base posterior's own embedding of the data, where it has one, in place of the raw data.
        num_statistics: Fresh simulations from the prior that standardise x.
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

    def __post_init__(self) -> None:
        whole_numbers = ("epochs", "batch_size", "validate_every", "steps", "hidden", "blocks", "embedding_dim")
        for name, least in (dict.fromkeys(whole_numbers, 1) | {"num_statistics": 100}).items():
            self._require(name, _is_whole(getattr(self, name), least), f"a whole number of at least {least}")
        for name in ("sigma", "learning_rate", "clip", "validation_fraction"):
            value = getattr(self, name)
            self._require(name, isinstance(value, int | float) and 0 < value < math.inf, "a positive number")
        self._require("validation_fraction", self.validation_fraction < 1, "a number between 0 and 1")
        for name, choices in _CHOICES.items():
            self._require(name, getattr(self, name) in choices, f"one of {', '.join(map(repr, choices))}")
        for name in ("hidden_x", "hidden_theta"):
            widths = getattr(self, name)
            whole = isinstance(widths, tuple | list) and all(_is_whole(width, 1) for width in widths)
            self._require(name, whole, "widths, such as (64, 64)")
            object.__setattr__(self, name, tuple(widths))
        Solver(self.solver, self.steps)

    def _require(self, name: str, ok: bool, expected: str) -> None:
        if not ok:
            default = Paper.__dataclass_fields__[name].default
            raise ValueError(
                f"Expected {name} to be {expected}, got {getattr(self, name)!r}. Try Paper({name}={default!r})."
            )

    def fit(self, problem: Problem, show_progress_bars: bool = False) -> tuple[JointFlowed, dict[str, list[float]]]:
        """Train both flows on all pairs; draws from torch's global generator.

        Returns:
            The trained chain, and losses by epoch.
        """
        base = problem.summarised if self.summaries and self.embedding_net is None else problem.base
        x = None if problem.simulator is not None or problem.x_mean is None else base.summarise(problem.x_mean)
        pairs = _Pairs(problem.theta, problem.z, base.summarise(problem.y), x)
        chain = self._build(problem, base, pairs)
        training, validation = pairs.split(self.validation_fraction)

        def simulate(theta: Tensor) -> Tensor:
            assert problem.simulator is not None
            return base.summarise(problem.simulator(theta))

        fresh = simulate if problem.simulator is not None else None
        return chain, _train(chain, training, validation, fresh, self, show_progress_bars)

    def _build(self, problem: Problem, base: BasePosterior, pairs: _Pairs) -> JointFlowed:
        """Statistics of the simulations, and fresh velocity fields."""
        shape = pairs.y.shape[1:]
        if problem.bank_x is not None and self.stages != "theta-only":
            x = base.summarise(problem.bank_x)
        else:
            x = pairs.y if pairs.x is None else pairs.x
        widths = (self.hidden,) * self.blocks

        def embedding() -> nn.Module:
            user = self.embedding_net
            return embedding_for(tuple(shape), self.embedding_dim) if user is None else copy.deepcopy(user)

        def u_x() -> Field:
            own, net = self.hidden_x or widths, embedding()
            dense = self.x_head == "dense"
            head = DenseHead(shape.numel(), own[0]) if dense else EmbeddingHead(tuple(shape), self.embedding_dim)
            return Field(shape.numel(), net, embedding_width(net, tuple(shape)), own, head)

        def u_theta() -> Field:
            net = embedding()
            return Field(problem.space.dim, net, embedding_width(net, tuple(shape)), self.hidden_theta or widths)

        sigma = None if self.source == "normal" else self.sigma
        return JointFlowed(
            base, problem.space, Standardiser(x), Standardiser(pairs.y), None if self.stages == "theta-only" else u_x(),
            None if self.stages == "x-only" else u_theta(), sigma, Solver(self.solver, self.steps),
        ).to(pairs.y.device)  # fmt: skip


class _Pairs(NamedTuple):
    theta: Tensor
    z: Tensor
    y: Tensor
    x: Tensor | None

    def rows(self, index: Tensor) -> _Pairs:
        return _Pairs(self.theta[index], self.z[index], self.y[index], None if self.x is None else self.x[index])

    def split(self, fraction: float) -> tuple[_Pairs, _Pairs]:
        """A random split into training and validation pairs, at least one of each."""
        order = torch.randperm(len(self.z), device=self.z.device)
        held_out = max(1, round(fraction * len(order)))
        return self.rows(order[held_out:]), self.rows(order[:held_out])

    def repeated(self, rows: int) -> _Pairs:
        """Copies of all pairs until there are at least `rows`: each copy gets its own noise and time."""
        copies = -(-rows // len(self.z))
        return self.rows(torch.arange(len(self.z), device=self.z.device).repeat(copies))


def _losses(chain: JointFlowed, pairs: _Pairs, simulate: Any, fields: tuple[str, ...]) -> dict[str, Tensor]:
    """The two terms of the loss for one minibatch (`fmcpe.candidates.joint_flow`); those of `fields` only."""
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
    chain: JointFlowed, training: _Pairs, validation: _Pairs, simulate: Any, recipe: Paper, show_progress_bars: bool
) -> dict[str, list[float]]:
    """Gradient steps on the training pairs; the networks of a phase keep the weights of one and the same epoch.

    In joint training u_Θ has learned to correct the source that u_X made in the same epoch: u_X of another epoch makes another
    source.
    """
    history: dict[str, list[float]] = {}
    validation, number = validation.repeated(64), len(training.z)
    per_epoch = -(-number // recipe.batch_size)
    # the same noise each time: epochs are compared on their weights, not on their luck
    validation_seed = int(torch.randint(2**31, ()))

    for fields in _PHASES[recipe.stages]:
        networks = nn.ModuleDict({name: getattr(chain, f"u_{name}") for name in sorted(fields)})
        parts = [Alone(networks)] if recipe.clip_jointly else [Alone(each) for each in networks.values()]
        batches: list[Tensor] = []

        def loss(step: int, fields: tuple[str, ...] = fields, batches: list[Tensor] = batches) -> Tensor:
            if step % per_epoch == 0:
                chain.train()
                batches[:] = torch.randperm(number, device=training.z.device).tensor_split(per_epoch)
                for name in fields:
                    history.setdefault(f"training_{name}", []).append(0.0)
            rows = batches[step % per_epoch]
            losses = _losses(chain, training.rows(rows), simulate, fields)
            for name, value in losses.items():
                history[f"training_{name}"][-1] += float(value.detach()) * len(rows) / number
            return torch.stack(list(losses.values())).sum()

        @torch.no_grad()
        def validate(fields: tuple[str, ...] = fields) -> Tensor:
            chain.eval()
            with seeded(validation_seed):
                losses = _losses(chain, validation, simulate, fields)
            for name, value in losses.items():
                history.setdefault(f"validation_{name}", []).append(float(value))
            return torch.stack(list(losses.values())).sum()

        best = descend(
            parts, loss, recipe.epochs * per_epoch, recipe.learning_rate, _schedule(recipe, per_epoch), validate,
            every=recipe.validate_every * per_epoch, clip=recipe.clip, keep_start=False,
            bar="fitting the correction" if show_progress_bars else None,
        )  # fmt: skip
        if recipe.checkpoint == "best":
            for part, weights in zip(parts, best, strict=True):
                part.module.load_state_dict(weights)
        reached = [history[f"validation_{name}"][-1] for name in fields]
        if not all(map(math.isfinite, reached)) or not all(bool(p.isfinite().all()) for p in networks.parameters()):
            raise RuntimeError(
                "Training diverged: expected finite validation losses, got NaN or infinite ones. Lower the learning "
                "rate, e.g. recipe=Paper(learning_rate=1e-4), and look for outliers in y."
            )
    chain.eval()
    return history


def _schedule(recipe: Paper, per_epoch: int) -> Schedule:
    """Constant, or half a cosine over the epochs."""
    if recipe.schedule == "constant":
        return CONSTANT

    def factor(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * (step // per_epoch) / recipe.epochs))

    return lambda optimiser: torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


_PYRAMID = (32, 64, 128, 256)
_AUTHORS: dict[str, dict[str, Any]] = {
    "gaussian": {"epochs": 200, "source": "normal", "hidden_x": (64,) * 5, "hidden_theta": (64,) * 5},
    "pendulum": {
        "epochs": 300, "sigma": 0.05, "x_head": "embedding", "embedding_dim": 10,
        "hidden_x": (*_PYRAMID, 512, *_PYRAMID[::-1]), "hidden_theta": _PYRAMID + _PYRAMID[::-1],
    },
    "wind-tunnel": {
        "epochs": 200, "sigma": 0.5, "batch_size": 100, "x_head": "embedding", "embedding_dim": 10,
        "hidden_x": _PYRAMID + _PYRAMID[::-1], "hidden_theta": _PYRAMID + _PYRAMID[-2::-1],
    },
    "light-tunnel": {
        "epochs": 500, "sigma": 0.05, "batch_size": 16, "x_head": "embedding", "embedding_dim": 10,
        "hidden_x": _PYRAMID[:3] + _PYRAMID[2::-1], "hidden_theta": _PYRAMID + _PYRAMID[::-1],
    },
}  # fmt: skip


def paper_settings(task: str) -> Paper:
    """The settings of the authors' published code for one of the paper's tasks.

    Learning rate 1e-3 on a cosine schedule, gradients clipped at 5 per network, 50 Euler steps, and for each task its epochs,
    batch size, source and network widths. What the published code does differently beyond that is listed in
    ``docs/deviations.md``.

    Args:
        task: ``"gaussian"``, ``"pendulum"``, ``"wind-tunnel"`` or ``"light-tunnel"``.

    Example:
        >>> FMCPE(base, simulator, recipe=fmcpe.paper_settings("pendulum"))      # doctest: +SKIP
    """
    if not isinstance(task, str) or task not in _AUTHORS:
        raise ValueError(
            f"Expected one of the paper's tasks ({', '.join(_AUTHORS)}), got {task!r}. For other problems use "
            'recipe="paper", or Paper(sigma=...).'
        )
    return Paper(clip=5.0, schedule="cosine", **_AUTHORS[task])


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
