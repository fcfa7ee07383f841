"""Every hyper-parameter of the method, in one frozen object."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmcpe.ode import Solver


@dataclass(frozen=True)
class Recipe:
    """How the correction is built, trained and integrated. ``Recipe()`` is the default one; ``Recipe.paper()`` the paper's.

    Args:
        warm_start: Whether the θ-flow starts from a closed-form or fine-tuned start that evidence chooses
            (`fmcpe.crossfit`), or both flows are trained jointly as in the paper (`fmcpe.correction`).
        folds: With a warm start: parts of the calibration pairs that are left out in turn.
        epochs: Passes over the calibration pairs; with a warm start, gradient steps of each member of the flow, and in
            proportion those of fine-tuning.
        batch_size: Pairs per gradient step.
        learning_rate: Of Adam.
        clip: Largest gradient norm.
        solver: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: Solver steps, in training and when drawing.
        hidden: Width of the velocity networks; from `many_pairs` pairs on, twice that.
        blocks: Their number of residual blocks.
        many_pairs: Number of pairs from which the networks are twice as wide.
        num_statistics: Fresh simulations from the prior that standardise x and θ, and show what the simulator does with θ.
        num_simulations: With a warm start: simulations at the θ of each pair.
        sigma: Without: standard deviation of the x-source around the standardised y.
        validation_fraction: Without: share of the pairs that picks the best weights and is not trained on.
        validate_every: Without: epochs between two looks at the validation pairs.
        embedding_dim: Without: size of the embedding of y, where it is the library's.
        summaries: Without: work on the base posterior's own embedding of the data, where it has one, in place of the raw
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
    many_pairs: int = 10_000
    num_statistics: int = 2000
    num_simulations: int = 16
    sigma: float = 0.5
    validation_fraction: float = 0.2
    validate_every: int = 4
    embedding_dim: int = 32
    summaries: bool = False

    def __post_init__(self) -> None:
        whole_numbers = ("epochs", "batch_size", "validate_every", "steps", "hidden", "blocks", "many_pairs")
        least = dict.fromkeys((*whole_numbers, "embedding_dim", "num_simulations"), 1)
        for name, least_value in (least | {"num_statistics": 100, "folds": 2}).items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._require(name, whole and value >= least_value, f"a whole number of at least {least_value}")
        for name in ("sigma", "learning_rate", "clip", "validation_fraction"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and math.isfinite(value)
            self._require(name, number and value > 0, "a positive number")
        self._require("validation_fraction", self.validation_fraction < 1, "a number between 0 and 1")
        Solver(self.solver, self.steps)

    def _require(self, name: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(
                f"{name}={getattr(self, name)!r} came; {expected} was expected. Try Recipe({name}={_default(name)})."
            )

    @classmethod
    def paper(cls) -> Recipe:
        """The settings of the paper (its appendix on the experimental set-up)."""
        return cls(
            warm_start=False, epochs=400, solver="euler", steps=50, hidden=64, blocks=3, many_pairs=500, summaries=False
        )

    @classmethod
    def default(cls) -> Recipe:
        """What ``FMCPE(...)`` uses when nothing is said."""
        return cls()

    def width(self, pairs: int) -> int:
        """Width of the velocity networks for so many pairs."""
        return self.hidden if pairs < self.many_pairs else 2 * self.hidden


def _default(name: str) -> object:
    return Recipe.__dataclass_fields__[name].default
