"""Ctrl-C, SIGTERM and SIGHUP, handled when the run can stop."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.flower_internals.exits import before_exit

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks the last
ENDINGS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The signals that ask a process to end."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Signals:
    """Holds SIGINT, SIGTERM and SIGHUP until the run can stop; a context manager.

    The first signal is noted; `check` and `at_once` raise it. When the context is left,
    the process handles it as it always does. A second signal is not held.

    Only a process's main thread can handle signals. In another one, as in Flower's
    simulation engine, they are left alone, and when Flower is about to end the process,
    it waits until the run has stopped; then this thread ends. Signals that the process
    ignores stay ignored, as SIGHUP under ``nohup``.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._received: int | None = None
        self._is_at_once = False
        self._in_main_thread = True
        self._is_left = threading.Event()
        self._patience = 0.0

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._received is not None:
            raise Interrupted(self._received)

    def sleep(self, seconds: float) -> None:
        """Sleep for so long, and raise Interrupted if a signal has come."""
        time.sleep(seconds)
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal raise Interrupted the moment it comes.

        For calls that may never return, such as those of Flower's grids while their
        SuperLink is gone, when the run can stop.
        """
        self._is_at_once = True
        try:
            self.check()
            yield
        finally:
            self._is_at_once = False

    def __enter__(self) -> Self:
        main = threading.main_thread()
        self._in_main_thread = threading.current_thread() is main
        if not self._in_main_thread:
            self._patience = before_exit(self._stop)
            return self
        for signum in ENDINGS:
            before = signal.getsignal(signum)
            # None: set by something that is not Python, which cannot set it back.
            if before not in (signal.SIG_IGN, None):
                self._before[signum] = before
                signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        self._is_left.set()
        if self._received is None:
            return
        if not self._in_main_thread:
            sys.exit(128 + self._received)
        signal.raise_signal(self._received)

    def _stop(self) -> None:
        """Let the run of another thread stop, and wait until it has."""
        if not self._is_left.is_set():
            self._received = signal.SIGTERM
            self._is_left.wait(self._patience)

    def _note(self, signum: int, _: FrameType | None) -> None:
        self._received = signum
        self._put_back()
        if self._is_at_once:
            raise Interrupted(signum)

    def _put_back(self) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        self._before.clear()
