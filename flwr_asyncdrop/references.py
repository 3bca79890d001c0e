"""Objects outside of the package, by name: ``"package.module:attribute"``."""

from importlib import import_module
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError


def is_reference(name: str) -> bool:
    """Return whether a name is that of an object outside of the package."""
    return ":" in name


def load_reference(key: str, reference: str) -> Any:
    """Import what ``"package.module:attribute"`` names; a ConfigError names the key."""
    module, _, path = reference.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:  # what its code raises is its author's to see
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{key}={reference!r} cannot be imported ({type(error).__name__}: "
            f"{reason}): write package.module:attribute, of a package that is "
            "installed here"
        ) from error
    return found
