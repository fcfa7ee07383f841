"""Can the answer be believed? Diagnostics on held-out real pairs.

`calibration`, `misspecification`, `suspects`, `span` and `suggest` need a fitted posterior alone, also one from a file; `sbc`,
`coverage` and `compare` take new pairs; `learning_curve` refits. Plots are in `fmcpe.diagnostics.plots`, imported apart so that
the diagnostics do not load matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.compare import Comparison, compare
from fmcpe.diagnostics.conformal import Intervals
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.cv_plus import CVPlus
from fmcpe.diagnostics.draws import central_coverage, ranks
from fmcpe.diagnostics.learning_curve import Forecast, LearningCurve, learning_curve
from fmcpe.diagnostics.misspecification import MisspecificationResult, ParameterShift, misspecification
from fmcpe.diagnostics.pit import PITResult, pit_of_draws
from fmcpe.diagnostics.predictive import PredictiveCheck, predictive
from fmcpe.diagnostics.span import Gap, JointSpan, Span, joint_span, span
from fmcpe.diagnostics.suggest import design_weights, suggest
from fmcpe.diagnostics.suspects import Suspect, suspects
from fmcpe.diagnostics.two_sample import ConditionalTest, MarginalTest, conditional_test, marginal_test

__all__ = [
    "CVPlus",
    "CalibrationResult",
    "Comparison",
    "ConditionalTest",
    "CoverageResult",
    "Forecast",
    "Gap",
    "Intervals",
    "JointSpan",
    "LearningCurve",
    "MarginalTest",
    "MisspecificationResult",
    "PITResult",
    "ParameterShift",
    "PredictiveCheck",
    "SBCResult",
    "Span",
    "Suspect",
    "calibration",
    "central_coverage",
    "compare",
    "conditional_test",
    "coverage",
    "design_weights",
    "joint_span",
    "learning_curve",
    "marginal_test",
    "misspecification",
    "pit_of_draws",
    "predictive",
    "ranks",
    "sbc",
    "sbc_of_draws",
    "span",
    "suggest",
    "suspects",
]
