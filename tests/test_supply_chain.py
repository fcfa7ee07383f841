"""What is imported is declared, what is installed is locked with hashes, and a run opens no connection."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
MODULES = {
    "scikit-learn": "sklearn", "POT": "ot", "pillow": "PIL", "typing_extensions": "typing_extensions", "dask": "distributed",
}  # fmt: skip
"""Packages whose modules have other names."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    """Versions by name."""
    found = {}
    for name, version in re.findall(r"^([A-Za-z][\w.-]*)==([^ ;\\\n]+)", path.read_text(), re.M):
        found.setdefault(normal(name), set()).add(version)
    return found


def test_every_import_is_declared():
    declared = {Requirement(line).name for line in PROJECT["dependencies"]}
    for name in ("chambers", "files", "arviz", "dask"):
        declared |= {Requirement(line).name for line in PROJECT["optional-dependencies"][name]}
    allowed = {MODULES.get(name, name) for name in declared} | {"fmcpe", *sys.stdlib_module_names}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_dependencies_have_lower_bounds():
    for line in PROJECT["dependencies"]:
        assert re.search(r">=\d", line), line


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_locks_have_hashes_and_the_versions_of_the_constraints(path):
    text, constraints = path.read_text(), pins(ROOT / "constraints.txt")
    requirements = re.findall(r"^\w.*", text, re.M)
    assert requirements and all(line.endswith("\\") and "==" in line for line in requirements)
    blocks = re.split(r"^(?=\w)", text, flags=re.M)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    for name, versions in pins(path).items():
        if not re.match(r"(nvidia-|cuda-|triton)", name):  # which come with torch's builds for GPUs
            assert {version.removesuffix("+cpu") for version in versions} <= constraints[name], name


def test_direct_dependencies_are_locked():
    locked = {name for path in LOCKS for name in pins(path)}
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    assert {normal(Requirement(line).name) for line in lines} <= locked


OFFLINE = """
import sys, warnings
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"a connection: {event} {arguments}")
sys.addaudithook(refuse)
warnings.simplefilter("ignore")
import torch
from sbi.utils import BoxUniform
import fmcpe
[getattr(fmcpe, name) for name in fmcpe.__all__]
from fmcpe import FMCPE, Stack, candidates, diagnostics, tasks
torch.set_num_threads(1)
prior = BoxUniform(torch.zeros(2), torch.ones(2))
def simulator(theta):
    return theta + 0.1 * torch.randn_like(theta)
base = fmcpe.train_npe(simulator, prior, 300, seed=0, max_num_epochs=1, show_progress_bars=False)
stack = Stack([candidates.Prior(), candidates.SyntheticLikelihood(), candidates.Uncorrected()], folds=2, repeats=1)
theta = prior.sample((20,))
posterior = FMCPE(base, simulator, recipe=stack).fit(theta, simulator(theta) + 0.2, seed=0, show_progress_bars=False)
posterior.sample((10,), x=theta[0], show_progress_bars=False)
posterior.report(sys.argv[1] + "/report.html")
fmcpe.load(posterior.save(sys.argv[1] + "/run.fmcpe"))
print("done")
"""


def run_offline(script, folder):
    return subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)


def test_nothing_is_asked_of_a_network(tmp_path):
    done = run_offline(OFFLINE, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert (tmp_path / "report.html").exists()


def test_the_guard_would_see_a_connection(tmp_path):
    start = OFFLINE.split("warnings.simplefilter", maxsplit=1)[0]
    done = run_offline(start + "import socket; socket.create_connection(('127.0.0.1', 9))", tmp_path)
    assert done.returncode == 1 and "a connection" in done.stderr
