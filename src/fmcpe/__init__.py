"""fmcpe: correct a simulation-trained posterior with a few real measurements, by flow matching."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmcpe import baselines, diagnostics, metrics, tasks
    from fmcpe._errors import FMCPEWarning
    from fmcpe.adapters import as_proposal
    from fmcpe.correction import FMCPE
    from fmcpe.io import load
    from fmcpe.npe import train_npe
    from fmcpe.posterior import CorrectedPosterior
    from fmcpe.recipe import Recipe, paper_settings
    from fmcpe.simulations import simulate

__version__ = "0.1.0"

_HOMES = {
    "FMCPE": "fmcpe.correction",
    "FMCPEWarning": "fmcpe._errors",
    "CorrectedPosterior": "fmcpe.posterior",
    "Recipe": "fmcpe.recipe",
    "as_proposal": "fmcpe.adapters",
    "load": "fmcpe.io",
    "paper_settings": "fmcpe.recipe",
    "simulate": "fmcpe.simulations",
    "train_npe": "fmcpe.npe",
}
_MODULES = ("baselines", "diagnostics", "metrics", "tasks")

__all__ = [
    "FMCPE",
    "CorrectedPosterior",
    "FMCPEWarning",
    "Recipe",
    "as_proposal",
    "baselines",
    "diagnostics",
    "load",
    "metrics",
    "paper_settings",
    "simulate",
    "tasks",
    "train_npe",
]


def __getattr__(name: str) -> Any:
    # torch and sbi take seconds to import, and sbi changes torch's settings: wait until a name is used
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"fmcpe.{name}")
    raise AttributeError(f"module 'fmcpe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
