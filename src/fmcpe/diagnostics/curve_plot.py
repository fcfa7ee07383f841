"""The plot of a learning curve, in the style of `fmcpe.diagnostics.plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from fmcpe.diagnostics.plots import _BLUE, _GREY, _tidy

if TYPE_CHECKING:
    from fmcpe.diagnostics.learning_curve import LearningCurve


def learning_curve_figure(curve: LearningCurve, furthest: float = 4.0) -> Figure:
    """Scores with standard errors, the power law, and 80 % forecast intervals up to `furthest` times the number of pairs."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    pairs, law = curve.sizes[-1], curve.power_law
    present = float(law.curve([pairs])[0])
    later = np.unique(np.round(np.geomspace(pairs, furthest * pairs, 25)))[1:]
    ends = present * np.array([(1.0, 1.0), *(law.interval(n) for n in later)])
    axes.fill_between([pairs, *later], ends[:, 0], ends[:, 1], color=_GREY, lw=0, label="80 % interval of the forecast")
    before = np.geomspace(curve.sizes[0], pairs, 50)
    axes.plot(before, law.curve(before), color="black", lw=1.2, label="power law")
    axes.plot([pairs, *later], [present * law.ratio(n) for n in (pairs, *later)], color="black", lw=1.2, ls="--")
    label = "score of unseen pairs ± standard error"
    axes.errorbar(curve.sizes, curve.mean, curve.errors, fmt="o", color=_BLUE, ms=5, capsize=3, label=label)
    axes.set(xscale="log", xlabel="calibration pairs", ylabel="energy score")
    ticks = [*curve.sizes, *(int(factor * pairs) for factor in (2, furthest))]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    _tidy(axes)
    return figure
