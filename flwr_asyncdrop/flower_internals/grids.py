"""Flower's grids, as an asynchronous server needs them."""

from collections.abc import Callable, Iterable
from types import FunctionType

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_asyncdrop.flower_internals.pulls import PULL_OBJECTS, waiting_less

PullMessages = Callable[[list[str]], Iterable[Message]]
"""What ``Grid.pull_messages`` is."""


def pull_function(grid: Grid) -> PullMessages | None:
    """Return a copy of a grid's method that waits less for parts; the grid stays as is.

    None if the grid is not one of Flower's remote ones: it answers at once. Seen in
    flwr 1.34 (``GrpcGrid``) to 1.41 (``HttpGrid``).
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
