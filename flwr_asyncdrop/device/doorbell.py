"""A named pipe by which one process tells another that there is something to do."""

import os
import select
import time
from contextlib import suppress
from pathlib import Path

_AT_ONCE = 4096


class Doorbell:
    """Rung in one process and waited for in another.

    Rings before a wait count as one. Ringing never blocks; without anybody who waits
    it is lost, and so it is when the folder of the pipe is gone. The pipe is for this
    user only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._open: int | None = None

    def ring(self) -> None:
        """Wake whoever waits."""
        try:
            pipe = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody has waited yet, or the folder is gone
            return
        try:
            with suppress(OSError):  # full: it has been rung often enough
                os.write(pipe, b"\n")
        finally:
            os.close(pipe)

    def wait(self, seconds: float) -> bool:
        """Wait for a ring; return whether there was one in this time."""
        if self._open is None:
            try:
                # For writing too, so that it does not end when a ringer closes it.
                self._open = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
            except FileNotFoundError:
                time.sleep(seconds)
                return False
        rung, _, _ = select.select([self._open], [], [], seconds)
        if rung:
            os.read(self._open, _AT_ONCE)
        return bool(rung)
