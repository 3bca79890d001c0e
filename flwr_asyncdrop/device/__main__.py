"""``python -m flwr_asyncdrop.device``: ``asyncdrop supernode`` without Matplotlib."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from flwr_asyncdrop.device.command import DESCRIPTION, USAGE, add_arguments, become_node


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Become a SuperNode, or end with what is wrong."""
    program = "python -m flwr_asyncdrop.device"
    parser = argparse.ArgumentParser(
        prog=program,
        usage=USAGE.format(program),
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    add_arguments(parser)
    parsed, rest = parser.parse_known_args(arguments)
    try:
        become_node(parsed, rest)
    except (ValueError, LookupError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
