"""Which task ends next, and what time it is.

Only a clock knows the time. Both keep the tasks that are out in a heap of
``(time, number)``: the moment at which something happens to a task if no reply comes
before. On the virtual clock that is its arrival or its deadline, whichever is first;
on the wall clock nobody knows when it arrives, and it is the deadline.
"""

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from flwr.app import Message

from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState


@dataclass(frozen=True)
class Arrival:
    """The end of a task.

    Attributes
    ----------
    message_id : str
        Id of the message that carried the task out.
    message : Message or None
        The reply; None if the task was given up, or lost by its device.
    """

    message_id: str
    message: Message | None


@dataclass(frozen=True)
class Overdue:
    """A task that has passed its deadline; it may still arrive, until it is given up.

    Attributes
    ----------
    message_id : str
        Id of the message that carried the task out.
    """

    message_id: str


Event = Arrival | Overdue


class Clock(ABC):
    """Decides what happens next to the tasks that are out.

    Parameters
    ----------
    mailbox : Mailbox
        Where the replies come in.

    Attributes
    ----------
    node_poll_interval : float
        Seconds, on this clock, after which to look for nodes that have joined while
        a slot is free.
    """

    node_poll_interval: ClassVar[float]

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._moments: list[tuple[float, int, str]] = []
        self._orders: dict[str, Order] = {}

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the start of the run, on this clock."""

    @abstractmethod
    def next(self, until: float = math.inf) -> Event | None:
        """Wait for the next event, and advance to that moment.

        Parameters
        ----------
        until : float
            When to look again at the latest, in seconds on this clock.

        Returns
        -------
        Arrival, Overdue or None
            None if nothing has happened by `until`; that is what time it is then.

        Raises
        ------
        IndexError
            If no task is out, and there is nothing else to wait for.
        """

    @abstractmethod
    def _set_time(self, now: float) -> None:
        """Set the time, in seconds since the start of the run."""

    def add(self, message_id: str, order: Order, *, late: bool = False) -> None:
        """Wait for a task.

        Parameters
        ----------
        message_id : str
            Id of the message that carried it out.
        order : Order
            What was ordered.
        late : bool
            Whether its deadline has passed.
        """
        self._orders[message_id] = order
        timing = order.timing
        limit = timing.gives_up if late else timing.deadline
        moment = min(timing.due, limit)
        heapq.heappush(self._moments, (moment, order.number, message_id))

    def resume(self, state: RunState) -> None:
        """Resume the tasks, and the time, of a run that was interrupted."""
        self._set_time(state.time)
        for message_id, order in state.in_flight.items():
            self.add(message_id, order)
        for message_id, order in state.late.items():
            self.add(message_id, order, late=True)

    def _time_is_up(self) -> Event:
        """Take the earliest moment, at which no reply has come."""
        moment, _, message_id = heapq.heappop(self._moments)
        order = self._orders.pop(message_id)
        if moment >= order.timing.gives_up:
            return Arrival(message_id, None)
        self.add(message_id, order, late=True)
        return Overdue(message_id)


class VirtualClock(Clock):
    """Simulated time: tasks arrive in the order of their due times.

    A duration is fixed when the task leaves, so the order of arrivals, and with it
    the whole run, depends on nothing that is measured: neither on the engine nor on
    the number of workers nor on the load of the machine.

    Parameters
    ----------
    mailbox : Mailbox
        Where the replies come in.
    patience : float
        Seconds of real time to wait for a reply that has arrived in virtual time.
    """

    node_poll_interval = math.inf

    def __init__(self, mailbox: Mailbox, patience: float) -> None:
        super().__init__(mailbox)
        self._patience = patience
        self._now = 0.0

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the run."""
        return self._now

    def _set_time(self, now: float) -> None:
        self._now = now

    def next(self, until: float = math.inf) -> Event | None:
        """Advance to the next event; wait for the reply of a task that arrives."""
        if until < math.inf and (not self._moments or until < self._moments[0][0]):
            self._now = until
            return None
        self._now, _, message_id = self._moments[0]
        if self._now < self._orders[message_id].timing.due:
            return self._time_is_up()
        heapq.heappop(self._moments)
        del self._orders[message_id]
        return Arrival(message_id, self._mailbox.wait([message_id], self._patience))


class WallClock(Clock):
    """Real time: the next event is the first reply.

    Parameters
    ----------
    mailbox : Mailbox
        Where the replies come in.
    timer : callable
        Source of monotonic seconds; replaced in tests.
    """

    node_poll_interval = 5.0

    def __init__(
        self, mailbox: Mailbox, timer: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(mailbox)
        self._timer = timer
        self._start = timer()

    @property
    def now(self) -> float:
        """Real seconds since the start of the run."""
        return self._timer() - self._start

    def _set_time(self, now: float) -> None:
        self._start = self._timer() - now

    def next(self, until: float = math.inf) -> Event | None:
        """Wait for the first reply, or for the first deadline to pass."""
        if not self._moments and until == math.inf:
            raise IndexError("no task is out, and there is nothing else to wait for")
        moment = self._moments[0][0] if self._moments else math.inf
        seconds = max(min(moment, until) - self.now, 0.0)
        message = self._mailbox.wait(self._orders, seconds)
        if message is not None:
            return self._arrival(message)
        return self._time_is_up() if moment <= until else None

    def _arrival(self, message: Message) -> Arrival:
        message_id = message.metadata.reply_to_message_id
        del self._orders[message_id]
        self._moments = [entry for entry in self._moments if entry[2] != message_id]
        heapq.heapify(self._moments)
        return Arrival(message_id, message)
