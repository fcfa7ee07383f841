"""``python -m fmcpe``: the command line where the ``fmcpe`` script is not on the path."""

import sys

from fmcpe.cli import main

if __name__ == "__main__":
    sys.exit(main())
