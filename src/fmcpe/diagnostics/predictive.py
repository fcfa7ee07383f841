r"""Posterior predictive check: simulations at corrected draws, beside the real observation.

    θ_s ~ p(θ|y),   x_s ~ S(θ_s),   s = 1..S

A correction mends the posterior, not the simulator: where this one is wrong, simulations at the right θ differ from y, and this
check shows where and by how much. Agreement says that the simulator at these θ could have produced y; disagreement is what the
calibration pairs had to make up for.

The p-value is a rank. With D_i the mean distance of the i-th of the S + 1 points (y, x_1, ..., x_S) to the others, each number
divided by its standard deviation over the simulations, p = #{i : D_i ≥ D_y} / (S + 1): uniform if y is exchangeable with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe._simulator import CheckedSimulator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """Simulations at draws of the posterior, and where the observation lies among them; `summary()` and `plot()` show it.

    Attributes:
        theta: Draws of the posterior, (S, p), physical.
        x: A simulation at each, (S, ...).
        y: The observation, (...).
        ranks: Share of the simulations below each number of y, half of ties counted, (...).
        p_value: Of the whole observation, see the module.
        names: Of the parameters.
    """

    theta: Tensor
    x: Tensor
    y: Tensor
    ranks: Tensor
    p_value: float
    names: tuple[str, ...]

    @property
    def outside(self) -> Tensor:
        """Which numbers of y lie outside the central 90 % of the simulations, (...)."""
        return (self.ranks < 0.05) | (self.ranks > 0.95)

    def residuals(self) -> Tensor:
        """Y minus the mean of the simulations, in their standard deviations, (...); 0 where they do not vary."""
        return (self.y - self.x.mean(0)) / _deviation(self.x)

    def summary(self) -> str:
        """What agrees and what does not, in words."""
        number, size = self.y.numel(), len(self.x)
        outside = int(self.outside.sum())
        lines = [
            f"Posterior predictive check: {size} simulations at draws of the corrected posterior.",
            f"{outside} of {number} numbers of y lie outside the simulations' central 90 % (expected {0.1 * number:.1f}).",
            f"All numbers together: p = {self.p_value:.3g}.",
        ]
        worst = self.residuals().flatten()
        order = worst.abs().argsort(descending=True)[:3].tolist()
        for k in order if outside else []:
            at = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(k), self.y.shape))
            lines.append(
                f"  y[{at}] = {float(self.y.flatten()[k]):.4g}, simulations {float(self.x.flatten(1)[:, k].mean()):.4g} ± "
                f"{float(_deviation(self.x).flatten()[k]):.2g}"
            )
        lines.append(
            "The simulator does not produce data like y at these θ: what it misses is what the pairs correct for."
            if self.p_value < 0.05
            else "The simulator produces data like y at these θ."
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def plot(self, max_panels: int = 9) -> Figure:
        """Histograms for few numbers, bands for series, three panels for images (`fmcpe.diagnostics.predictive_plot`)."""
        from fmcpe.diagnostics.predictive_plot import predictive_figure

        return predictive_figure(self, max_panels)


def predictive(
    posterior: CorrectedPosterior,
    x: Any = None,
    simulator: Callable[[Tensor], Any] | None = None,
    *,
    num_samples: int = 500,
    seed: int | None = 0,
) -> PredictiveCheck:
    """Simulate at draws of a posterior for one observation.

    Args:
        posterior: The corrected posterior.
        x: The real observation; the default one if None.
        simulator: ``theta (N, p) -> x (N, ...)``; by default that of the fit, which a file does not contain.
        num_samples: S; the smallest possible p-value is 1 / (S + 1).
        seed: Of draws and simulations.
    """
    simulator = posterior.simulator if simulator is None else simulator
    if simulator is None:
        raise ValueError(
            "Expected a simulator, got none: a posterior from a file, or one fitted without, does not have it. Call "
            "posterior.predictive(x=y, simulator=my_simulator)."
        )
    if num_samples < 20:
        raise ValueError(f"Expected num_samples of at least 20, got {num_samples}. Try num_samples=500.")
    y = posterior._x_else_default_x(x)
    theta = posterior.sample((num_samples,), x=y, show_progress_bars=False, seed=derive(seed, "posterior"))
    with seeded(derive(seed, "simulator")):
        checked = CheckedSimulator(simulator, posterior.observation_shape)
        simulations, ok = checked.insist(theta)
    if int(ok.sum()) < max(20, num_samples // 2):
        raise ValueError(
            f"Expected simulations at most draws, got {int(ok.sum())} of {num_samples} that succeeded (first failure: "
            f"{checked.first}). Mend the simulator there."
        )
    theta, simulations, one = theta[ok].cpu(), simulations[ok].cpu(), y[0].cpu()
    ranks = ((simulations < one).double() + 0.5 * (simulations == one).double()).mean(0)
    return PredictiveCheck(theta, simulations, one, ranks, _p_value(simulations, one), posterior.names)


def _p_value(x: Tensor, y: Tensor) -> float:
    """Of the mean distance of y to the others among those of all points."""
    points = torch.cat([y[None], x]).flatten(1).double() / _deviation(x).flatten().double()
    distances = torch.cdist(points, points).mean(1)
    return float((distances >= distances[0] - 1e-12).double().mean())


def _deviation(x: Tensor) -> Tensor:
    """Standard deviation over simulations; 1 where they do not vary."""
    found = x.std(0)
    return torch.where(found > 1e-12 * (1 + x.abs().amax(0)), found, torch.ones_like(found))
