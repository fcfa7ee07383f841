"""Is the posterior calibrated? An answer from the calibration pairs alone.

A posterior of the default recipe keeps draws for each pair from members that have not seen it, with weights and recalibration
computed without the pair's fold. They show calibration and score on new pairs, approximately: the members that answer a pair
were fitted on four fifths of the others, and the deployed posterior mixes all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from fmcpe._options import check_level
from fmcpe._random import seeded
from fmcpe.diagnostics.calibration import PASSED, TOO_FEW, CoverageResult, SBCResult, coverage, passed, sbc_of_draws
from fmcpe.diagnostics.pit import PITResult, pit_of_draws
from fmcpe.metrics import crps, energy_score
from fmcpe.problem import one_of_each

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior
    from fmcpe.record import HeldOut


ENOUGH = 100
"""Pairs with different θ from which on the word is "calibrated" where no fault is seen."""

NOT_TESTED = "not tested: the same value in all pairs"


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """Calibration and score on held-out pairs; `summary()` formats them.

    Attributes:
        sbc: Ranks, and a verdict for each parameter.
        pit: Empirical distribution functions of the ranks, with simultaneous bands.
        coverage: Of central intervals, and of TARP's balls.
        energy: Cross-validated energy score.
        energy_ratio: Over that of the uncorrected posterior, with a 90 % bootstrap interval; NaN if that was no candidate.
        crps: Cross-validated CRPS of each parameter, in prior standard deviations of unconstrained θ, (p,).
        crps_ratio: Over that of the uncorrected posterior, likewise, one for each parameter.
        detectable_bias: Bias, in posterior standard deviations, that N pairs detect with a probability of 80 %.
        detectable_scale: Factor by which intervals are too narrow that they show with a probability of 80 %.
        verdict: In words.
    """

    sbc: SBCResult
    pit: PITResult
    coverage: CoverageResult
    energy: float
    energy_ratio: tuple[float, float, float]
    crps: Tensor
    crps_ratio: tuple[tuple[float, float, float], ...]
    detectable_bias: float
    detectable_scale: float
    verdict: str

    @property
    def refuted(self) -> bool:
        """Whether the pairs show that some parameter is over-confident, biased, or miscalibrated in another way."""
        return not all(passed(each) or each.startswith(("too wide", NOT_TESTED)) for each in self.sbc.verdicts)

    @property
    def conclusive(self) -> bool:
        """Whether the posterior is calibrated, and the pairs are enough to tell."""
        return self.verdict.startswith("Calibrated")

    def numbers(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": self.verdict,
            "pairs": len(self.sbc.ranks),
            "refuted": self.refuted,
            "conclusive": self.conclusive,
            "verdicts": dict(zip(self.sbc.names, self.sbc.verdicts, strict=True)),
            "bias": self.sbc.bias.tolist(),
            "width_factor": self.sbc.scale.tolist(),
            "ks_p": self.sbc.p_values.tolist(),
            "pit": {
                "points": self.pit.points.tolist(),
                "ecdf": self.pit.ecdf.T.tolist(),
                "band": self.pit.band.tolist(),
            },
            "tarp": None if self.coverage.joint is None else self.coverage.joint.tolist(),
            "energy": self.energy,
            "energy_ratio": list(self.energy_ratio),
            "crps": self.crps.tolist(),
            "crps_ratio": [list(each) for each in self.crps_ratio],
            "detectable_bias": self.detectable_bias,
            "detectable_width_factor": self.detectable_scale,
        }

    def summary(self) -> str:
        """Verdict, scores, ranks and coverage."""
        lines = [f"Cross-validated energy score {self.energy:.3g}{_against(self.energy_ratio)}."]
        for name, score, ratio in zip(self.sbc.names, self.crps.tolist(), self.crps_ratio, strict=True):
            lines.append(f"CRPS of {name} {score:.3g}{_against(ratio)}.")
        parts = (self.sbc.summary(), self.pit.summary(), self.coverage.summary())
        return "\n\n".join([self.verdict, "\n".join(lines), *parts])

    def __repr__(self) -> str:
        return self.summary()


def _against(ratio: tuple[float, float, float]) -> str:
    middle, low, high = ratio
    return (
        ""
        if math.isnan(middle)
        else f", {middle:.2f} ({low:.2f} to {high:.2f}) times that of the uncorrected posterior"
    )


def calibration(posterior: CorrectedPosterior, *, level: float = 0.02, seed: int = 0) -> CalibrationResult:
    """Calibration of a posterior on its own pairs, each answered by members that have not seen it.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`.
        level: Of all tests together: an exact posterior is called miscalibrated with at most this probability.
        seed: Of tie-breaking and bootstrap.

    Example:
        >>> from fmcpe import diagnostics
        >>> result = diagnostics.calibration(posterior)
        >>> result.sbc.ranks.shape, result.energy_ratio[0] < 1  # thirty pairs; better than the uncorrected posterior
        (torch.Size([30, 1]), True)
    """
    check_level(level, "Try calibration(posterior, level=0.02).")
    held_out, truth, names = held_out_of(posterior)
    rows = one_of_each(held_out.theta, seed).sort().values  # repeats at one θ are not independent
    before = None if held_out.before is None else held_out.before[rows]
    return calibration_of_draws(held_out.z[rows], truth[rows], before, names, level, seed)


def held_out_of(posterior: CorrectedPosterior) -> tuple[HeldOut, Tensor, tuple[str, ...]]:
    """What a posterior keeps of its pairs, their true z (N, p), and the parameters' names; on the CPU."""
    held_out = posterior.held_out
    if held_out is None:
        raise ValueError(
            f"Expected a posterior with cross-validated draws, got one of {posterior.method} without. Fit it with "
            'FMCPE(..., recipe="default"), or test it on new pairs: fmcpe.diagnostics.sbc(posterior, theta, y).'
        )
    names = tuple(line.name for line in posterior.record.parameters)
    return held_out.cpu(), posterior.space.to_z_safely(held_out.theta).cpu(), names


def physical(posterior: CorrectedPosterior, z: Tensor) -> Tensor:
    """Physical θ of z (..., p), on the CPU."""
    space = posterior.space
    return space.to_theta(z.flatten(0, -2).to(space.standardiser.mean.device)).reshape(z.shape).cpu()


def bootstrap_ratio(after: Tensor, before: Tensor, seed: int, resamples: int = 1000) -> tuple[float, float, float]:
    """Ratio of the means of two scores of the same pairs, (N,) each, and its 90 % bootstrap interval over pairs."""
    with seeded(seed):
        rows = torch.randint(len(after), (resamples, len(after)))
    ratios = after[rows].mean(1) / before[rows].mean(1)
    low, high = ratios.quantile(torch.tensor([0.05, 0.95], dtype=ratios.dtype)).tolist()
    return float(after.mean() / before.mean()), low, high


def calibration_of_draws(
    z: Tensor, truth: Tensor, before: Tensor | None, names: tuple[str, ...], level: float = 0.02, seed: int = 0
) -> CalibrationResult:
    """The same of draws (N, S, p) for true z (N, p), against draws (N, S', p) of the uncorrected posterior."""
    number, dim = truth.shape
    samples = z.movedim(0, 1)
    ranks = sbc_of_draws(samples, truth, names=names, level=level, seed=seed)
    # ranks are uniform over draws of the prior, not at one value
    varied = (truth.max(0).values > truth.min(0).values).tolist()
    pit = pit_of_draws(samples, truth, names, level=1 - level, seed=seed)
    inside = coverage(samples, truth, region="tarp", names=names, seed=seed)
    energy, each = energy_score(samples, truth, reduce=False), crps(samples, truth, reduce=False)
    energy_ratio, crps_ratio = (math.nan,) * 3, ((math.nan,) * 3,) * dim
    if before is not None:
        earlier = before.movedim(0, 1)
        energy_ratio = bootstrap_ratio(energy, energy_score(earlier, truth, reduce=False), seed)
        old = crps(earlier, truth, reduce=False)
        crps_ratio = tuple(bootstrap_ratio(each[:, k], old[:, k], seed) for k in range(dim))
    alpha = level / (3 * dim)
    bias = (stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(0.8)) / math.sqrt(number)
    scale = _detectable_scale(number, len(samples), alpha, seed)
    said = few_words(ranks.verdicts, number, f"no miscalibration seen, but {_missed(bias, scale)}")
    ranks = replace(ranks, verdicts=tuple(v if ok else NOT_TESTED for v, ok in zip(said, varied, strict=True)))
    return CalibrationResult(
        ranks, pit, inside, float(energy.mean()), energy_ratio, each.mean(0), crps_ratio, bias, scale,
        _verdict(ranks, number, bias, scale),
    )  # fmt: skip


def few_words(verdicts: tuple[str, ...], number: int, words: str = "no miscalibration seen") -> tuple[str, ...]:
    """Verdicts on parameters, none of which is called calibrated by few pairs."""
    return tuple(f"{TOO_FEW}: {words}" if number < ENOUGH and each == PASSED else each for each in verdicts)


def _missed(bias: float, scale: float) -> str:
    """The smallest deviations that N pairs probably show."""
    width = f"intervals too narrow by less than a factor of {scale:.2f}" if math.isfinite(scale) else "any wrong width"
    return f"they would probably miss a bias below {bias:.2f} posterior standard deviations, or {width}"


def _detectable_scale(number: int, draws: int, alpha: float, seed: int) -> float:
    """Smallest factor by which a normal posterior is too narrow that the test of ζ shows with a probability of 80 %.

    Ranks among few draws saturate, so the variance of ζ grows more slowly than the factor's square: it is simulated.
    """
    wanted = stats.chi2.ppf(1 - alpha / 2, number - 1) / stats.chi2.ppf(0.2, number - 1)
    factors = torch.linspace(1, 4, 61)
    normal = torch.distributions.Normal(0.0, 1.0)
    with seeded(seed):
        below = normal.cdf(factors * torch.randn(4000, 1))
        u = (torch.distributions.Binomial(draws, below).sample() + torch.rand(below.shape)) / (draws + 1)
    reached = (normal.icdf(u).var(0) >= wanted).nonzero()
    return float(factors[reached[0, 0]]) if len(reached) else math.inf


def _verdict(ranks: SBCResult, number: int, bias: float, scale: float) -> str:
    words = []
    for name, verdict, mean in zip(ranks.names, ranks.verdicts, ranks.bias.tolist(), strict=True):
        if "over-confident" in verdict:
            words.append(f"over-confident in {name}")
        if "under-confident" in verdict:
            words.append(f"under-confident in {name}")
        if "biased" in verdict:
            words.append(f"biased {'downwards' if mean > 0 else 'upwards'} in {name}")
        if "not uniform" in verdict:
            words.append(f"miscalibrated in {name}")
    if words:
        return f"On {number} held-out pairs the posterior is {', '.join(words)}."
    missed = _missed(bias, scale)
    if number < ENOUGH:
        return f"{TOO_FEW.capitalize()}: {number} held-out pairs show no miscalibration, but {missed}."
    return f"Calibrated, each parameter by itself: {number} held-out pairs show no miscalibration; {missed}."
