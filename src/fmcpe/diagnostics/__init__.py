"""Can the answer be believed? Diagnostics on held-out real pairs.

`calibration`, `misspecification`, `suspects` and `span` need a fitted posterior alone, also one from a file; `sbc` and
`coverage` take new pairs. Plots are in `fmcpe.diagnostics.plots`, a separate import so that the diagnostics do not load
matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.cross_validated import CalibrationResult, calibration
from fmcpe.diagnostics.design import joint_span, span
from fmcpe.diagnostics.draws import central_coverage, ranks
from fmcpe.diagnostics.misspecification import MisspecificationResult, ParameterShift, misspecification
from fmcpe.diagnostics.pit import PITResult, pit_of_draws
from fmcpe.diagnostics.suspects import Suspect, suspects
from fmcpe.diagnostics.two_sample import ConditionalTest, MarginalTest, conditional_test, marginal_test
from fmcpe.span import Gap, JointSpan, Span

__all__ = [
    "CalibrationResult",
    "ConditionalTest",
    "CoverageResult",
    "Gap",
    "JointSpan",
    "MarginalTest",
    "MisspecificationResult",
    "PITResult",
    "ParameterShift",
    "SBCResult",
    "Span",
    "Suspect",
    "calibration",
    "central_coverage",
    "conditional_test",
    "coverage",
    "joint_span",
    "marginal_test",
    "misspecification",
    "pit_of_draws",
    "ranks",
    "sbc",
    "sbc_of_draws",
    "span",
    "suspects",
]
