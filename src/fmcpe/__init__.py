"""fmcpe: correct a simulation-trained posterior with a few real measurements."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmcpe import baselines, candidates, diagnostics, metrics, tasks
    from fmcpe._errors import FileError, FMCPEWarning
    from fmcpe.base_posteriors.adapters import as_base_posterior
    from fmcpe.base_posteriors.npe import train_npe
    from fmcpe.base_posteriors.simulation import simulate
    from fmcpe.candidates.paper import Paper
    from fmcpe.io.pairs import read_pairs
    from fmcpe.io.prior_file import read_prior
    from fmcpe.method import FMCPE
    from fmcpe.posterior import CorrectedPosterior
    from fmcpe.serialization.files import load
    from fmcpe.stacking import Stack
    from fmcpe.tasks.published import paper_settings

__version__ = "0.1.0"

_HOMES = {
    "FMCPE": "fmcpe.method",
    "FMCPEWarning": "fmcpe._errors",
    "FileError": "fmcpe._errors",
    "CorrectedPosterior": "fmcpe.posterior",
    "Paper": "fmcpe.candidates.paper",
    "Stack": "fmcpe.stacking",
    "as_base_posterior": "fmcpe.base_posteriors.adapters",
    "load": "fmcpe.serialization.files",
    "paper_settings": "fmcpe.tasks.published",
    "read_pairs": "fmcpe.io.pairs",
    "read_prior": "fmcpe.io.prior_file",
    "simulate": "fmcpe.base_posteriors.simulation",
    "train_npe": "fmcpe.base_posteriors.npe",
}
_MODULES = ("baselines", "candidates", "diagnostics", "metrics", "tasks")

__all__ = [
    "FMCPE",
    "CorrectedPosterior",
    "FMCPEWarning",
    "FileError",
    "Paper",
    "Stack",
    "as_base_posterior",
    "baselines",
    "candidates",
    "diagnostics",
    "load",
    "metrics",
    "paper_settings",
    "read_pairs",
    "read_prior",
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
    return sorted([*__all__, "__version__"])
