"""``python -m ckptfs`` is the command ``ckptfs``."""

import sys

from ckptfs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
