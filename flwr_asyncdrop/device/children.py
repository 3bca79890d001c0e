"""The processes that the trainer has forked: how they end, and who wants to know."""

import os
import signal
import socket
from contextlib import suppress

from flwr_asyncdrop.device.shim import KILLED


class Children:
    """Tells the shim of each forked process by which signal it was killed.

    One that ends by itself tells its shim its status itself, also when the trainer has
    ended by then. `wakes` becomes readable when one has ended.
    """

    def __init__(self) -> None:
        self._shims: dict[int, socket.socket] = {}
        self.wakes, self._woken = socket.socketpair()
        for end in (self.wakes, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def add(self, process: int, shim: socket.socket) -> None:
        """Keep the connection to the shim of a process that was forked."""
        self._shims[process] = shim

    def reap(self) -> None:
        """Ask how those ended that have, and tell it to their shims."""
        with suppress(BlockingIOError):
            self.wakes.recv(4096)
        for process in list(self._shims):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                with self._shims.pop(process) as shim, suppress(OSError):
                    if os.WIFSIGNALED(status):
                        shim.send(KILLED + bytes([os.WTERMSIG(status)]))

    def forget(self) -> None:
        """Leave all to the trainer: this process is a forked one, or ends."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.wakes, self._woken, *self._shims.values()):
            end.close()
        self._shims.clear()
