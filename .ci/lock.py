"""Write ``requirements/*.txt``, every package with its hashes, from pyproject.toml and constraints.txt: ``make lock``.

Each file holds what it adds to the one before, so that they are installed in this order, without looking for dependencies:
build (what packages without a wheel are built with), torch, demo, test, docs. torch-cpu.txt is a smaller build of torch, which
takes the place of torch.txt (that for GPUs, with gigabytes of packages of its own) where pip finds it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEST = ("dev", "chambers", "dask", "files", "arviz", "bayesflow")
EXTRAS: dict[str, tuple[str, ...]] = {"demo": (), "test": TEST, "docs": (*TEST, "docs")}
TORCH = re.compile(r"(torch==|nvidia-|cuda-|triton==)")
HEADER = "# Written by `make lock` from pyproject.toml and constraints.txt: edit those.\n"


def resolved(extras: tuple[str, ...]) -> list[str]:
    """Requirements for all Pythons and systems, each with its hashes."""
    options = [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--python-version", "3.10", "--generate-hashes",
         "--no-config", "--no-header", "--no-annotate", "--quiet", "-c", "constraints.txt", *options, "pyproject.toml"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return re.findall(r"^\S.*\\\n(?: {4}.*\n?)+", done.stdout, re.M)


def cpu_build(pin: str) -> list[str]:
    """The requirement of the CPU build of torch that pip takes here, or none."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, pin + "+cpu"]
        if subprocess.run(command, check=False).returncode:
            return []
        own = hashlib.sha256(next(Path(folder).iterdir()).read_bytes()).hexdigest()
    return [f"{pin}+cpu \\\n    --hash=sha256:{own}\n"]


def write(name: str, requirements: list[str]) -> None:
    """One of the files."""
    (ROOT / "requirements" / f"{name}.txt").write_text(HEADER + "".join(requirements))


def main() -> None:
    """Write the files."""
    before = set[str]()
    for name, extras in EXTRAS.items():
        found = resolved(extras)
        own = [each for each in found if each not in before and not TORCH.match(each)]
        before |= set(found)
        if name == "demo":
            torch = [each for each in found if TORCH.match(each)]
            write("torch", torch)
            write("torch-cpu", cpu_build(next(each.split()[0] for each in torch if each.startswith("torch=="))))
            write("build", [each for each in own if each.startswith("setuptools==")])
            own = [each for each in own if not each.startswith("setuptools==")]
        write(name, own)


if __name__ == "__main__":
    main()
