"""What README and docs say exists: the files they link to, the commands they tell people to type, the names they import."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import fmcpe
from fmcpe import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text):
    """The code blocks of a page: what follows the opening fence on its line, and the content."""
    return [(found[1].strip(), found[2]) for found in re.finditer(r"^```([^`\n]*)\n(.*?)^```$", text, re.S | re.M)]


def python_of(text):
    """Python of a page: plain blocks, and cells of notebooks without their options and magics."""
    for kind, block in blocks(text):
        if kind == "python" or kind.startswith("{code-cell}"):
            lines = (line for line in block.splitlines() if not re.match(r"[%!]|:tags:", line))
            yield "\n".join(lines)


def commands(text):
    """Every fmcpe command in the code blocks of a page, without what follows it on the line."""
    for _, block in blocks(text):
        for line in block.splitlines():
            found = re.match(r"(?:\$ )?(fmcpe (?:init|fit|sample|diagnose|demo|download|bench)\b.*)", line.strip())
            if found and "printed" not in line:
                yield shlex.split(found[1].split("&&")[0], comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_understood(page, monkeypatch):
    for command in cli.COMMANDS.values():
        monkeypatch.setattr(command, "run", lambda options: 0)
    for words in commands(page.read_text()):
        assert cli.main(words) == 0, words


def test_some_commands_were_found():
    assert sum(1 for page in PAGES for _ in commands(page.read_text())) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_is_python_and_public_names_exist(page):
    for block in python_of(page.read_text()):
        compile(block, str(page), "exec")
        for name in re.findall(r"\bfmcpe\.(\w+)", block):
            assert hasattr(fmcpe, name) or (ROOT / "src" / "fmcpe" / name).exists(), name


def test_makefile_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets, page


def test_every_page_of_llms_txt_exists():
    text = (ROOT / "docs" / "llms.txt").read_text()
    pages = [Path(link) for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert len(pages) > 10
    assert not [page for page in pages if not (ROOT / "docs" / page).with_suffix(".md").exists()]


def test_pictures_of_the_pages_name_the_code_that_draws_them():
    """Every picture of docs/ is written by a script of the repository that a page names."""
    text = "".join(page.read_text() for page in PAGES)
    for folder in sorted({path.parent for path in (ROOT / "docs").rglob("*.png")}):
        place = folder.relative_to(ROOT).as_posix()
        drawn = [line for line in re.findall(r"python [^`\n]+", text) if line.rstrip().endswith(place)]
        assert drawn or place == "docs/images", place
    for name, script in {"flows": "flows_picture", "stack": "stack_picture"}.items():
        assert (ROOT / "docs" / "images" / f"{name}.png").exists()
        assert f"python benchmarks/{script}.py docs/images" in text


def test_a_site_that_needs_a_network_is_refused(tmp_path):
    spec = importlib.util.spec_from_file_location("check_site", ROOT / ".ci" / "check_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = tmp_path / "index.html"
    (tmp_path / "llms.txt").write_text("")
    page.write_text(
        '<a href="https://example.org">elsewhere</a><a href="index.html#top">here</a><img src="data:image/png;base64,AA">'
    )
    assert module.problems(tmp_path) == []
    page.write_text('<script src="https://example.org/mathjax.js"></script><a href="missing.html">gone</a>')
    assert [line.split()[1] for line in module.problems(tmp_path)] == ["loads", "links"]
