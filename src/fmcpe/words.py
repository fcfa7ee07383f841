"""What `CorrectedPosterior.summary` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


_STARTS = {
    "prior": "the prior",
    "uncorrected": "the base posterior as it came",
    "x-only": "y moved to the simulations by regression",
    "stepped": "the base posterior's draws shifted and stretched",
    "moved": "y moved to the simulations by regression, draws then shifted and stretched",
    "inverted": "real data regressed on the parameters, and Bayes' rule",
    "shifted": "y shifted towards the simulations by regression, the base posterior as sure as it should be",
    "shared": "half of the draws by Bayes' rule and half from shifted data, which so few pairs cannot tell apart",
    "tuned": "the base posterior fine-tuned on the pairs",
}
_WAYS = _STARTS | {f"{name}, flows": f"{says}, refined by flow matching" for name, says in _STARTS.items()}


def in_words(posterior: CorrectedPosterior) -> str:
    """What was fitted, in words."""
    corrected = posterior.method == "FMCPE"
    lines = [
        f"{'Corrected posterior' if corrected else f'Posterior by {posterior.method}'} of {posterior.corrector.space.dim} "
        f"parameter(s) given observations of shape {tuple(posterior.observation_shape)}.",
        f"Fitted on {posterior.num_pairs} calibration pairs{f', stages: {posterior.stages},' if corrected else ''} "
        f"in {posterior.history['seconds'][0]:.1f} s.",
    ]
    for name, what in (("x", "x-flow"), ("theta", "θ-flow"), ("loss", "Network")):
        losses = posterior.history.get(f"validation_{name}")
        if losses:
            lines.append(
                f"{what}: validation loss {losses[0]:.3g} at the first of {len(losses)} looks, lowest "
                f"{min(losses):.3g} (look {losses.index(min(losses)) + 1})."
            )
    scores = {k.removeprefix("evidence_"): v for k, v in posterior.history.items() if k.startswith("evidence_")}
    if scores:
        lines.append("Energy score on pairs left out of the fit, in standardised parameters (lower is better):")
        for name, (value, *gain) in sorted(scores.items(), key=lambda item: item[1][0]):
            kept = name == posterior.stages
            lines.append(f"  {value:.3f}  {_WAYS[name]}{' (kept)' if kept else _difference(*gain)}")
        lines.append(f"Kept: {_WAYS[posterior.stages]}.")
        best = min(scores, key=lambda name: scores[name][0])
        if posterior.stages not in ("prior", "uncorrected", best):
            lines.append("What seems better on these pairs is not clearly so: in doubt, the more careful way is kept.")
        if "doubt" in posterior.history:
            lines.append("The pairs hardly show that this is better than the prior: measure more of them.")
        if posterior.stages == "prior":
            lines.append("The calibration pairs carry no information that could be found: this posterior is the prior.")
        elif posterior.stages == "uncorrected":
            lines.append("No correction was clearly better on left-out pairs: this is the base posterior as it came.")
    clamped = posterior.corrector.proposal.fraction_clamped
    if clamped:
        lines.append(f"{clamped:.1%} of the last base draws fell outside the prior and were moved to its edge.")
    return "\n".join(lines)


def _difference(gain: float | None = None, error: float | None = None) -> str:
    """By how much a way is worse than what is kept."""
    if gain is None or error is None:  # a file of an earlier version
        return ""
    return f" (worse by {gain:.3f} ± {error:.3f})" if gain >= 0 else f" (better by {-gain:.3f} ± {error:.3f})"
