"""Intervals with a finite-sample guarantee, as methods of the corrected posterior; the theory is in `fmcpe.diagnostics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

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

        Designs with a few fixed values of a parameter are refused: nothing is known between the values.

        Args:
            theta: Physical parameters of pairs that the fit has not seen, (n, p); 9 of them for 90 % intervals, 19 for 95 %.
            y: Real measurements taken at them, (n, ...).
            weights: For θ drawn from another density than the target prior, as in a design: the ratio p_target / p_design,
                up to a constant, a function of physical θ, (N, p) -> (N,). See `fmcpe.diagnostics.label_shift`.
            num_samples: Draws per observation that median and half-width are estimated from.
            seed: Of the draws, and of which of several pairs with the same θ counts.
        """
        from fmcpe.diagnostics.conformal import SplitConformal, held_out_pairs
        from fmcpe.diagnostics.label_shift import LabelShiftConformal

        posterior = cast("CorrectedPosterior", self)
        theta, y = held_out_pairs(posterior, theta, y)
        if weights is None:
            self.conformal = SplitConformal.of(posterior, theta, y, num_samples, seed)
        else:
            self.conformal = LabelShiftConformal.of(posterior, theta, y, weights, num_samples, seed)
        return posterior

    def interval(self, level: float = 0.9, x: Any = None, *, joint: bool = False, seed: int = 0) -> Intervals:
        """Intervals with a finite-sample guarantee for real observations.

        `conformalize` comes first, or ``fit(..., conformal="cv+")``.

        Args:
            level: Nominal probability, 1 - α; what of it is promised, the intervals say.
            x: One real observation, or a batch (B, ...); the default one if None.
            joint: Whether all parameters together lie inside with that probability, or each by itself.
            seed: Of the draws.

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
