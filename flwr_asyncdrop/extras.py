"""Packages that only some uses need: each comes with an extra of this package."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.readable import one_line


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra brings; a MissingExtraError names the extra.

    One that is installed and cannot be imported, as its parts do not fit together, is a
    MissingExtraError with the reason.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except Exception as error:
        # The module or a package that it lies in: a namespace can be there in part.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(
            f"{error.name}."
        ):
            reason = f"is not installed: pip install 'flwr-asyncdrop[{extra}]'"
        else:
            reason = (
                f"cannot be imported ({one_line(error)}): install it anew, with what "
                "it needs (see `asyncdrop doctor`)"
            )
        raise MissingExtraError(f"{package} {reason}", name=package) from error


MATPLOTLIB_FOLDER = "set MPLCONFIGDIR to a folder that can be written"
"""What to do where Matplotlib cannot keep its cache."""


def matplotlib_fix(error: BaseException) -> str:
    """Return what to do about a variable that Matplotlib reads when it is imported.

    "" if the error is of something else.
    """
    if isinstance(error, ValueError) and "backend" in str(error):
        return "unset MPLBACKEND"
    if isinstance(error, OSError) and "MPLCONFIGDIR" in str(error):
        return MATPLOTLIB_FOLDER
    return ""


@contextmanager
def logs_of(name: str) -> Iterator[list[str]]:
    """Yield what a package's own logger says in the block, in place of showing it."""
    said: list[str] = []

    def take(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return False

    logger = logging.getLogger(name)
    logger.addFilter(take)
    try:
        yield said
    finally:
        logger.removeFilter(take)


def is_installed(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    return find_spec(module) is not None
