"""The end of a process in which Flower runs a ServerApp."""

import importlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread
from functools import cache
from inspect import signature
from typing import Final

_HOME: Final = "flwr.supercore.exit"
_FIRST: Final = "run_before_force_exit"
PATIENCE: Final = 60.0
"""Seconds that a handler may take, so that the process ends at some time."""
_FORCED: Final = 3.0
"""The same where Flower ends the process by force, 5 s after it has begun to."""
_ENDS_AFTER: Final = 30.0


def before_exit(handler: Callable[[], None]) -> float:
    """Let Flower call a handler before it ends this process.

    It calls it in the main thread after a signal, and after ``flwr stop``, which sends
    the process one. Return how many seconds the handler may take, 0 where Flower has no
    handlers. Seen in flwr 1.33 to 1.42.
    """
    try:
        add = importlib.import_module(_HOME).add_exit_handler
    except (ImportError, AttributeError):
        return 0.0
    if _FIRST in signature(add).parameters:
        add(handler, **{_FIRST: True})
        return PATIENCE
    add(handler)
    return _FORCED


@cache
def end_without_daemons() -> None:
    """Let this process end without waiting for the daemon threads of executors.

    Flower's grid hands the parts of a message to an executor, and tries a part again
    for as long as its SuperLink is away. Made in a daemon thread, the executor's
    threads are daemons as well, for which no process waits; but Python's executors do,
    without a limit. Seen in flwr 1.34 to 1.42, with CPython 3.11.
    """
    # Before the executors' own function, as those that come last are called first.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_forget_daemons)


@cache
def end_in_time() -> None:
    """Let this process end in half a minute, once Flower has begun to end it.

    In flwr 1.34 the 5 s after which Flower ends it by force begin after its handlers.
    One of them waits for the thread of heartbeats, which tries again for as long as the
    SuperLink is away, and meanwhile the run's folder is held.
    """
    try:
        add = importlib.import_module(_HOME).add_exit_handler
    except (ImportError, AttributeError):
        return
    if _FIRST not in signature(add).parameters:
        add(_end_later)  # those that come last are called first


def _end_later() -> None:
    threading.Thread(target=_end_by_force, daemon=True).start()


def _end_by_force() -> None:
    time.sleep(_ENDS_AFTER)
    os._exit(1)


def _forget_daemons() -> None:
    queues = getattr(thread, "_threads_queues", {})
    for each in [each for each in queues if each.daemon]:
        queues.pop(each, None)
