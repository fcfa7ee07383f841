"""Calibration of a posterior on pairs `(θ_j, y_j)`: rank histograms and expected coverage.

Simulation-based calibration (Talts et al. 2018): under the correct posterior, the rank of `θ_j` among draws of
`p(θ|y_j)` is uniform. The shape of the histogram shows the error:

    ∪   many ranks at both ends:   the posterior is too narrow (over-confident)
    ∩   many ranks in the middle:  the posterior is too wide (under-confident)
    /   slope:                     the posterior is biased

The verdict tests normal scores `ζ = Φ⁻¹((rank + U)/(S + 1))`. They are standard normal under the correct posterior
and N(b, s²) under a Gaussian one with a bias of b standard deviations that is too narrow by a factor s. So the mean
of ζ (t test) measures bias alone and its standard deviation (χ² test) width alone, whereas bias also raises the ends
of the histogram. A Kolmogorov-Smirnov test detects any other shape. The three tests of p parameters have a joint
level of 5 % (Bonferroni): a correct posterior passes all of them with probability 95 %.

sbi's `run_sbc` and `run_tarp` give the same ranks and curve (tests compare them). They are not used because they
drop observations with NaN, do not accept existing draws, and `run_tarp` draws its references from torch's global
generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.diagnostics import draws
from fmcpe.metrics.samples import draws_and_truth, finite

PASSED = "calibrated: no miscalibration detected"

TOO_FEW = "too few pairs to tell"


def passed(verdict: str) -> bool:
    """Whether a verdict on a parameter reports no fault."""
    return verdict.startswith((PASSED, TOO_FEW))


@dataclass(frozen=True, eq=False)
class SBCResult:
    """Rank statistics of N observations and p parameters; `summary()` formats them.

    Attributes:
        ranks: Number of draws below the true parameter, (N, p), in 0..num_samples.
        num_samples: Draws per observation.
        counts: Observations per bin of equal probability, (bins, p).
        band: 95 % range of a bin's count under the correct posterior (binomial).
        p_values: Kolmogorov-Smirnov, per parameter.
        bias: Mean of ζ, per parameter: posterior standard deviations by which the truth exceeds the estimate.
        scale: Standard deviation of ζ, per parameter: above 1 too narrow, below 1 too wide.
        verdicts: One sentence per parameter.
        names: Names of the parameters.
        statistics: Kolmogorov-Smirnov distance of the ranks from uniform, per parameter.
    """

    ranks: Tensor
    num_samples: int
    counts: Tensor
    band: tuple[int, int]
    p_values: Tensor
    bias: Tensor
    scale: Tensor
    verdicts: tuple[str, ...]
    names: tuple[str, ...]
    statistics: Tensor

    @property
    def calibrated(self) -> bool:
        """Whether every parameter passes."""
        return all(map(passed, self.verdicts))

    def summary(self) -> str:
        """A table: parameter, bins outside the band, p-value, verdict."""
        bins, n = len(self.counts), len(self.ranks)
        low, high = self.band
        outside = ((self.counts < low) | (self.counts > high)).sum(0)
        width = max(9, *(len(name) for name in self.names))
        lines = [
            f"Simulation-based calibration: {n} observations, {self.num_samples} draws each, "
            f"{bins} bins with 95 % of counts in {low} to {high}"
        ]
        lines.append(f"{'parameter':<{width}}  outside    KS p   bias  scale  verdict")
        for k, name in enumerate(self.names):
            lines.append(
                f"{name:<{width}}  {int(outside[k]):>2} of {bins:<2}  {self.p_values[k]:6.3f}"
                f"  {self.bias[k]:+.2f}   {self.scale[k]:.2f}  {self.verdicts[k]}"
            )
        if n < 100 and PASSED in self.verdicts:
            lines.append(f"{n} observations reveal large miscalibration only: passing is weak evidence.")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class CoverageResult:
    """Expected coverage at L levels; `summary()` formats it.

    Attributes:
        levels: Nominal levels, (L,).
        central: Coverage of central intervals, (L, p).
        joint: Coverage of joint regions of all parameters, (L,), or None.
        region: Kind of the joint regions: "ellipsoid", "density", "tarp" or None, see `coverage`.
        band: 95 % range of the coverage under the correct posterior (binomial), (L, 2).
        num_observations: Number of pairs.
        names: Names of the parameters.
    """

    levels: Tensor
    central: Tensor
    joint: Tensor | None
    region: str | None
    band: Tensor
    num_observations: int
    names: tuple[str, ...]

    def columns(self) -> dict[str, Tensor]:
        """Coverage curves by name, (L,) each: the parameters, then the joint region."""
        curves = {name: self.central[:, k] for k, name in enumerate(self.names)}
        if self.joint is not None:
            curves[f"joint ({self.region})"] = self.joint
        return curves

    def summary(self) -> str:
        """A table: one row per level; coverage outside the band is marked."""
        curves = self.columns()
        widths = {name: max(8, len(name)) for name in curves}
        # TARP's curve crosses the diagonal if the width is wrong, so it has no direction.
        other = ", ≠ miscalibrated" if self.region == "tarp" else ""
        head = "  ".join(f"{name:>{widths[name]}}" for name in curves)
        lines = [
            f"Expected coverage: {self.num_observations} observations; ↓ over-confident, ↑ under-confident{other}",
            f"level    95 % band    {head}",
        ]
        for i, level in enumerate(self.levels):
            low, high = self.band[i].tolist()
            cells = []
            for name, curve in curves.items():
                down, up = "≠≠" if name == "joint (tarp)" else "↓↑"
                mark = down if curve[i] < low else up if curve[i] > high else " "
                cells.append(f"{f'{100 * curve[i]:.1f} %{mark}':>{widths[name]}}")
            band = f"{100 * low:.1f}-{100 * high:.1f} %"
            lines.append(f"{100 * level:3.0f} %  {band:>13}  " + "  ".join(cells))
        return "\n".join(lines)


def sbc(
    posterior: Any,
    theta: Any,
    y: Any,
    num_samples: int = 500,
    *,
    names: Sequence[str] | None = None,
    seed: int | None = 0,
) -> SBCResult:
    """Simulation-based calibration of `posterior` on pairs `theta` (N, p), `y` (N, ...).

    Example:
        >>> from fmcpe import diagnostics
        >>> before = diagnostics.sbc(fmcpe.baselines.NPE(base).fit(), theta_test, y_test, num_samples=100)
        >>> before.calibrated, before.verdicts[0].split(":")[0]
        (False, 'biased (slope)')
        >>> diagnostics.sbc(posterior, theta_test, y_test, num_samples=100).calibrated
        True
    """
    names = names or getattr(posterior, "names", None)
    return sbc_of_draws(draw(posterior, theta, y, num_samples, seed), theta, names=names, seed=seed)


def sbc_of_draws(
    samples: Any,
    theta: Any,
    *,
    names: Sequence[str] | None = None,
    level: float = 0.05,
    seed: int | None = 0,
) -> SBCResult:
    """`sbc` of existing draws (S, N, p); `level` is that of all tests of the verdicts together."""
    samples, theta = draws_and_truth(samples, theta)
    n, p = theta.shape
    if n < 3:
        raise ValueError(f"Expected at least 3 observations, got {n}. Pass more pairs, preferably 100 or more.")
    labels = _names(names, p)
    counts_below = draws.ranks(samples, theta, seed)
    u = draws.spread(counts_below, len(samples), seed)
    # at least 20 expected counts per bin and at most 20 bins (Talts et al.); a ∪ needs at least 4 bins
    bins = max(4, min(20, n // 20))
    counts = torch.stack([torch.histc(u[:, k], bins, 0.0, 1.0) for k in range(p)], 1).long()
    low, high = stats.binom.interval(0.95, n, 1 / bins)
    zeta = torch.distributions.Normal(0.0, 1.0).icdf(u)
    tests = [stats.kstest(u[:, k].numpy(), "uniform") for k in range(p)]
    p_values = torch.tensor([float(test.pvalue) for test in tests])
    return SBCResult(
        ranks=counts_below,
        num_samples=len(samples),
        counts=counts,
        band=(int(low), int(high)),
        p_values=p_values,
        bias=zeta.mean(0),
        scale=zeta.std(0),
        verdicts=tuple(_verdict(zeta[:, k], float(p_values[k]), level / (3 * p)) for k in range(p)),
        names=labels,
        statistics=torch.tensor([float(test.statistic) for test in tests]),
    )


def coverage(
    posterior: Any,
    theta: Any,
    y: Any = None,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    *,
    num_samples: int = 500,
    region: Literal["ellipsoid", "density", "tarp"] | None = "ellipsoid",
    names: Sequence[str] | None = None,
    seed: int | None = 0,
) -> CoverageResult:
    """Expected coverage of central intervals and of joint regions of all parameters.

    Args:
        posterior: A posterior, or existing draws (S, N, p).
        theta: True parameters, (N, p).
        y: Observations, (N, ...); not needed with draws.
        levels: Nominal levels, each between 0 and 1.
        num_samples: Draws per observation.
        region: "ellipsoid": highest-density regions of a Gaussian fit to the draws. "density": highest-density
            regions, from `posterior.log_prob_batched` at every draw. "tarp": random balls, from draws alone, see
            `draws`. None: central intervals only.
        names: Names of the parameters.
        seed: Seed of draws, references and tie-breaking.

    Example:
        >>> from fmcpe import diagnostics
        >>> found = diagnostics.coverage(posterior, theta_test, y_test, levels=[0.5, 0.9], num_samples=100)
        >>> found.central.shape, bool((found.central >= found.band[:, :1]).all())  # levels, parameters; not over-confident
        (torch.Size([2, 1]), True)
    """
    draws.check_levels(list(levels))
    given = not hasattr(posterior, "sample_batched")
    samples = posterior if given else draw(posterior, theta, y, num_samples, seed)
    samples, theta = draws_and_truth(samples, theta)
    if region not in ("ellipsoid", "density", "tarp", None) or (region == "density" and given):
        expected = '"ellipsoid", "tarp", None, or "density" with a posterior'
        raise ValueError(f'Expected region {expected}, got {region!r}. Pass region="ellipsoid".')
    at = torch.tensor([float(level) for level in levels], dtype=torch.float64)
    joint = None
    if region == "tarp":
        joint = draws.tarp_credibility(samples, theta, seed=seed)
    elif region == "ellipsoid":
        joint = draws.ellipsoid_credibility(samples, theta, seed)
    elif region == "density":
        joint = _density_credibility(posterior, samples, theta, y, seed)
    n = len(theta)
    band = torch.tensor([stats.binom.interval(0.95, n, float(level)) for level in at], dtype=torch.float64) / n
    central = draws.central_credibility(samples, theta, seed)
    return CoverageResult(
        levels=at,
        central=(central <= at[:, None, None]).double().mean(1),
        joint=None if joint is None else (joint <= at[:, None]).double().mean(1),
        region=region,
        band=band,
        num_observations=n,
        names=_names(names or (None if given else getattr(posterior, "names", None)), theta.shape[1]),
    )


def draw(posterior: Any, theta: Any, y: Any, num_samples: int, seed: int | None) -> Tensor:
    """Validated draws (S, N, p) for the N observations of the pairs."""
    if not hasattr(posterior, "sample_batched"):
        raise TypeError(
            f"Expected a posterior with sample_batched, got a {type(posterior).__name__}. "
            "For existing draws, call sbc_of_draws(samples, theta) or coverage(samples, theta)."
        )
    theta, y = finite(theta, "theta", "(N, p)"), finite(y, "y").float()
    if y.ndim < 2 or len(y) != len(theta):
        raise ValueError(
            f"Expected theta (N, p) and y (N, ...), got shapes {tuple(theta.shape)} and {tuple(y.shape)}. "
            "Pass y[:, None] if y is one number per observation."
        )
    # sbi's posteriors take no seed
    with seeded(derive(seed, "posterior")), torch.no_grad():
        samples = posterior.sample_batched((num_samples,), x=y, show_progress_bars=False)
    return draws_and_truth(samples, theta)[0]


def _density_credibility(posterior: Any, samples: Tensor, theta: Tensor, y: Any, seed: int | None) -> Tensor:
    if not hasattr(posterior, "log_prob_batched"):
        raise TypeError(
            f"Expected a posterior with log_prob_batched, got a {type(posterior).__name__} without a density. "
            'Pass region="ellipsoid".'
        )
    # sbi's normalisation may not terminate out of distribution, and the order of densities does not need it
    known = inspect.signature(posterior.log_prob_batched).parameters
    options = {"norm_posterior": False} if "norm_posterior" in known else {}
    # one call for truth and draws, so that a Monte Carlo density uses the same random numbers for both
    points = torch.cat([theta[None], samples]).float()
    with seeded(derive(seed, "density")), torch.no_grad():
        logs = posterior.log_prob_batched(points, x=finite(y, "y").float(), **options)
    return draws.density_credibility(logs[1:], logs[0], seed)


def _names(names: Sequence[str] | None, p: int) -> tuple[str, ...]:
    labels = tuple(f"θ{k + 1}" for k in range(p)) if names is None else tuple(names)
    if len(labels) != p:
        raise ValueError(f"Expected {p} names, got {list(labels)}. Pass names=task.theta_names.")
    return labels


def _verdict(zeta: Tensor, p_any: float, alpha: float) -> str:
    n, mean, deviation = len(zeta), float(zeta.mean()), float(zeta.std())
    biased = stats.ttest_1samp(zeta.numpy(), 0.0).pvalue < alpha
    tail = stats.chi2.cdf((n - 1) * deviation**2, n - 1)
    words = []
    if biased:
        words.append(f"biased (slope): estimates too {'low' if mean > 0 else 'high'}")
    # strong bias concentrates ranks at one end and so reduces their deviation at any width
    if 2 * (1 - tail) < alpha:
        words.append("too narrow (∪): over-confident")
    elif 2 * tail < alpha and abs(mean) < 1.5:
        words.append("too wide (∩): under-confident")
    if not words and p_any < alpha:
        words.append("not uniform: neither bias nor width alone")
    return "; ".join(words) or PASSED
