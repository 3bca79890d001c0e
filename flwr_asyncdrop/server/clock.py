"""Which task ends next, and what time it is.

Only a clock knows the time. Both keep the tasks in flight in a heap of
``(due, number)`` and differ in what "due" means: on the virtual clock a task arrives
when it is due, on the wall clock it is given up then.
"""

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Message

from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.state import Order

__all__ = ["Arrival", "Clock", "VirtualClock", "WallClock"]


@dataclass(frozen=True)
class Arrival:
    """The end of a task.

    Attributes
    ----------
    message_id : str
        Id of the message that carried the task out.
    message : Message or None
        The reply; None if none came in time, or if the device lost the task.
    """

    message_id: str
    message: Message | None


class Clock(ABC):
    """Decides which task in flight ends next.

    Parameters
    ----------
    mailbox : Mailbox
        Where the replies come in.
    patience : float
        Seconds of real time after which a task without a reply is given up.
    """

    def __init__(self, mailbox: Mailbox, patience: float) -> None:
        self._mailbox = mailbox
        self._patience = patience
        self._tasks: list[tuple[float, int, str]] = []

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the start of the run, on this clock."""

    @abstractmethod
    def due(self, duration: float) -> float:
        """Return when a task that leaves now is due.

        Parameters
        ----------
        duration : float
            Virtual seconds that the task takes.
        """

    @abstractmethod
    def next(self, until: float = math.inf) -> Arrival | None:
        """Wait for the next task to end, and advance to that moment.

        Parameters
        ----------
        until : float
            When to look again at the latest, in seconds on this clock; only a
            simulated device says beforehand when it comes.

        Returns
        -------
        Arrival or None
            None if no task has ended by `until`; that is what time it is then.

        Raises
        ------
        IndexError
            If no task is in flight, and there is nothing else to wait for.
        """

    def add(self, message_id: str, order: Order) -> None:
        """Put a task that has left in flight."""
        heapq.heappush(self._tasks, (order.due, order.number, message_id))


class VirtualClock(Clock):
    """Simulated time: tasks arrive in the order of their due times.

    A duration is fixed when the task leaves, so the order of arrivals, and with it
    the whole run, depends on nothing that is measured: neither on the engine nor on
    the number of workers nor on the load of the machine.
    """

    def __init__(self, mailbox: Mailbox, patience: float) -> None:
        super().__init__(mailbox, patience)
        self._now = 0.0
        self._lost: set[str] = set()

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the run."""
        return self._now

    def due(self, duration: float) -> float:
        """Return the virtual time of arrival."""
        return self._now + duration

    def add(self, message_id: str, order: Order) -> None:
        """Put a task that has left in flight; nobody computes one that gets lost."""
        super().add(message_id, order)
        if order.lost:
            self._lost.add(message_id)

    def next(self, until: float = math.inf) -> Arrival | None:
        """Advance to the earliest arrival and wait for its reply to be computed."""
        if until < math.inf and (not self._tasks or until < self._tasks[0][0]):
            self._now = until
            return None
        due, _, message_id = heapq.heappop(self._tasks)
        message = None
        if message_id in self._lost:
            self._lost.remove(message_id)
        else:
            message = self._mailbox.wait([message_id], self._patience)
        self._now = due
        return Arrival(message_id, message)


class WallClock(Clock):
    """Real time: the next event is the first reply.

    Parameters
    ----------
    mailbox : Mailbox
        Where the replies come in.
    patience : float
        Seconds after which a task without a reply is given up.
    timer : callable
        Source of monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        patience: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(mailbox, patience)
        self._timer = timer
        self._start = timer()

    @property
    def now(self) -> float:
        """Real seconds since the start of the run."""
        return self._timer() - self._start

    def due(self, duration: float) -> float:
        """Return when a task that leaves now is given up."""
        return self.now + self._patience

    def next(self, until: float = math.inf) -> Arrival | None:
        """Wait for the first reply, or for the first task to run out of time."""
        due, _, earliest = self._tasks[0]
        waiting = {message_id: None for _, _, message_id in self._tasks}
        message = self._mailbox.wait(waiting, max(due - self.now, 0.0))
        ended = earliest if message is None else message.metadata.reply_to_message_id
        self._tasks = [task for task in self._tasks if task[2] != ended]
        heapq.heapify(self._tasks)
        return Arrival(ended, message)
