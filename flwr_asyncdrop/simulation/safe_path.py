"""What a fork server imports by itself is not taken from the current folder.

Python puts that folder first for the processes that ``multiprocessing`` starts for
itself, where a ``random.py`` would be imported for the standard one. A worker has the
path of its parent.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NAME: Final = "PYTHONSAFEPATH"
_OURS: Final = "asyncdrop"


@contextmanager
def safe_path() -> Iterator[None]:
    """Let processes that start have a path without the current folder."""
    if _NAME in os.environ:
        yield
        return
    os.environ[_NAME] = _OURS
    try:
        yield
    finally:
        os.environ.pop(_NAME, None)


def forget() -> None:
    """Let the processes that this one starts have their usual path."""
    if os.environ.get(_NAME) == _OURS:
        del os.environ[_NAME]
