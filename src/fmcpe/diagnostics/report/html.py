"""Pieces of HTML: tables, pictures and short texts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fmcpe.diagnostics.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """A table that scrolls sideways on a narrow screen; columns of `texts` are left-aligned and wrap."""
    kinds = ['class="text"' if k in texts else "" for k in range(len(head))]
    first = "".join(f"<th scope=col {kind}>{escape(each)}</th>" for each, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(each)}</td>" for each, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(figure: Figure, name: str, caption: str) -> str:
    """A figure with its caption, which is its alternative text too."""
    return f"<figure>{figures.svg(figure, name, caption)}<figcaption>{escape(caption)}</figcaption></figure>"


def pictures(parts: Sequence[str]) -> str:
    """Figures side by side, or one below the other on a phone."""
    return f'<div class="pictures">{"".join(parts)}</div>'


def quiet(text: str) -> str:
    """A note in small type."""
    return f'<p class="quiet">{escape(text)}</p>'


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.0f} %"
