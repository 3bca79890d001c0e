"""Where Flower's log lines go while a display is on."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Lines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Let Flower's logger say its warnings here, and nothing else anywhere.

    Its own handler writes to the terminal, between the lines of a display.

    Parameters
    ----------
    say : callable
        Gets a line for each warning or error.
    """
    logger = logging.getLogger("flwr")
    handlers = logger.handlers[:]
    logger.handlers[:] = [_Lines(say)]
    try:
        yield
    finally:
        logger.handlers[:] = handlers
