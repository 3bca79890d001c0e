"""Which asynchronous run a hook of a strategy is called in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.strategy.round_hooks import RoundHooks


class Running(NamedTuple):
    """A run that has been started, and what its strategy's hooks are told in it."""

    run: Run
    hooks: RoundHooks


class _Thread(threading.local):
    def __init__(self) -> None:
        self.by_strategy: dict[int, Running] = {}


_thread = _Thread()


@contextmanager
def running(strategy: object, run: Run, hooks: RoundHooks) -> Iterator[None]:
    """Let hooks that this thread calls meanwhile be of this run.

    A strategy may have runs in several threads at once, and one inside of another.
    """
    by_strategy = _thread.by_strategy
    _thread.by_strategy = {**by_strategy, id(strategy): Running(run, hooks)}
    try:
        yield
    finally:
        _thread.by_strategy = by_strategy


def running_now(strategy: object) -> Running | None:
    """Return the run of a strategy that this thread is in."""
    return _thread.by_strategy.get(id(strategy))
