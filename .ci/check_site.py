"""Check that a built site can be read without a network, and that its links lead somewhere: ``python .ci/check_site.py site``.

Links to other sites are fine; scripts, styles, pictures and fonts from them are not.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

EXTERNAL = re.compile(r"(?:url\(|@import )[\"']?(https?://[^\"')]+)")
LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "link": "href",
    "object": "data",
}


class Page(HTMLParser):
    """What a page loads, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if LOADED.get(tag) in values and values.get("rel") not in ("canonical", "license"):
            self.loads.append(values[LOADED[tag]] or "")
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")


def problems(site: Path) -> list[str]:
    """What is wrong with the site, a line each."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, where = Page(path.read_text(encoding="utf-8")), path.relative_to(site)
        found += [f"{where} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for url in (*page.links, *page.loads):
            parts = urlsplit(url)
            if (
                not parts.scheme
                and not parts.netloc
                and parts.path
                and not (path.parent / unquote(parts.path)).exists()
            ):
                found.append(f"{where} links to {url}, which does not exist")
    for path in sorted(site.rglob("*.css")):
        urls = EXTERNAL.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads {url}" for url in urls]
    if not (site / "llms.txt").is_file():
        found.append("llms.txt is missing")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    sys.exit("\n".join(wrong) if wrong else 0)
