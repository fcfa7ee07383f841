"""Is a posterior as sure as it may be? Rank histograms and expected coverage, on pairs `(θ_j, y_j)`.

Simulation-based calibration (Talts et al. 2018): the rank of `θ_j` among draws of `p(θ|y_j)` is uniform if
the posterior is right. Which way it is wrong shows in the shape:

    ∪   too many truths at both ends: the posterior is too narrow (over-confident)
    ∩   too many in the middle:       the posterior is too wide (under-confident)
    /   slope:                        the posterior is biased

The verdict tests the shapes on normal scores `ζ = Φ⁻¹((rank + U)/(S + 1))`, standard normal under the right
posterior and N(b, s²) under a Gaussian one that is off by b of its deviations and too narrow by a factor s.
So the mean of ζ (a t test) is bias alone and its deviation (a χ² test) width alone, while in the histogram
bias also bends the ends up. A Kolmogorov-Smirnov test looks for any other shape. The three tests of p
parameters share 5 % (Bonferroni): a right posterior is called calibrated in every parameter 95 times in
100.

sbi's `run_sbc` and `run_tarp` give the same ranks and curve (tests compare them). They are not called
because they leave out observations with NaN, take no draws that already exist, and `run_tarp` draws its
references from torch's global generator.
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

_ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class SBCResult:
    """Rank statistics of N observations and p parameters; `summary()` is the text for people.

    Attributes:
        ranks: Draws below the truth, (N, p), in 0..num_samples.
        num_samples: Draws per observation.
        counts: Observations per bin of equal probability, (bins, p).
        band: Lowest and highest count of a bin in 95 % of right posteriors (binomial law).
        p_values: Kolmogorov-Smirnov, per parameter.
        bias: Mean of ζ, per parameter: how many posterior deviations the truth lies above the estimate.
        scale: Deviation of ζ, per parameter: above 1 too narrow, below 1 too wide.
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
        """Whether no parameter shows a fault."""
        return all(verdict.startswith("calibrated") for verdict in self.verdicts)

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
        if n < 100:
            lines.append(f"With {n} observations only large faults show: a clean verdict is weak evidence.")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class CoverageResult:
    """Expected coverage at L levels; `summary()` is the text for people.

    Attributes:
        levels: Nominal levels, (L,).
        central: Coverage of central intervals, (L, p).
        joint: Coverage of regions of all parameters together, (L,), or None.
        region: What these regions are: "ellipsoid", "density", "tarp" or None, see `coverage`.
        band: Lowest and highest coverage in 95 % of right posteriors (binomial law), (L, 2).
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
        """The coverage curves, (L,) each, by name: the parameters, then the joint region."""
        curves = {name: self.central[:, k] for k, name in enumerate(self.names)}
        if self.joint is not None:
            curves[f"joint ({self.region})"] = self.joint
        return curves

    def summary(self) -> str:
        """A table: one row per level; coverage outside the band is marked."""
        curves = self.columns()
        widths = {name: max(8, len(name)) for name in curves}
        # TARP's curve crosses the diagonal for a posterior of the wrong width: no arrow is right there.
        other = ", ≠ not right" if self.region == "tarp" else ""
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
    """Simulation-based calibration of `posterior` on pairs `theta` (N, p), `y` (N, ...)."""
    return sbc_of_draws(draw(posterior, theta, y, num_samples, seed), theta, names=names, seed=seed)


def sbc_of_draws(samples: Any, theta: Any, *, names: Sequence[str] | None = None, seed: int | None = 0) -> SBCResult:
    """`sbc` of draws (S, N, p) that already exist."""
    samples, theta = draws_and_truth(samples, theta)
    n, p = theta.shape
    if n < 3:
        raise ValueError(f"{n} observations came, expected at least 3, better 100: type theta, y with more pairs")
    labels = _names(names, p)
    counts_below = draws.ranks(samples, theta, seed)
    u = draws.spread(counts_below, len(samples), seed)
    # At least 20 expected per bin (Talts et al.), at most the 20 bins of the paper, at least 4 to show a ∪.
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
        verdicts=tuple(_verdict(zeta[:, k], float(p_values[k]), _ALPHA / (3 * p)) for k in range(p)),
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
    """Expected coverage of central intervals, and of regions of all parameters together.

    Args:
        posterior: A posterior, or draws (S, N, p) that already exist.
        theta: Truth, (N, p).
        y: Observations, (N, ...); not needed with draws.
        levels: Nominal levels, each between 0 and 1.
        num_samples: Draws per observation.
        region: "ellipsoid": highest-density regions of a Gaussian fit, from draws alone. "density":
            highest-density regions, from `posterior.log_prob_batched` at every draw. "tarp": random balls, from
            draws alone, see `draws`. None: central intervals only.
        names: Names of the parameters.
        seed: Draws, references and ties.
    """
    draws.check_levels(list(levels))
    given = not hasattr(posterior, "sample_batched")
    samples = posterior if given else draw(posterior, theta, y, num_samples, seed)
    samples, theta = draws_and_truth(samples, theta)
    if region not in ("ellipsoid", "density", "tarp", None) or (region == "density" and given):
        expected = '"ellipsoid", "tarp", None, or "density" with a posterior'
        raise ValueError(f'region={region!r} came, expected {expected}: type region="ellipsoid"')
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
        names=_names(names, theta.shape[1]),
    )


def draw(posterior: Any, theta: Any, y: Any, num_samples: int, seed: int | None) -> Tensor:
    """Draws (S, N, p) for the N observations of the pairs, with the pairs and the draws checked."""
    if not hasattr(posterior, "sample_batched"):
        raise TypeError(
            f"posterior is a {type(posterior).__name__}, expected one with sample_batched: "
            "type sbc_of_draws(samples, theta) or coverage(samples, theta) for draws that already exist"
        )
    theta, y = finite(theta, "theta", "(N, p)"), finite(y, "y").float()
    if y.ndim < 2 or len(y) != len(theta):
        raise ValueError(
            f"theta and y have shapes {tuple(theta.shape)} and {tuple(y.shape)}, expected (N, p) and "
            "(N, ...): type y[:, None] if y is one number per observation"
        )
    # Seeded from outside, because sbi's posteriors take no seed.
    with seeded(derive(seed, "posterior")), torch.no_grad():
        samples = posterior.sample_batched((num_samples,), x=y, show_progress_bars=False)
    return draws_and_truth(samples, theta)[0]


def _density_credibility(posterior: Any, samples: Tensor, theta: Tensor, y: Any, seed: int | None) -> Tensor:
    if not hasattr(posterior, "log_prob_batched"):
        raise TypeError(
            f"posterior is a {type(posterior).__name__} without a density, expected log_prob_batched: "
            'type region="ellipsoid"'
        )
    # sbi's normalisation doesn't end out of distribution, and the order of densities doesn't need it.
    known = inspect.signature(posterior.log_prob_batched).parameters
    options = {"norm_posterior": False} if "norm_posterior" in known else {}
    # One call for truth and draws, so that a density estimated by Monte Carlo uses the same numbers for both.
    points = torch.cat([theta[None], samples]).float()
    with seeded(derive(seed, "density")), torch.no_grad():
        logs = posterior.log_prob_batched(points, x=finite(y, "y").float(), **options)
    return draws.density_credibility(logs[1:], logs[0], seed)


def _names(names: Sequence[str] | None, p: int) -> tuple[str, ...]:
    labels = tuple(f"θ{k + 1}" for k in range(p)) if names is None else tuple(names)
    if len(labels) != p:
        raise ValueError(f"names={list(labels)} came, expected {p} of them: type names=task.theta_names")
    return labels


def _verdict(zeta: Tensor, p_any: float, alpha: float) -> str:
    n, mean, deviation = len(zeta), float(zeta.mean()), float(zeta.std())
    biased = stats.ttest_1samp(zeta.numpy(), 0.0).pvalue < alpha
    tail = stats.chi2.cdf((n - 1) * deviation**2, n - 1)
    words = []
    if biased:
        words.append(f"biased (slope): estimates too {'low' if mean > 0 else 'high'}")
    # Ranks that crowd at one end have a small deviation whatever the width is.
    if 2 * (1 - tail) < alpha:
        words.append("too narrow (∪): over-confident")
    elif 2 * tail < alpha and abs(mean) < 1.5:
        words.append("too wide (∩): under-confident")
    if not words and p_any < alpha:
        words.append("not uniform, in no simple shape")
    return "; ".join(words) or "calibrated: no fault shows"
