"""Posterior classes by name; only these can be built from a file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fmcpe._errors import FileError

if TYPE_CHECKING:
    from fmcpe.candidates.base import Posterior, Shared

_HOMES = {
    "Adjusted": "fmcpe.baselines.rsnl",
    "Denoised": "fmcpe.baselines.rnpe",
    "FineTunedPosterior": "fmcpe.candidates.fine_tuned",
    "GaussianTransported": "fmcpe.candidates.gaussian_transport",
    "InductiveMixture": "fmcpe.baselines.frisbi",
    "JointFlowed": "fmcpe.candidates.joint_flow",
    "Mixture": "fmcpe.mixture",
    "PriorPosterior": "fmcpe.candidates.prior",
    "Recalibrated": "fmcpe.mixture",
    "Shifted": "fmcpe.candidates.residual_shift",
    "SyntheticPosterior": "fmcpe.candidates.synthetic_likelihood",
    "TransportMixture": "fmcpe.baselines.semi_balanced",
    "Transported": "fmcpe.candidates.base",
    "WithinRange": "fmcpe.extrapolation",
}


def to_config(posterior: Posterior) -> dict[str, Any]:
    """Class and architecture of a posterior, as JSON."""
    return {"class": type(posterior).__name__} | posterior.to_config()


def from_config(config: dict[str, Any], shared: Shared) -> Posterior:
    """A posterior of that architecture, before its tensors are loaded."""
    name = config.get("class")
    if name not in _HOMES:
        raise FileError(
            f"Expected a posterior of this library, got {name!r}. Load only files written by posterior.save(...)."
        )
    found: Posterior = getattr(importlib.import_module(_HOMES[name]), name).from_config(config, shared)
    found.components = config.get("components", found.components)
    return found
