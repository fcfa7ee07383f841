"""The misspecification zoo: simulator families × kinds of misspecification. Each name is a distribution of problems.

    task = fmcpe.tasks.get("zoo/sir-lag", seed=3)

Half of the families are for development, i.e. for tuning methods; the other half is for reporting only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcpe.tasks.zoo.family import Family
    from fmcpe.tasks.zoo.problem import Problem

DEVELOPMENT = ("linear", "oscillator", "sir", "g-and-k", "heat", "transit", "enzyme", "beam")
"""Families for tuning; fixed before any method was run."""

REPORTING = (
    "pharmacokinetics", "fitzhugh-nagumo", "ornstein-uhlenbeck", "projectile", "kepler", "sources", "circuit",
)  # fmt: skip
"""Families for reporting only."""

SEEDS = {"development": 0, "reporting": 100}
"""Seeds of the problems' constants in the benchmark, fixed before any method was run."""

PROBLEMS: dict[str, tuple[str, ...]] = {
    "linear": ("none", "gain-offset", "noise-scale", "correlated-noise", "channels", "prior-shift"),
    "oscillator": ("none", "missing-physics", "lag", "clock-drift"),
    "sir": ("missing-physics", "nuisance", "outliers"),
    "g-and-k": ("none", "outliers", "saturation", "prior-shift"),
    "heat": ("missing-physics", "gain-offset", "channels", "heavy-tails"),
    "transit": ("nuisance", "correlated-noise", "heteroscedastic"),
    "enzyme": ("missing-physics", "noise-scale", "heteroscedastic", "channels", "calibration-shift"),
    "beam": ("missing-physics", "saturation", "gain-offset"),
    "pharmacokinetics": ("none", "missing-physics", "heteroscedastic", "prior-shift"),
    "fitzhugh-nagumo": ("nuisance", "lag", "correlated-noise", "clock-drift"),
    "ornstein-uhlenbeck": ("missing-physics", "gain-offset", "calibration-shift"),
    "projectile": ("none", "missing-physics", "lag", "outliers"),
    "kepler": ("nuisance", "heavy-tails", "prior-shift"),
    "sources": ("missing-physics", "gain-offset", "saturation"),
    "circuit": ("missing-physics", "gain-offset", "clock-drift", "calibration-shift", "noise-scale", "heavy-tails"),
}
"""Kinds of misspecification by family."""

_CLASSES = {
    "linear": "Linear", "oscillator": "Oscillator", "pharmacokinetics": "Pharmacokinetics", "sir": "SIR",
    "fitzhugh-nagumo": "FitzHughNagumo", "g-and-k": "GAndK", "ornstein-uhlenbeck": "OrnsteinUhlenbeck", "heat": "Heat",
    "projectile": "Projectile", "transit": "Transit", "kepler": "Kepler", "sources": "Sources", "beam": "Beam",
    "circuit": "Circuit", "enzyme": "Enzyme",
}  # fmt: skip


SERIES = ("oscillator", "sir", "transit", "fitzhugh-nagumo", "ornstein-uhlenbeck", "projectile", "circuit")
IMAGES = ("beam", "sources")
"""Families whose data need an embedding network; the data of all others are vectors."""


def names(families: Iterable[str] = PROBLEMS) -> tuple[str, ...]:
    """Names of all problems, or of those of some families, such as `DEVELOPMENT` or `REPORTING`."""
    return tuple(f"zoo/{family}-{kind}" for family in families for kind in PROBLEMS[family])


def split(name: str) -> tuple[str, str]:
    """Family and kind of a problem's name."""
    for family, kinds in PROBLEMS.items():
        for kind in kinds:
            if name == f"zoo/{family}-{kind}":
                return family, kind
    close = [known for known in names() if known.startswith(name.rsplit("-", 1)[0])]
    raise ValueError(
        f"Expected a problem of the zoo, got {name!r}. Try {', '.join(close[:5] or names()[:5])}; fmcpe.tasks.zoo.names() "
        "lists all."
    )


def half_of(name: str) -> str:
    """``"development"`` or ``"reporting"``."""
    return "development" if split(name)[0] in DEVELOPMENT else "reporting"


def family_of(name: str) -> type[Family]:
    """The class of a family."""
    module = importlib.import_module(f"fmcpe.tasks.zoo.families.{name.replace('-', '_')}")
    found: type[Family] = getattr(module, _CLASSES[name])
    return found


def get(name: str, seed: int = 0) -> Problem:
    """The problem of that name, with constants and severity drawn from `seed`."""
    split(name)  # raises an error for an unknown name
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"Expected a whole number as seed, got {seed!r}. Try fmcpe.tasks.get({name!r}, seed=0).")
    return _problem(name, int(seed))


@lru_cache(maxsize=128)
def _problem(name: str, seed: int) -> Problem:
    from fmcpe.tasks.zoo.kinds import KINDS
    from fmcpe.tasks.zoo.problem import Problem

    family, kind = split(name)
    return Problem(name, family_of(family), KINDS[kind], seed)
