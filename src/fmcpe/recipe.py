"""Every hyper-parameter of the method, in one frozen object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fmcpe.ode import Solver

_CHOICES = {
    "checkpoint": ("last", "best"),
    "schedule": ("constant", "cosine"),
    "source": ("observation", "normal"),
    "x_head": ("dense", "embedding"),
}


@dataclass(frozen=True)
class Recipe:
    """How the correction is built, trained and integrated. ``Recipe()`` is the default one; ``Recipe.paper()`` the paper's.

    Args:
        warm_start: Whether the θ-flow starts from a closed-form or fine-tuned start that evidence chooses
            (`fmcpe.crossfit`), or both flows are trained jointly as in the paper (`fmcpe.correction`). The arguments below that
            begin with "Paper:" concern the latter alone.
        folds: With a warm start: parts of the calibration pairs that are left out in turn.
        epochs: Passes over the calibration pairs; with a warm start, gradient steps of each member of the flow, and in
            proportion those of fine-tuning.
        batch_size: Pairs per gradient step.
        learning_rate: Of Adam.
        clip: Largest gradient norm; of each network by itself, or of both together with `clip_jointly`.
        solver: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: Solver steps, in training and when drawing.
        hidden: Width of the velocity networks.
        blocks: Their number of residual blocks.
        num_statistics: Fresh simulations from the prior that standardise x and θ, and show what the simulator does with θ.
        num_simulations: With a warm start: simulations at the θ of each pair.
        sigma: Paper: standard deviation of the x-source around the standardised y.
        source: Paper: the x-source, ``"observation"`` for N(y, σ² I), ``"normal"`` for N(0, I).
        hidden_x: Paper: widths of the residual blocks of u_X, in place of `hidden` and `blocks`.
        hidden_theta: Paper: widths of the residual blocks of u_Θ, likewise.
        x_head: Paper: what embeds (x_t, t) for u_X. ``"dense"``: a perceptron. ``"embedding"``: a network that suits the
            shape of the data, like that of y.
        schedule: Paper: of the learning rate, ``"constant"`` or ``"cosine"``.
        clip_jointly: Paper: whether the gradient norm of both networks together is clipped.
        checkpoint: Paper: the epoch whose weights both networks keep: the ``"last"``, or the ``"best"`` by the sum of both
            validation losses.
        validation_fraction: Paper: share of the pairs that is not trained on and that the validation losses come from.
        validate_every: Paper: epochs between two validations.
        embedding_dim: Paper: size of the embedding of y, where it is the library's.
        summaries: Paper: work on the base posterior's own embedding of the data, where it has one, in place of the raw
            data.
    """

    warm_start: bool = True
    folds: int = 5
    epochs: int = 200
    batch_size: int = 256
    learning_rate: float = 1e-3
    clip: float = 1.0
    solver: str = "midpoint"
    steps: int = 4
    hidden: int = 32
    blocks: int = 2
    num_statistics: int = 2000
    num_simulations: int = 16
    sigma: float = 0.5
    source: str = "observation"
    hidden_x: tuple[int, ...] = ()
    hidden_theta: tuple[int, ...] = ()
    x_head: str = "dense"
    schedule: str = "constant"
    clip_jointly: bool = False
    checkpoint: str = "last"
    validation_fraction: float = 0.2
    validate_every: int = 4
    embedding_dim: int = 32
    summaries: bool = False

    def __post_init__(self) -> None:
        whole_numbers = ("epochs", "batch_size", "validate_every", "steps", "hidden", "blocks")
        least = dict.fromkeys((*whole_numbers, "embedding_dim", "num_simulations"), 1)
        for name, least_value in (least | {"num_statistics": 100, "folds": 2}).items():
            self._require(
                name, _is_whole(getattr(self, name), least_value), f"a whole number of at least {least_value}"
            )
        for name in ("sigma", "learning_rate", "clip", "validation_fraction"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and math.isfinite(value)
            self._require(name, number and value > 0, "a positive number")
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
            raise ValueError(
                f"Expected {name} to be {expected}, got {getattr(self, name)!r}. Try Recipe({name}={_default(name)!r})."
            )

    @classmethod
    def paper(cls, **changes: Any) -> Recipe:
        """What the paper's text states, and our values where it is silent (``docs/deviations.md``).

        Args:
            **changes: Fields to change, such as ``epochs=400``.
        """
        return replace(cls(warm_start=False, solver="euler", steps=50, hidden=128, blocks=3), **changes)

    @classmethod
    def default(cls) -> Recipe:
        """What ``FMCPE(...)`` uses when nothing is said."""
        return cls()

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the residual blocks of a velocity network, where no others are given."""
        return (self.hidden,) * self.blocks


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


def paper_settings(task: str) -> Recipe:
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
            'recipe="paper", or Recipe.paper(sigma=...).'
        )
    return Recipe.paper(clip=5.0, schedule="cosine", **_AUTHORS[task])


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _default(name: str) -> object:
    return Recipe.__dataclass_fields__[name].default
