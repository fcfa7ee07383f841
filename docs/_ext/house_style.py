r"""Sphinx extension: formulas as MathML, which browsers show without a script, and docstrings in the house style.

A docstring of this project is Google style with three liberties that reStructuredText does not know: ``\( ... \)`` is a
formula, an indented paragraph before the first section is shown as it is, and ``|`` and ``(*`` mean themselves.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

SECTION = re.compile(r"(Args|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
PART = re.compile(r"(``.*?``|`[^`]*`|\\\(.*?\\\))")
LOGGER = logging.getLogger(__name__)


def in_restructured_text(lines: list[str]) -> list[str]:
    """A docstring of the house style, for napoleon."""
    out: list[str] = []
    preamble, literal = True, False
    for number, line in enumerate(lines):
        preamble = preamble and not SECTION.match(line)
        indented = line.startswith("    ")
        if preamble and indented and not literal and (number == 0 or not lines[number - 1].strip()):
            out += ["::", ""]
            literal = True
        elif literal and line.strip() and not indented:
            literal = False
        out.append(line if literal or line.lstrip().startswith(">>>") else inline(line))
    return out


def inline(line: str) -> str:
    """One line of text: formulas become roles, and characters that mean themselves are escaped."""
    parts = PART.split(line)
    for k, part in enumerate(parts):
        if part.startswith("\\("):
            parts[k] = f":math:`{part[2:-2].strip()}`"
        elif not part.startswith("`"):
            parts[k] = part.replace("|", r"\|").replace("(*", r"(\*")
    return "".join(parts)


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = in_restructured_text(lines)


def _mathml(node: nodes.Element, block: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=block))
    except MathError as error:
        LOGGER.warning("Expected a formula that docutils can convert to MathML: %s", error, location=node)
        return f"<code>{node.astext()}</code>"


def _inline_math(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node, block=False))
    raise nodes.SkipNode


def _block_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register both."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
