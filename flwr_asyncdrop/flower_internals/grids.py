"""Flower's grids, as an asynchronous server needs them."""

import importlib
from collections.abc import Callable, Iterable
from types import FunctionType

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_asyncdrop.flower_internals.pulls import PULL_OBJECTS, waiting_less

PullMessages = Callable[[list[str]], Iterable[Message]]
"""What ``Grid.pull_messages`` is."""


def refusals() -> tuple[type[BaseException], ...]:
    """Return what Flower raises for HTTP's 403 and gRPC's PERMISSION_DENIED.

    It is no `Exception`. Seen in flwr 1.33 to 1.42.
    """
    try:
        return (importlib.import_module("flwr.supercore.run").RunNotRunningException,)
    except (ImportError, AttributeError):
        return ()


GRID_ERRORS: tuple[type[BaseException], ...] = (Exception, *refusals())
"""All that a call of a grid may raise, but for signals and the end of the process."""


def answers_at_once(grid: Grid) -> bool:
    """Return whether no call of a grid waits for anything far away.

    So it is with a grid that says so, by an attribute of this name, and with Flower's
    own but for the remote ones. Any other may be a wrapper around one of these.
    """
    if pull_function(grid) is not None:
        return False
    is_flowers = type(grid).__module__.startswith("flwr.")
    return bool(getattr(grid, "answers_at_once", is_flowers))


def pull_function(grid: Grid) -> PullMessages | None:
    """Return a copy of a grid's method that waits less for parts; the grid stays as is.

    None if the grid is not one of Flower's remote ones: it answers at once. Seen in
    flwr 1.34 (``GrpcGrid``) to 1.42 (``HttpGrid``).
    """
    method = getattr(grid.pull_messages, "__func__", None)
    if not isinstance(method, FunctionType):
        return None
    names = method.__globals__
    pull = waiting_less(names)
    if pull is None or not names["__name__"].startswith("flwr."):
        return None
    copy = FunctionType(
        method.__code__,
        {**names, PULL_OBJECTS: pull},
        argdefs=method.__defaults__,
        closure=method.__closure__,
    )
    bound: PullMessages = copy.__get__(grid)
    return bound
