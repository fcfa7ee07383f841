"""Candidates: methods that turn pairs into a corrected posterior, one per file. A new one is a file and a line in `default`."""

from __future__ import annotations

from fmcpe.candidates.base import Candidate, Posterior
from fmcpe.candidates.fine_tuned import FineTuned
from fmcpe.candidates.gaussian_transport import GaussianTransport
from fmcpe.candidates.joint_flow import JointFlow
from fmcpe.candidates.paper import Paper
from fmcpe.candidates.prior import Prior
from fmcpe.candidates.residual_shift import ResidualShift
from fmcpe.candidates.synthetic_likelihood import SyntheticLikelihood
from fmcpe.candidates.uncorrected import Uncorrected

__all__ = [
    "Candidate",
    "FineTuned",
    "GaussianTransport",
    "JointFlow",
    "Paper",
    "Posterior",
    "Prior",
    "ResidualShift",
    "SyntheticLikelihood",
    "Uncorrected",
    "default",
]


def default() -> tuple[Candidate, ...]:
    """The candidates of the default recipe; the last one only with ``y_unlabelled=``."""
    return Prior(), Uncorrected(), ResidualShift(), SyntheticLikelihood(), JointFlow(), FineTuned(), GaussianTransport()
