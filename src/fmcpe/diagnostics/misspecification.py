r"""How wrong is the simulator, and does it need a correction? An answer from the calibration pairs.

Three questions, each with its own evidence:

    Are real data like simulations?  permutation tests in summary space (`fmcpe.diagnostics.two_sample`): y_j against
                                     simulations at θ_j, which tests the simulator alone, and all y against the prior's
    Does it matter for θ?            shift and width of the uncorrected posterior on the pairs, parameter by parameter
    What corrects it?                the stacking weights, and the cross-validated score of the correction over that of none

Without pairs, real observations alone answer half of the first: all y against the prior's simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fmcpe._options import check_level, check_whole
from fmcpe.diagnostics.calibration import passed, sbc_of_draws
from fmcpe.diagnostics.cross_validated import bootstrap_ratio, few_words, held_out_of
from fmcpe.diagnostics.two_sample import ConditionalTest, MarginalTest, conditional_test, marginal_test
from fmcpe.diagnostics.unlabelled import unlabelled_test, unlabelled_verdict
from fmcpe.metrics import energy_score
from fmcpe.problem import one_of_each

_WORDS = {
    "shift": "all real data are off by a common shift",
    "trend": "real data are off by an amount that changes with θ",
    "spread": "real data scatter about simulations at their θ in another way than simulations do",
    "shape": "the distributions of real and simulated data at the same θ differ",
}
_ROLES = {
    "uncorrected": "the simulation-trained posterior as it is",
    "prior": "the prior: for this share the pairs carry no information",
    "residual_shift": "a shift of the data, then the simulation-trained posterior",
    "synthetic_likelihood": "a likelihood of real data learned from the pairs alone, with no simulator in between",
    "joint_flow": "a transport of data and of parameters",
    "fine_tuned": "the simulation-trained network, fine-tuned on the pairs",
    "gaussian_transport": "an alignment of real and simulated data, then the simulation-trained posterior",
}


@dataclass(frozen=True)
class ParameterShift:
    """The uncorrected posterior on the pairs, one parameter.

    Args:
        name: Of the parameter.
        shift: Median over the pairs of (posterior mean - truth) / posterior standard deviation: above 0, estimates are too
            high.
        width: Spread of the same ratio, normal-consistent interquartile range: above 1, intervals are too narrow.
        verdict: Of its ranks (`fmcpe.diagnostics.sbc_of_draws`), at the level of the report over all parameters.
    """

    name: str
    shift: float
    width: float
    verdict: str

    @property
    def calibrated(self) -> bool:
        """Whether the pairs show no miscalibration."""
        return passed(self.verdict)

    @property
    def words(self) -> str:
        """What is wrong about it, in short."""
        parts = []
        if "biased" in self.verdict:
            parts.append(f"{abs(self.shift):.1f} standard deviations too {'high' if self.shift > 0 else 'low'}")
        if "narrow" in self.verdict:
            # ranks judge the tails, too; the factor is that of the quartiles alone
            by = f" by a factor of {self.width:.1f}" if self.width > 1.05 else ""
            parts.append(f"intervals too narrow{by}")
        if "too wide" in self.verdict:
            by = f" by a factor of {1 / max(self.width, 1e-9):.1f}" if self.width < 0.95 else ""
            parts.append(f"intervals too wide{by}")
        return ", ".join(parts) or self.verdict


@dataclass(frozen=True)
class MisspecificationResult:
    """Tests of the simulator, and what its errors do to θ; `summary()` formats them.

    Args:
        conditional: y_j against simulations at θ_j: a test of the simulator alone; None without θ, and in files of earlier
            versions.
        marginal: All y against simulations from the prior, which also sees another distribution of θ; None without a simulator.
        parameters: The uncorrected posterior on the pairs; empty if it was no candidate, and without θ.
        weights: Stacking weights; empty without θ.
        score_ratio: Cross-validated energy score of the correction over that of none, with a 90 % bootstrap interval; NaN
            if the uncorrected posterior was no candidate.
        level: Of each test.
        verdict: In words.
    """

    conditional: ConditionalTest | None
    marginal: MarginalTest | None
    parameters: tuple[ParameterShift, ...]
    weights: dict[str, float]
    score_ratio: tuple[float, float, float]
    level: float
    verdict: str
    labelled: bool = True
    """Whether θ of the observations is known."""

    @property
    def refuted(self) -> bool:
        """Whether the pairs refute the simulator, at the level; without θ, whether y refute simulator and prior together."""
        if not self.labelled:
            return self.marginal is not None and self.marginal.p_mmd <= self.level
        return self.conditional is not None and self.conditional.p_value <= self.level

    def summary(self) -> str:
        """Verdict, tests, parameters and weights."""
        lines = [self.verdict, ""]
        if self.conditional is not None:
            c = self.conditional
            each = ", ".join(f"{name} {p:.3g}" for name, p in c.p_values.items())
            lines.append(
                f"Simulator: {c.pairs} pairs, each against {c.simulations} simulation(s) at its θ: p = "
                f"{c.p_value:.3g} ({each})."
            )
            if not math.isnan(c.distance_ratio):
                lines.append(
                    f"Real data lie {c.distance_ratio:.2f} times as far from simulations at their θ as these from each other; "
                    f"{c.common_share:.0%} of the squared distance is the same for all pairs."
                )
        if self.marginal is not None:
            m = self.marginal
            what, rows = ("Data and θ together", "pairs") if self.labelled else ("All data", "observations")
            lines.append(
                f"{what}, against {m.simulations} simulations from the prior: MMD² {m.mmd:.3g}, p = {m.p_mmd:.3g}; log "
                f"densities lower, p = {m.p_log_prob:.3g}; {m.unlike} of {m.pairs} {rows} below 99 % of simulations."
            )
        if self.parameters:
            width = max(9, *(len(line.name) for line in self.parameters))
            lines += [
                "",
                "Uncorrected posterior on the pairs:",
                f"{'parameter':<{width}}  shift/sd  too narrow by  verdict",
            ]
            lines += [
                f"{line.name:<{width}}  {line.shift:+8.2f}  {line.width:13.2f}  {line.verdict}"
                for line in self.parameters
            ]
        if not self.labelled:
            return "\n".join(lines)
        lines += ["", "What the answer is made of:"]
        lines += [
            f"  {weight:4.0%}  {name}: {_ROLES.get(name, 'a candidate of your own')}"
            for name, weight in self.weights.items()
            if weight > 0
        ]
        return "\n".join(lines)


def misspecification(
    posterior: Any,
    y_unlabelled: Any = None,
    simulator: Callable[[Tensor], Any] | None = None,
    *,
    simulations: tuple[Any, Any] | None = None,
    num_simulations: int = 1000,
    num_permutations: int = 999,
    level: float = 0.05,
    seed: int = 0,
) -> MisspecificationResult:
    """Whether the pairs refute the simulator, in which way, and whether it matters; or whether real observations alone do.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`. With `y_unlabelled`, any corrected or base posterior: the
            test is in the space of its summaries.
        y_unlabelled: Real measurements at unknown parameters, (M, ...), one or more. Then the pairs are not used.
        simulator: With `y_unlabelled`: it is run at `num_simulations` draws of the prior.
        simulations: With `y_unlabelled`: existing simulations ``(theta, x)`` from the prior, in place of the simulator.
        num_simulations: See `simulator`; of more `simulations`, the first.
        num_permutations: Of each test: the smallest p-value is 1/(num_permutations + 1).
        level: Of each test: a right simulator is called refuted with this probability.
        seed: Of permutations, bootstrap and simulations.

    Example:
        >>> result = fmcpe.diagnostics.misspecification(base, y_test, simulator)
        >>> result.refuted, result.marginal.pairs
        (True, 50)
    """
    check_level(level, "Try misspecification(posterior, level=0.05).")
    check_whole("num_permutations", num_permutations, 1, 999)
    check_whole("num_simulations", num_simulations, 1, 1000)
    if y_unlabelled is not None:
        test = unlabelled_test(posterior, y_unlabelled, simulator, simulations, num_simulations, num_permutations, seed)
        verdict = unlabelled_verdict(test, level)
        return MisspecificationResult(None, test, (), {}, (math.nan,) * 3, level, verdict, labelled=False)
    if simulator is not None or simulations is not None:
        raise ValueError(
            "Expected y_unlabelled with a simulator or simulations, got none. Pass y_unlabelled=, or neither."
        )
    held_out, truth, names = held_out_of(posterior)
    options = {"num_permutations": num_permutations, "seed": seed}
    conditional = marginal = None
    if held_out.at_pairs is not None:
        conditional = conditional_test(held_out.seen, held_out.at_pairs, truth, **options)
    if held_out.simulated is not None:
        marginal = marginal_test(held_out.seen, held_out.simulated, **options)
    parameters, ratio = tuple[ParameterShift, ...](), (math.nan,) * 3
    if held_out.before is not None:
        rows = one_of_each(held_out.theta, seed).sort().values  # repeats at one θ are not independent
        parameters = parameter_shifts(held_out.before[rows], truth[rows], names, level, seed)
        after, before = (
            energy_score(z[rows].movedim(0, 1), truth[rows], reduce=False) for z in (held_out.z, held_out.before)
        )
        ratio = bootstrap_ratio(after, before, seed)
    verdict = _verdict(conditional, marginal, parameters, ratio, level)
    return MisspecificationResult(conditional, marginal, parameters, dict(posterior.weights), ratio, level, verdict)


def parameter_shifts(
    draws: Tensor, truth: Tensor, names: tuple[str, ...], level: float, seed: int = 0
) -> tuple[ParameterShift, ...]:
    """Shift and width of draws (N, S, p) about the truth (N, p)."""
    if len(truth) < 3:
        return ()
    ratio = ((draws.mean(1) - truth) / draws.std(1).clamp_min(1e-9)).double()
    quarter, middle, three_quarters = ratio.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=ratio.dtype), dim=0)
    width = (three_quarters - quarter) / 1.349
    verdicts = sbc_of_draws(draws.movedim(0, 1), truth, names=names, level=level, seed=seed).verdicts
    return tuple(map(ParameterShift, names, middle.tolist(), width.tolist(), few_words(verdicts, len(truth))))


def _verdict(
    conditional: ConditionalTest | None,
    marginal: MarginalTest | None,
    parameters: tuple[ParameterShift, ...],
    ratio: tuple[float, float, float],
    level: float,
) -> str:
    parts = []
    refuted = conditional is not None and conditional.p_value <= level
    if conditional is None:
        parts.append("This posterior keeps no simulations at the pairs' θ: fit it again to test the simulator alone.")
    elif refuted:
        parts.append(f"The pairs refute the simulator (p = {conditional.p_value:.2g}): {_kind(conditional, level)}.")
    else:
        parts.append(
            f"{conditional.pairs} pairs do not refute the simulator (p = {conditional.p_value:.2g}); they would "
            f"probably miss a "
            f"common shift below {conditional.detectable_shift:.2f} standard deviations of simulations at one θ."
        )
    if marginal is not None and conditional is not None and not refuted and marginal.p_mmd <= level:
        parts.append(
            f"But their data are distributed otherwise than simulations from the prior (p = {marginal.p_mmd:.2g}): their θ are "
            "not drawn from it. If θ in use are not either, pass target_prior=."
        )
    parts += _consequences(parameters, ratio)
    return " ".join(parts)


def _kind(conditional: ConditionalTest, level: float) -> str:
    """Which difference it is: the smallest adjusted p-value names it; the others follow from it or add to it."""
    found = [name for name, p in conditional.p_values.items() if p <= level]
    # a shift or a trend also changes spread and shape, but not the other way round
    named = [name for name in found if name in ("shift", "trend")] or found[:1]
    return " and ".join(_WORDS[name] for name in named)


def _consequences(parameters: tuple[ParameterShift, ...], ratio: tuple[float, float, float]) -> list[str]:
    if not parameters:
        return []
    wrong = [line for line in parameters if not line.calibrated]
    if wrong:
        each = [f"{line.name} ({line.words})" for line in wrong]
        parts = [f"Uncorrected, the posterior is wrong about {', '.join(each)}."]
    else:
        parts = ["Uncorrected, the posterior shows no miscalibration on them."]
    middle, low, high = ratio
    size = f"{middle:.2f} ({low:.2f} to {high:.2f}) times the energy score of no correction"
    if high < 1:
        parts.append(f"A correction is needed: it has {size}, cross-validated.")
    elif low > 1:
        parts.append(f"The correction does harm: it has {size}, cross-validated. Use the uncorrected posterior.")
    else:
        parts.append(f"Whether a correction is needed, these pairs do not tell: it has {size}, cross-validated.")
    return parts
