"""Calibration diagnostics on held-out real pairs, and conformal intervals.

Plots are in `fmcpe.diagnostics.plots`, a separate import so that the diagnostics do not load matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.conformal import Intervals
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.cv_plus import CVPlus
from fmcpe.diagnostics.draws import central_coverage, ranks
from fmcpe.diagnostics.suspects import Suspect, suspects

__all__ = [
    "CVPlus",
    "CalibrationResult",
    "CoverageResult",
    "Intervals",
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
