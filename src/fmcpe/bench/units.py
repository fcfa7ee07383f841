"""The smallest piece of work that is done once: a unit, and the name that its content gives it.

A unit says everything that decides its numbers: task, method, pairs, seeds, budget, what is measured. Two experiments that
ask for the same thing share the unit, and a change of any setting is another unit. The library's version is recorded with
the result but is no part of the name: start a new directory after changing the code.
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
SIMULATION_TRAINED = ("nnpe", "j-npe")
"""Methods that train a base posterior of their own: they get the unit's simulations and epochs."""

WITHOUT_BASE = ("reference", "dpe", *SIMULATION_TRAINED)
"""Methods that ask no base posterior."""

RANDOMISABLE = ("pendulum", "wind-tunnel", "light-tunnel", "wind-tunnel-prior", *zoo.names(zoo.SERIES + zoo.IMAGES))
"""Tasks whose base posterior `train_npe` trains with domain randomisation by default: those with an embedding network."""


def options(**values: Any) -> Options:
    """Keyword arguments in canonical order."""
    return tuple(sorted(values.items()))


def titled(task_label: str) -> str:
    """A task, with its options, as people see it: where a stand-in takes the place of measurements, the name says so."""
    name, *settings = task_label.split(" ")
    side = "measured" if any(text.startswith("data=") for text in settings) else find(name).real_side
    shown = [text for text in settings if not text.startswith("data=")]
    return " ".join([name if side == "process" else f"{name}-{side}", *shown])


@dataclass(frozen=True)
class Evaluation:
    """What is measured of a posterior, and on how much.

    Args:
        test: Test pairs.
        draws: Draws per test pair, for energy score, coverage, ranks and MSE; with one, the joint metrics are all there is.
        reference: Test observations whose posterior is compared with the reference posterior, where there is one.
        reference_draws: Draws in each of these comparisons, and in the draws that are kept for corner plots.
        folds: Folds of their C2ST.
        joint: Whether the joint metrics (C2ST, W2, MMD) are computed, from one draw per test pair.
        timed: Observations that are answered with one draw each against the clock; 0 for no timing.
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
        kind: ``"base"`` trains a base posterior; ``"fit"`` fits a method to calibration pairs and measures it.
        task: Name of the task.
        method: Name of the method, for ``"fit"``.
        options: Options of the task.
        simulations: Simulations of the base posterior.
        epochs: Epochs of the base posterior, and of baselines that are trained in the same way.
        pairs: Calibration pairs; 0 for methods that use none.
        set: Which calibration set. Smaller sets are prefixes of larger ones.
        recipe: Fields of the recipe that differ from what the method says.
        evaluation: What is measured.
        randomised: Whether the posterior that is trained on simulations sees them with domain randomisation.
        data: Fingerprint of the measured data that the real side is; empty for a process or a stand-in.
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
        """The name: a hash of the content."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """Seed of the fit, and of the base posterior's training."""
        return self.set

    @property
    def base(self) -> Unit | None:
        """The unit that has to be done first."""
        if self.kind == "base" or self.method in WITHOUT_BASE:
            return None
        return Unit(
            "base", self.task, options=self.options, simulations=self.simulations, epochs=self.epochs,
            randomised=self.randomised,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """A few words for people."""
        if self.kind == "base":
            return f"{titled(self.task_label)}: {'domain-randomised' if self.randomised else 'plain'} base posterior"
        extra = "".join(f" {name}={value:g}" for name, value in self.recipe if isinstance(value, int | float))
        pairs = f", {self.pairs} pairs, set {self.set}" if self.pairs else ""
        return f"{titled(self.task_label)}: {self.method}{extra}{pairs}"

    @property
    def task_label(self) -> str:
        """The task with its options and, where the real side is measured, the data's fingerprint."""
        data = options(data=self.data) if self.data else ()
        return self.task + "".join(f" {name}={value}" for name, value in (*self.options, *data))

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Unit:
        """The unit that `to_json` wrote."""
        values = json.loads(text)
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"a unit with {', '.join(sorted(set(values) ^ known))} too many or missing came; it was written by another "
                "version of fmcpe. Start a new directory with --out."
            )
        pairs = {name: tuple((k, v) for k, v in values[name]) for name in ("options", "recipe")}
        return cls(**values | pairs | {"evaluation": Evaluation(**values["evaluation"])})
