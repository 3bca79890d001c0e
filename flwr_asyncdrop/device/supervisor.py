"""Keeps the trainer alive."""

import logging
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PATIENCE = 5.0
# A signal that ends the process may be about to end its owner, too.
_MOMENT = 0.5


class Supervisor:
    """Starts a process again whenever it ends, until this context manager exits.

    The pause before a start is `first_pause` seconds; it doubles whenever the process
    ran for less than a minute. The process's standard input ends with this process.
    """

    def __init__(
        self, command: Sequence[str], *, first_pause: float = _FIRST_PAUSE
    ) -> None:
        self._command = list(command)
        self._first_pause = first_pause
        self._over = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, name="trainer", daemon=True)

    @property
    def pid(self) -> int:
        """Number of the process that runs now, or ran last."""
        return self._process.pid

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        while self._thread.is_alive():
            _end(self._process)
            self._thread.join(_PATIENCE)

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE)  # noqa: S603  # ours

    def _keep(self) -> None:
        pause = self._first_pause
        while True:
            started = time.monotonic()
            with self._process:
                status = self._process.wait()
            if self._over.wait(_MOMENT):
                return
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause = self._first_pause
            logging.getLogger("flwr").warning(
                "the trainer has ended (status %d): tasks start the plain way until it "
                "is back, in %g s",
                status,
                pause,
            )
            if self._over.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE)
            with suppress(OSError):  # no memory at the moment, or too many processes
                self._process = self._start()


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
