"""Methods to compare with, each ``(...).fit(theta, y) -> posterior`` with the drawing methods of `CorrectedPosterior`."""

from fmcpe.baselines.npe import NPE

__all__ = ["NPE"]
