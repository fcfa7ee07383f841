"""Print the lowest versions that pyproject.toml allows, as constraints for pip: ``python .ci/lowest.py``.

The extra bayesflow is not tested with them: it asks for newer versions of numpy, scipy and matplotlib itself.
"""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def main() -> None:
    """One line per dependency of the library."""
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", PYPROJECT.read_text(), re.M | re.S)
    assert listed is not None
    for name, lowest in re.findall(r'^ *"([\w.-]+)>=([\d.]+)', listed[1], re.M):
        print(f"{name}=={lowest}")


if __name__ == "__main__":
    main()
