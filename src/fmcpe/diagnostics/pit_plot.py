"""Plot of PIT empirical distribution functions with simultaneous bands."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.figure import Figure

from fmcpe.diagnostics.pit import PITResult
from fmcpe.diagnostics.plots import _DASHES, _GREY, COLORS, _legend, _same_names, _tidy


def pit_ecdf(results: PITResult | Mapping[str, PITResult]) -> Figure:
    """PIT-ECDF minus the diagonal, a panel per parameter; a curve that leaves the grey band refutes calibration.

    A curve above zero on the left and below on the right shows a posterior that is too narrow, the reverse one that is too wide, and
    a curve on one side a bias. The band is that of the first result: compare methods on the same pairs.
    """
    methods = {"": results} if isinstance(results, PITResult) else dict(results)
    names, first = _same_names(methods), next(iter(methods.values()))
    columns = min(4, len(names))
    rows = math.ceil(len(names) / columns)
    legend_height = 0.35 if len(methods) > 1 else 0.0
    figure = Figure(figsize=(0.8 + 2.6 * columns, 0.5 + 2.2 * rows + legend_height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(names) :]:
        axes.set_axis_off()
    for index, name in enumerate(names):
        axes = grid.flat[index]
        low, high = (first.band - first.points[:, None]).T.tolist()
        ends = [0.0, *first.points.tolist(), 1.0]
        axes.fill_between(ends, [0.0, *low, 0.0], [0.0, *high, 0.0], color=_GREY, lw=0)
        axes.axhline(0, color="black", lw=0.8)
        for k, result in enumerate(methods.values()):
            curve = [0.0, *(result.ecdf[:, index] - result.points).tolist(), 0.0]
            at = [0.0, *result.points.tolist(), 1.0]
            axes.plot(at, curve, color=COLORS[k % len(COLORS)], ls=_DASHES[k % len(_DASHES)], lw=1.6)
        inside = [result.inside[index] for result in methods.values()]
        axes.set_title(name if all(inside) or len(methods) > 1 else f"{name}: outside the band", fontsize=10)
        axes.set_xlim(0, 1)
        if index % columns == 0:
            axes.set_ylabel("ECDF − uniform")
        if index + columns >= len(names):
            axes.set_xlabel("PIT value")
            axes.tick_params(labelbottom=True)
        _tidy(axes)
    _legend(figure, list(methods))
    return figure
