"""Units: the smallest pieces of work, identified by a hash of their content.

A unit holds everything that determines its numbers: task, method, pairs, seeds, budget, metrics. Experiments share equal units,
and any changed setting is another unit. The version of the library is stored with the result but is not part of the hash: start
a new directory after changing the code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from fmcpe.tasks import find, zoo

Options = tuple[tuple[str, Any], ...]
"""Keyword arguments as sorted pairs, so that they can be compared and hashed."""

Kind = Literal["base", "fit"]
SIMULATION_TRAINED = ("nnpe", "npe-rs", "j-npe")
"""Methods that train their own posterior on simulations, with the unit's simulations and epochs."""

WITHOUT_BASE = ("reference", "dpe", *SIMULATION_TRAINED)
"""Methods without a base posterior."""

RANDOMISABLE = ("pendulum", "wind-tunnel", "light-tunnel", "wind-tunnel-prior", *zoo.names(zoo.SERIES + zoo.IMAGES))
"""Tasks with an embedding network, for which `train_npe` uses domain randomisation by default."""


def options(**values: Any) -> Options:
    """Keyword arguments in canonical order."""
    return tuple(sorted(values.items()))


def titled(task_label: str) -> str:
    """Title of a task with its options, marked if it uses a stand-in for measurements."""
    name, *settings = task_label.split(" ")
    side = "measured" if any(text.startswith("data=") for text in settings) else find(name).real_side
    shown = [text for text in settings if not text.startswith("data=")]
    return " ".join([name if side == "process" else f"{name}-{side}", *shown])


@dataclass(frozen=True)
class Evaluation:
    """Evaluation settings of a posterior.

    Args:
        test: Number of test pairs.
        draws: Draws per test pair, for energy score, coverage, ranks and MSE; with 1, only joint metrics are computed.
        reference: Number of test observations to compare with the reference posterior, if there is one.
        reference_draws: Draws of each of these comparisons, and of corner plots.
        folds: Folds of their C2ST.
        joint: Whether to compute the joint metrics (C2ST, W2, MMD), from one draw per test pair.
        timed: Number of observations of the timed inference, one draw each; 0 for no timing.
    """

    test: int = 2000
    draws: int = 100
    reference: int = 3
    reference_draws: int = 5000
    folds: int = 3
    joint: bool = True
    timed: int = 0


@dataclass(frozen=True)
class Unit:
    """One piece of work.

    Args:
        kind: ``"base"`` trains a base posterior; ``"fit"`` fits a method to calibration pairs and evaluates it.
        task: Name of the task.
        method: Name of the method, for ``"fit"``.
        options: Options of the task.
        simulations: Simulations of the base posterior.
        epochs: Epochs of the base posterior, and of baselines that train on simulations.
        pairs: Number of calibration pairs; 0 for methods that use none.
        set: Index of the calibration set. Smaller sets are prefixes of larger ones.
        recipe: Fields of the recipe that differ from the method's.
        evaluation: Evaluation settings.
        randomised: Whether the posterior trained on simulations uses domain randomisation.
        data: Fingerprint of the measured data; empty for a process or a stand-in.
    """

    kind: Kind
    task: str
    method: str = ""
    options: Options = ()
    simulations: int = 50_000
    epochs: int = 20
    pairs: int = 0
    set: int = 0
    recipe: Options = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    randomised: bool = False
    data: str = ""

    @property
    def id(self) -> str:
        """Hash of the content."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """Seed of the fit, and of the base posterior's training."""
        return self.set

    @property
    def base(self) -> Unit | None:
        """The unit of the base posterior, which must be done first."""
        if self.kind == "base" or self.method in WITHOUT_BASE:
            return None
        return Unit(
            "base", self.task, options=self.options, simulations=self.simulations, epochs=self.epochs,
            randomised=self.randomised,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """A short description."""
        if self.kind == "base":
            return f"{titled(self.task_label)}: {'domain-randomised' if self.randomised else 'plain'} base posterior"
        extra = "".join(f" {name}={value:g}" for name, value in self.recipe if isinstance(value, int | float))
        pairs = f", {self.pairs} pairs, set {self.set}" if self.pairs else ""
        return f"{titled(self.task_label)}: {self.method}{extra}{pairs}"

    @property
    def task_label(self) -> str:
        """The task with its options and the fingerprint of its measured data, if any."""
        data = options(data=self.data) if self.data else ()
        return self.task + "".join(f" {name}={value}" for name, value in (*self.options, *data))

    def to_json(self) -> str:
        """The unit as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Unit:
        """The unit that `to_json` wrote."""
        values = json.loads(text)
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"Expected a unit with the fields of this version of fmcpe, got one that differs in "
                f"{', '.join(sorted(set(values) ^ known))}. Start a new directory with --out."
            )
        pairs = {name: tuple((k, v) for k, v in values[name]) for name in ("options", "recipe")}
        return cls(**values | pairs | {"evaluation": Evaluation(**values["evaluation"])})
