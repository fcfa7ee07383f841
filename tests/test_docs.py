"""What README and docs say exists: the files they link to, the commands they tell people to type, the names they import."""

import re
import shlex
from pathlib import Path

import pytest

import fmcpe
from fmcpe import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def commands(text):
    """Every fmcpe command in the code blocks of a page, without what follows it on the line."""
    for block in re.findall(r"```[a-z]*\n(.*?)```", text, re.S):
        for line in block.splitlines():
            found = re.match(r"(?:\$ )?(fmcpe (?:init|fit|sample|diagnose|demo|download|bench)\b.*)", line.strip())
            if found and "printed" not in line:
                yield shlex.split(found[1], comments=True)[1:]


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
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        compile(block, str(page), "exec")
        for name in re.findall(r"\bfmcpe\.(\w+)", block):
            assert hasattr(fmcpe, name) or (ROOT / "src" / "fmcpe" / name).exists(), name


def test_makefile_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets, page
