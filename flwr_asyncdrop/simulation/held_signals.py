"""Signals whose handlers raise, as that of Ctrl-C, held back for a moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_HELD = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


@contextmanager
def held_signals() -> Iterator[None]:
    """Handle signals when the context is left: nothing in it is done by half.

    Python runs handlers in its main thread, between any two steps. Those of the system,
    which end the process, are left alone. It may be nested.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(signum: int, _: FrameType | None) -> None:
        received.append(signum)

    handlers = {signum: signal.getsignal(signum) for signum in _HELD}
    handlers = {signum: each for signum, each in handlers.items() if callable(each)}
    try:
        for signum in handlers:
            signal.signal(signum, note)
        yield
    finally:
        for signum, handler in reversed(handlers.items()):
            signal.signal(signum, handler)
        with ExitStack() as stack:  # each of them comes, though another raises
            for signum in reversed(received):
                stack.callback(signal.raise_signal, signum)
