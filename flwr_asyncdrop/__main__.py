"""``python -m flwr_asyncdrop``: the command ``asyncdrop``."""

import sys

from flwr_asyncdrop.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
