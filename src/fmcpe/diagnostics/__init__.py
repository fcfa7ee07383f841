"""Checks on real pairs: is the posterior calibrated, and how does that look?

Plots are in `fmcpe.diagnostics.plots`, which is imported on its own so that the checks don't load matplotlib.
"""

from fmcpe.diagnostics.calibration import CoverageResult, SBCResult, coverage, sbc, sbc_of_draws
from fmcpe.diagnostics.draws import central_coverage, ranks

__all__ = ["CoverageResult", "SBCResult", "central_coverage", "coverage", "ranks", "sbc", "sbc_of_draws"]
