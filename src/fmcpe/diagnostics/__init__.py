"""Calibration diagnostics on held-out real pairs, how many pairs are enough, and where to measure next.

Plots are in `fmcpe.diagnostics.plots`, a separate import so that the diagnostics do not load matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.draws import central_coverage, ranks
from fmcpe.diagnostics.learning_curve import Forecast, LearningCurve, learning_curve
from fmcpe.diagnostics.suggest import design_weights, suggest
from fmcpe.diagnostics.suspects import Suspect, suspects

__all__ = [
    "CalibrationResult",
    "CoverageResult",
    "Forecast",
    "LearningCurve",
    "SBCResult",
    "Suspect",
    "calibration",
    "central_coverage",
    "coverage",
    "design_weights",
    "learning_curve",
    "ranks",
    "sbc",
    "sbc_of_draws",
    "suggest",
    "suspects",
]
