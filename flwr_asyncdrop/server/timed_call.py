"""A call that may never return, made in a thread."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

_T = TypeVar("_T")
_SLICE_SECONDS = 0.5


class TimedCall(Generic[_T]):
    """Makes a call in a thread of its own, which nobody waits for in the end.

    Flower's remote grids try a call again for as long as their SuperLink is away.
    """

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._outcome: SimpleQueue[tuple[_T | None, BaseException | None]] = (
            SimpleQueue()
        )
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        """Whether it has not returned yet."""
        return self._thread.is_alive()

    def result(self, seconds: float) -> _T:
        """Return what the call returns, or raise what it raises.

        TimeoutError after so many seconds. It waits in slices: a wait does not end for
        a signal that another thread got, or that came just before it.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            try:
                wait = max(min(left, _SLICE_SECONDS), 0.0)
                result, error = self._outcome.get(timeout=wait)
            except Empty:
                if left <= 0:
                    message = f"it has not returned for {seconds:g} s"
                    raise TimeoutError(message) from None
            else:
                if error is not None:
                    raise error
                return result  # type: ignore[return-value]  # there is no error

    def _work(self) -> None:
        try:
            self._outcome.put((self._call(), None))
        except BaseException as error:  # whoever waits raises it
            self._outcome.put((None, error))
