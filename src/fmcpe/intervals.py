"""Intervals with a finite-sample guarantee, as methods of the corrected posterior; the theory is in `fmcpe.diagnostics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from fmcpe._options import check_whole

if TYPE_CHECKING:
    from fmcpe.diagnostics.conformal import Conformal, Intervals
    from fmcpe.posterior import CorrectedPosterior


class WithIntervals:
    """Methods of `CorrectedPosterior` for conformal intervals."""

    conformal: Conformal | None = None
    """Calibrated intervals, after `conformalize` or ``fit(..., conformal="cv+")``."""

    def conformalize(
        self,
        theta: Any,
        y: Any,
        *,
        weights: Callable[[Tensor], Any] | None = None,
        num_samples: int = 1000,
        seed: int = 0,
    ) -> CorrectedPosterior:
        """Calibrate `interval` on held-out pairs (`fmcpe.diagnostics.conformal`), in place. Pairs with the same θ count once.

        Designs with a few fixed values of a parameter are refused: coverage between these values cannot be guaranteed.

        Args:
            theta: Physical parameters of held-out pairs, (n, p): at least 9 for 90 % intervals, 19 for 95 %.
            y: Real measurements taken at them, (n, ...).
            weights: For θ drawn from another density than the target prior, as in a design: the ratio p_target / p_design,
                up to a constant, a function of physical θ, (N, p) -> (N,). See `fmcpe.diagnostics.label_shift`.
            num_samples: Draws per observation, for median and half-width.
            seed: Seed of the draws, and of the choice among pairs with the same θ.
        """
        from fmcpe.diagnostics.conformal import SplitConformal, held_out_pairs
        from fmcpe.diagnostics.label_shift import LabelShiftConformal

        check_whole("num_samples", num_samples, 10, 1000)
        posterior = cast("CorrectedPosterior", self)
        theta, y = held_out_pairs(posterior, theta, y)
        if weights is None:
            self.conformal = SplitConformal.of(posterior, theta, y, num_samples, seed)
        else:
            self.conformal = LabelShiftConformal.of(posterior, theta, y, weights, num_samples, seed)
        return posterior

    def interval(self, level: float = 0.9, x: Any = None, *, joint: bool = False, seed: int = 0) -> Intervals:
        """Intervals with a finite-sample guarantee for real observations.

        Requires `conformalize`, or ``fit(..., conformal="cv+")``.

        Args:
            level: Nominal coverage, 1 - α; `Intervals.guarantee` states what is guaranteed.
            x: One real observation, or a batch (B, ...); the default one if None.
            joint: Whether the level holds for all parameters jointly, or for each of them.
            seed: Seed of the draws.

        Example:
            >>> found = posterior.conformalize(theta_test, y_test).interval(0.9, x=y_obs)
            >>> bool(found.low < found.high), found.num_pairs
            (True, 50)
            >>> found.guarantee.split(",")[0]
            'For a new real observation'
        """
        if self.conformal is None:
            raise ValueError(
                "Expected held-out pairs to calibrate intervals on, got none. Call posterior.conformalize(theta_held_out, "
                'y_held_out) first, or fit(theta, y, conformal="cv+"); for plain credible intervals, take quantiles of '
                "posterior.sample(...)."
            )
        posterior = cast("CorrectedPosterior", self)
        y, one = posterior._observations(x)
        posterior._warn_out_of_range(y)
        found = self.conformal.intervals(posterior, y, level, joint, seed)
        return replace(found, low=found.low[0], high=found.high[0]) if one else found
