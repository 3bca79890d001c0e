"""Packages that only some uses need: each comes with an extra of this package."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from flwr_asyncdrop.exceptions import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra brings; a MissingExtraError names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # The module or a package that it lies in: a namespace can be there in part.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} is not installed: pip install 'flwr-asyncdrop[{extra}]'",
            name=package,
        ) from error


def is_installed(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    return find_spec(module) is not None
