"""The end of a process that has calls of Flower's grid under way."""

import threading
from concurrent.futures import thread
from functools import cache


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


def _forget_daemons() -> None:
    queues = getattr(thread, "_threads_queues", {})
    for each in [each for each in queues if each.daemon]:
        queues.pop(each, None)
