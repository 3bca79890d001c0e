"""Objects outside of the package, by name: ``"package.module:attribute"``."""

import traceback
from importlib import import_module
from typing import Any

from flwr_asyncdrop.exceptions import AsyncDropError, ConfigError


def is_reference(name: str) -> bool:
    """Return whether a name is that of an object outside of the package."""
    return ":" in name


def load_reference(key: str, reference: str) -> Any:
    """Import what ``"package.module:attribute"`` names; a ConfigError names the key."""
    module, _, path = reference.partition(":")
    found: Any = None
    try:
        found = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # whatever its code does
        reason = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError):  # or of what the module imports
            absent = f"{module}.".startswith(f"{error.name}.")
        else:
            absent = found is not None or not module
        advice = (
            "write package.module:attribute, of a package that is installed here"
            if absent
            else "try it in Python by itself"
        )
        raise ConfigError(
            f"{key}={reference!r} cannot be imported ({type(error).__name__}: "
            f"{reason}): {advice}"
        ) from error
    return found


def call_reference(key: str, reference: str, *arguments: object) -> Any:
    """Call what a reference names; what it raises is a ConfigError that says where."""
    function = load_reference(key, reference)
    if not callable(function):
        raise ConfigError(
            f"{key}={reference!r} is of type {type(function).__name__}: name a function"
        )
    try:
        return function(*arguments)
    except AsyncDropError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{key}={reference!r} failed in line {at.lineno} of {at.filename} "
            f"({reason}): try it in Python by itself"
        ) from error
