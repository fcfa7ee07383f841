"""A table with output as text, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Args:
        name: Short name, for files.
        title: Title.
        header: Names of the columns.
        rows: Cells.
        note: How to read the table, with the space of the metrics.
        links: HTML links by cell text.
    """

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    links: Mapping[str, str] = field(default_factory=dict)

    def as_text(self) -> str:
        """For a terminal."""
        grid = [list(self.header), *map(list, self.rows)]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.header))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in grid]
        return "\n".join([self.title, *lines, self.note]).rstrip()

    def as_csv(self) -> str:
        """For a spreadsheet."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()

    def as_latex(self) -> str:
        """For a paper; needs the package booktabs."""
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}",
            rf"\begin{{tabular}}{{{'l' * len(self.header)}}}",
            r"\toprule",
            " & ".join(map(_latex, self.header)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, row)) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def as_html(self) -> str:
        """For the report. Repeated cells of the first column are empty."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body, above = [], ""
        for row in self.rows:
            new = row[0] != above
            cells = [row[0] if new else "", *row[1:]]
            body.append(
                f"<tr{' class=new' if new else ''}>"
                + "".join(f"<td>{self._html_cell(cell)}</td>" for cell in cells)
                + "</tr>"
            )
            above = row[0]
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
            f'<p class="note">{html.escape(self.note)}</p>'
        )

    def _html_cell(self, cell: str) -> str:
        text = html.escape(cell)
        return f'<a href="{html.escape(self.links[cell])}">{text}</a>' if cell in self.links else text


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "{": r"\{", "}": r"\}", "$": r"\$",
    "±": r"$\pm$", "θ": r"$\theta$", "α": r"$\alpha$", "σ": r"$\sigma$", "²": r"$^2$", "≤": r"$\le$", "≥": r"$\ge$",
    "×": r"$\times$", "∪": r"$\cup$", "∩": r"$\cap$", "½": r"$\frac12$", "^": r"\^{}", "~": r"\~{}", "ω": r"$\omega$",
    "₁": "$_1$", "₂": "$_2$", "₃": "$_3$", "₀": "$_0$", "π": r"$\pi$", "φ": r"$\varphi$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
