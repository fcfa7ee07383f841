"""What `CorrectedPosterior.summary` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


def in_words(posterior: CorrectedPosterior) -> str:
    """What was fitted, in words."""
    flows = posterior.method == "FMCPE"
    lines = [
        f"{'Corrected posterior' if flows else f'Posterior by {posterior.method}'} of {posterior.corrector.space.dim} "
        f"parameter(s) given observations of shape {tuple(posterior.observation_shape)}.",
        f"Fitted on {posterior.num_pairs} calibration pairs{f', stages: {posterior.stages},' if flows else ''} "
        f"in {posterior.history['seconds'][0]:.1f} s.",
    ]
    for name, what in (("x", "x-flow"), ("theta", "θ-flow"), ("loss", "Network")):
        losses = posterior.history.get(f"validation_{name}")
        if losses:
            lines.append(
                f"{what}: validation loss {losses[0]:.3g} at the first of {len(losses)} looks, lowest "
                f"{min(losses):.3g} (look {losses.index(min(losses)) + 1})."
            )
    words = {"none": "uncorrected", "x-only": "x-flow alone"}
    scores = {k.removeprefix("evidence_"): v[0] for k, v in posterior.history.items() if k.startswith("evidence_")}
    if scores:
        listed = ", ".join(
            f"{words.get(k, 'all stages')} {v:.3f}" for k, v in sorted(scores.items(), key=lambda i: i[1])
        )
        lines.append(
            f"Energy score on held-out pairs (lower is better): {listed}. Kept: {words.get(posterior.stages, 'all stages')}."
        )
    clamped = posterior.corrector.proposal.fraction_clamped
    if clamped:
        lines.append(f"{clamped:.1%} of the last base draws fell outside the prior and were moved to its edge.")
    return "\n".join(lines)
