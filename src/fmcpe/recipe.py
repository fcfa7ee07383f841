"""Every hyper-parameter of the method, in one frozen object."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmcpe.ode import Solver


@dataclass(frozen=True)
class Recipe:
    """How the flows are built, trained and integrated.

    Args:
        sigma: Standard deviation of the x-source around the standardised y.
        epochs: Passes over the calibration pairs.
        batch_size: Pairs per gradient step.
        learning_rate: Of Adam.
        clip: Largest gradient norm.
        validation_fraction: Share of the pairs that picks the best weights and is not trained on.
        validate_every: Epochs between two looks at the validation pairs.
        solver: ``"euler"``, ``"midpoint"`` or ``"rk4"``.
        steps: Solver steps, in training and when drawing.
        hidden: Width of the velocity networks.
        blocks: Their number of residual blocks.
        embedding_dim: Size of the embedding of y, where it is the library's.
        keep_only_what_helps: Drop each flow that does not improve the energy score on the validation pairs.
        summaries: Work on the base posterior's own embedding of the data, where it has one, in place of the raw data.
        num_statistics: Fresh simulations from the prior that standardise x and θ.
    """

    sigma: float = 0.5
    epochs: int = 400
    batch_size: int = 256
    learning_rate: float = 1e-3
    clip: float = 1.0
    validation_fraction: float = 0.2
    validate_every: int = 4
    solver: str = "euler"
    steps: int = 50
    hidden: int = 64
    blocks: int = 3
    embedding_dim: int = 32
    keep_only_what_helps: bool = True
    summaries: bool = True
    num_statistics: int = 2000

    def __post_init__(self) -> None:
        least = dict.fromkeys(
            ("epochs", "batch_size", "validate_every", "steps", "hidden", "blocks", "embedding_dim"), 1
        )
        for name, least_value in (least | {"num_statistics": 100}).items():
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
        return cls(summaries=False, keep_only_what_helps=False)

    @classmethod
    def default(cls) -> Recipe:
        """What ``FMCPE(...)`` uses when nothing is said: the paper's, in summary space, each stage kept only where it helps."""
        return cls()


def _default(name: str) -> object:
    return Recipe.__dataclass_fields__[name].default
