"""Processes that do not import the script that starts them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_MAIN = "__main__"


@contextmanager
def no_main_module() -> Iterator[None]:
    """Hide the main module from ``multiprocessing`` while it starts a process.

    A process that is not forked imports the main module of its parent before it does
    anything else, with all that a script imports, which can take longer than its
    work. One that refers to nothing in there can go without.
    """
    main = sys.modules[_MAIN]
    sys.modules[_MAIN] = ModuleType(_MAIN)
    try:
        yield
    finally:
        sys.modules[_MAIN] = main


def refers_to_main(reference: str) -> bool:
    """Return whether ``"module:attribute"`` is to be found in the main module."""
    return reference.partition(":")[0] == _MAIN
