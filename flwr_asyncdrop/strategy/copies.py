"""Copies of the objects that a strategy is given: every run begins with one."""

from copy import deepcopy
from typing import TypeVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import first_line

T = TypeVar("T")


def copied(name: str, argument: T) -> T:
    """Return the copy that a run begins with; ConfigError if there can be none."""
    try:
        return deepcopy(argument)
    except Exception as error:  # whatever the object's own code raises
        raise ConfigError(
            f"{name}, of the class {type(argument).__name__}, cannot be copied "
            f"({first_line(error)}): every run begins with a copy, so keep no locks, "
            "files or threads in its attributes"
        ) from error
