"""Do the pairs span the question? (`fmcpe.span`), of a fitted posterior."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcpe.diagnostics.cross_validated import held_out_of
from fmcpe.span import JointSpan, Span, joint_span_of, spans

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


def span(posterior: CorrectedPosterior) -> list[Span]:
    """Each parameter among the pairs, against the target prior: range, different values, and gaps without pairs.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`.
    """
    held_out, _, names = held_out_of(posterior)
    prior = posterior.space.to_theta(posterior.shared.pool)
    return list(spans(held_out.theta, prior, names))


def joint_span(posterior: CorrectedPosterior) -> JointSpan:
    """All parameters together: the share of the target prior that is farther from all pairs than from as many of its draws."""
    _, z, names = held_out_of(posterior)
    return joint_span_of(z, posterior.shared.pool, names)
