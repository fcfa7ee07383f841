"""Calibration diagnostics on held-out real pairs.

Plots are in `fmcpe.diagnostics.plots`, a separate import so that the diagnostics do not load matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.draws import central_coverage, ranks
from fmcpe.diagnostics.suspects import Suspect, suspects

__all__ = [
    "CalibrationResult",
    "CoverageResult",
    "SBCResult",
    "Suspect",
    "calibration",
    "central_coverage",
    "coverage",
    "ranks",
    "sbc",
    "sbc_of_draws",
    "suspects",
]
