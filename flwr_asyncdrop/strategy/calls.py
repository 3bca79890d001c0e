"""Whether a user's functions can be called as they will be."""

from collections.abc import Callable
from inspect import signature

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import printable, shown


def check_call(
    name: str, function: Callable[..., object], given: str, told: str
) -> None:
    """Raise ConfigError if a function does not take what it will be `given`.

    `given` has the names of its arguments, and `told` says what these are.
    """
    if not callable(function):
        raise ConfigError(f"{name}={printable(shown(function))} must be a function")
    names = given.split(", ")
    try:
        found = signature(function)
    except (TypeError, ValueError):  # of some that are written in C nobody knows
        return
    try:
        found.bind(*names)
    except TypeError as error:
        raise ConfigError(
            f"{name}({given}) cannot be called ({error}): a function gets {told}"
        ) from error
