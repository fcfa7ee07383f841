"""Pictures of the trust report as inline SVG: small panels that stack on a phone, text as text, colours that follow the theme.

Axes and letters are drawn in the page's text colour (`currentColor`), and shaded bands in its band colour, so that one picture
serves light mode, dark mode and print.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fmcpe.diagnostics.span import Span

P = ParamSpec("P")
BEFORE, AFTER, MISS, BAND, INK = "#7A7A7A", "#0072B2", "#D55E00", "#D9D9D9", "#000000"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "fmcpe", "font.family": "sans-serif", "font.size": 9.0, "axes.spines.top": False,
    "axes.spines.right": False, "savefig.transparent": True, "axes.titlesize": 9.0, "legend.frameon": False,
    "legend.fontsize": 8.0, "axes.facecolor": "none", "figure.facecolor": "none",
}  # fmt: skip


def svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an `<svg>` element with alternative text; ids get the figure's name as prefix."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', text)
    text = text.replace(INK, "currentColor").replace(BAND.lower(), "var(--band)")
    text = re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", text, count=1)
    text = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", text, count=1)
    width = round(96 * figure.get_figwidth())
    return text.replace(
        "<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}" style="max-width:{width}px"', 1
    )


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function whose figure has the report's style; matplotlib's settings are left as they were."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inside


def new(width: float = 4.4, height: float = 2.9) -> Figure:
    """An empty figure."""
    return Figure(figsize=(width, height), layout="constrained")


def axes_of(figure: Figure, rows: int = 1, columns: int = 1, **options: object) -> list[Axes]:
    """Its axes, row by row."""
    return list(figure.subplots(rows, columns, squeeze=False, **options).flat)  # type: ignore[call-overload]


@styled
def estimates(
    truth: np.ndarray,
    before: np.ndarray | None,
    after: np.ndarray,
    inside: tuple[float, float],
    name: str,
    shown: int = 40,
) -> Figure:
    """Estimate against truth with 80 % intervals of one parameter on held-out pairs: draws (N, S), uncorrected and corrected.

    Args:
        truth: (N,).
        before: Draws of the uncorrected posterior, (N, S'); None if there are none.
        after: Draws of the corrected posterior, (N, S).
        inside: Share of the pairs inside the 80 % interval before and after, as the table has them.
        name: Of the parameter.
        shown: Pairs that are drawn, evenly spaced by rank.
    """
    figure = new(4.6, 2.7)
    panels = [("uncorrected", before, inside[0]), ("corrected", after, inside[1])][before is None :]
    rows = np.argsort(truth)[np.linspace(0, len(truth) - 1, min(shown, len(truth))).round().astype(int)]
    for axes, (title, draws, share) in zip(axes_of(figure, 1, len(panels), sharey=True), panels, strict=True):
        assert draws is not None
        low, middle, high = np.quantile(draws, [0.1, 0.5, 0.9], axis=1)
        hit = (low <= truth) & (truth <= high)
        for chosen, color, marker in ((rows[hit[rows]], AFTER, "o"), (rows[~hit[rows]], MISS, "X")):
            axes.vlines(truth[chosen], low[chosen], high[chosen], color=color, lw=1.2, alpha=0.8)
            axes.plot(truth[chosen], middle[chosen], marker, color=color, ms=3.5)
        axes.axline((truth[0], truth[0]), slope=1, color=INK, lw=0.8)
        axes.set_title(f"{title}: {100 * share:.0f} % inside")
        axes.set_xlabel(f"true {name}")
        axes.locator_params(nbins=4)
        if axes is figure.axes[0]:
            axes.set_ylabel(f"estimated {name}")
    return figure


@styled
def coverage(levels: np.ndarray, curves: dict[str, np.ndarray], band: np.ndarray) -> Figure:
    """Share of held-out pairs inside central intervals against the nominal level, a line per parameter, with a 95 % band."""
    figure = new()
    (axes,) = axes_of(figure)
    axes.fill_between(levels, band[:, 0], band[:, 1], color=BAND, lw=0)
    axes.plot([0, 1], [0, 1], color=INK, lw=0.8)
    for (name, curve), dash in zip(curves.items(), _dashes(len(curves)), strict=True):
        axes.plot(levels, curve, ls=dash, label=name, color=_color(list(curves).index(name)))
    axes.set(xlabel="nominal level", ylabel="pairs inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    return figure


@styled
def ecdf(names: Sequence[str], points: np.ndarray, values: np.ndarray, band: np.ndarray) -> Figure:
    """ECDF (K, p) of the PIT values minus uniform, a line per parameter, with its simultaneous band (K, 2)."""
    figure = new()
    (axes,) = axes_of(figure)
    axes.fill_between(points, band[:, 0] - points, band[:, 1] - points, color=BAND, lw=0)
    axes.axhline(0, color=INK, lw=0.8)
    for k, (name, dash) in enumerate(zip(names, _dashes(len(names)), strict=True)):
        axes.plot(points, values[:, k] - points, ls=dash, label=name, color=_color(k))
    axes.set(xlabel="PIT value", ylabel="ECDF − uniform", xlim=(0, 1))
    axes.legend(loc="best")
    return figure


@styled
def weights(names: Sequence[str], shares: Sequence[float], scores: Sequence[float], stack: float) -> Figure:
    """Stacking weights, and the cross-validated score of each candidate alone against that of the stack."""
    figure = new(4.6, 0.85 + 0.32 * len(names))
    left, right = axes_of(figure, 1, 2, sharey=True)
    at = np.arange(len(names))[::-1]
    left.barh(at, shares, color=AFTER, height=0.6)
    left.set_yticks(at, [name.replace("_", " ") for name in names])
    left.set(xlabel="stacking weight", xlim=(0, 1))
    right.plot(scores, at, "o", color=BEFORE, ms=5)
    right.axvline(stack, color=AFTER, lw=1.5)
    right.set_xlabel(
        "energy score\n(line: stack)"  # in one line it is wider than the axes, and leaves the figure
    )
    right.set_xlim(0, 1.08 * max(*scores, stack))  # points are whole
    return figure


@styled
def plane(seen: np.ndarray, simulated: np.ndarray | None, asked: np.ndarray | None) -> Figure:
    """Pairs, simulations and new observations in the plane of two principal directions; far observations at the frame."""
    figure = new(4.4, 3.2)
    (axes,) = axes_of(figure)
    usual = seen if simulated is None else np.concatenate([seen, simulated])
    low, high = usual.min(0), usual.max(0)
    margin = 0.15 * np.maximum(high - low, 1e-9)
    groups: tuple[tuple[np.ndarray | None, dict[str, Any]], ...] = (
        (simulated, {"s": 6, "color": BAND, "label": "simulations"}),
        (seen, {"s": 22, "color": AFTER, "label": "calibration pairs"}),
        (asked, {"s": 22, "marker": "X", "color": MISS, "label": "observations"}),
    )
    for rows, style in groups:
        if rows is not None and len(rows):
            inside = np.clip(rows, low - margin, high + margin)
            axes.scatter(inside[:, 0], inside[:, 1], lw=0, clip_on=False, zorder=3, **style)
    axes.set(xlabel="first principal direction", ylabel="second principal direction")
    axes.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    legend = figure.legend(loc="outside upper center", ncols=3)
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]  # a point of the simulations would hardly be seen
    return figure


@styled
def spans(found: Sequence[Span], prior: np.ndarray, shown: int = 200) -> Figure:
    """Where in the prior the pairs lie, and which stretches have none: prior probability below, by its draws (L, p).

    Args:
        found: The parameters.
        prior: Draws of the prior, (L, p).
        shown: Pairs that are drawn, evenly spaced by rank.
    """
    figure = new(4.6, 0.7 + 0.34 * len(found))
    (axes,) = axes_of(figure)
    for k, each in enumerate(found):
        at, draws = len(found) - 1 - k, np.sort(prior[:, k])
        axes.hlines(at, 0, 1, color=BAND, lw=6)
        for gap in each.gaps:
            low, high = np.searchsorted(draws, [gap.low, gap.high]) / len(draws)
            axes.hlines(at, low, high, color=MISS, lw=6, alpha=0.6)
        some = np.linspace(0, len(each.values) - 1, min(shown, len(each.values))).round().astype(int)
        below = np.searchsorted(draws, np.array(each.values)[some]) / len(draws)
        axes.plot(below, np.full(len(below), at), "|", color=AFTER, ms=9)
    axes.set_yticks(range(len(found)), [each.name for each in found][::-1])
    axes.set(xlabel="prior probability below the value", xlim=(-0.01, 1.01), ylim=(-0.6, len(found) - 0.4))
    return figure


def _color(k: int) -> str:
    palette = (AFTER, MISS, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
    return palette[k % len(palette)]


def _dashes(number: int) -> list[str]:
    return [("-", "--", "-.", ":")[k % 4] for k in range(number)]
