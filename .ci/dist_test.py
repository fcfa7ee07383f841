"""Install the wheel of a folder into a new environment, and use it there: ``python .ci/dist_test.py dist``.

The working directory is a temporary one, so that nothing of the repository can be imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 1_000_000
SMOKE = """
import warnings
from importlib.metadata import version
from pathlib import Path

import fmcpe

assert "site-packages" in fmcpe.__file__, fmcpe.__file__
assert fmcpe.__version__ == version("fmcpe")
assert [name for name in dir(fmcpe) if not name.startswith("_")] == sorted(fmcpe.__all__)

from fmcpe import diagnostics, tasks

task = tasks.get("offset")
base = fmcpe.train_npe(task.simulator, task.prior, 2000, seed=0, max_num_epochs=5, show_progress_bars=False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", fmcpe.FMCPEWarning)
    posterior = fmcpe.FMCPE(base, task.simulator).fit(*task.calibration_set(30, 0), seed=0, show_progress_bars=False)
theta, y = task.test_set(200, 0)
error = [
    float((each.sample_batched((100,), x=y, show_progress_bars=False).mean(0) - theta).abs().mean())
    for each in (base, posterior)
]
assert error[1] < 0.5 * error[0], error
again = fmcpe.load(posterior.save("run.fmcpe"))
assert again.sample((5,), x=y[0], seed=1).equal(posterior.sample((5,), x=y[0], seed=1))
print(f"mean error of the posterior mean {error[0]:.2f} -> {error[1]:.2f}, saved and loaded")
"""


def check_contents(wheel: Path) -> None:
    """The wheel is small and has the package, its type marker and its metadata, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    other = [name for name in names if not name.startswith("fmcpe/") and ".dist-info/" not in name]
    tests = [name for name in names if "test" in name]
    if other or tests or "fmcpe/py.typed" not in names or wheel.stat().st_size > LARGEST:
        sys.exit(
            f"Expected a wheel below {LARGEST} bytes with fmcpe/ and its metadata alone, got {wheel.stat().st_size} bytes with "
            f"{other + tests}. See [tool.setuptools] in pyproject.toml."
        )
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1000:.0f} kB")


def main(folder: Path) -> None:
    """Check the only wheel of a folder."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1 or len(list(folder.glob("*.tar.gz"))) != 1:
        sys.exit(
            f"Expected one wheel and one source distribution in {folder}, got {len(wheels)} wheels. Run make dist."
        )
    check_contents(wheels[0])
    with tempfile.TemporaryDirectory() as place:
        venv.create(Path(place, "venv"), with_pip=True)
        python = Path(place, "venv", "bin", "python")

        def run(*words: str | Path) -> None:
            subprocess.run([python, *words], cwd=place, check=True)

        run("-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheels[0].resolve())
        run("-m", "pip", "check")
        run("-m", "fmcpe", "--version")
        run(Path(place, "venv", "bin", "fmcpe"), "demo", "--help")
        run("-c", SMOKE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
