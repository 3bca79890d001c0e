"""Whether the head of a Ray cluster is still there."""

import socket
import time
from collections.abc import Callable
from types import ModuleType

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.readable import first_line

_INTERVAL = 2.0  # seconds between two looks
_PATIENCE = 15.0
_SECONDS_TO_CONNECT = 2.0


class Head:
    """Looks now and then whether somebody listens at the head's address.

    Ray itself waits for a head that is gone for a minute, in whatever it was asked, and
    then ends the process, without an exception.

    Parameters
    ----------
    address : str
        ``"HOST:PORT"``; "" for none, which is there always.
    timer : callable
        Source of monotonic seconds.

    Attributes
    ----------
    is_silent : bool
        Whether nobody listened the last time. Ray must not be asked for anything then.
    """

    def __init__(
        self, address: str, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_silent = False
        self._address = address
        self._timer = timer
        self._next = -1.0
        self._silent_since = 0.0

    @classmethod
    def of(cls, ray: ModuleType) -> "Head":
        """Return the head of the cluster that Ray is connected to."""
        return cls(getattr(ray.get_runtime_context(), "gcs_address", ""))

    def look(self, *, at_once: bool = False) -> None:
        """Look if it is time; RunError if nobody has listened for a quarter minute."""
        now = self._timer()
        if not self._address or (now < self._next and not at_once):
            return
        self._next = now + _INTERVAL
        problem = self._problem()
        if problem and not self.is_silent:
            self._silent_since = now
        self.is_silent = bool(problem)
        if problem and now - self._silent_since >= _PATIENCE:
            raise RunError(
                f"the head of the Ray cluster at {self._address} is gone ({problem}): "
                "start a cluster, and resume the run"
            )

    def _problem(self) -> str:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), _SECONDS_TO_CONNECT
            ).close()
        except OSError as error:
            return first_line(error)
        return ""
