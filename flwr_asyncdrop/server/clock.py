"""Which task ends next, and what time it is.

Only a clock knows the time. A heap of ``(time, number, message id)`` holds the moment
at which something happens to each task if no reply comes before: on the virtual clock
its arrival or its deadline, whichever is first; on the wall clock its deadline.
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
    """The end of a task; `message` is None if it was given up or lost."""

    message_id: str
    message: Message | None


@dataclass(frozen=True)
class Overdue:
    """A task that has passed its deadline; its reply may still come."""

    message_id: str


Event = Arrival | Overdue


class Clock(ABC):
    """Decides what happens next to the tasks that are out.

    While a slot is free, the loop looks for new nodes every `node_poll_interval`
    seconds on this clock, and it never waits for longer than `longest_wait`.
    """

    node_poll_interval: ClassVar[float]
    longest_wait: ClassVar[float]

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._moments: list[tuple[float, int, str]] = []
        self._orders: dict[str, Order] = {}

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the start of the run, on this clock."""

    @property
    def has_event_now(self) -> bool:
        """Whether another event is known to be at this very time."""
        return False

    @abstractmethod
    def next(self, until: float = math.inf) -> Event | None:
        """Wait for the next event, and advance to its time.

        None if nothing happens by `until`, in seconds on this clock. IndexError if no
        task is out and `until` is infinite.
        """

    @abstractmethod
    def _set_time(self, now: float) -> None:
        """Set the time, in seconds since the start of the run."""

    def add(self, message_id: str, order: Order, *, late: bool = False) -> None:
        """Wait for a task; `late` if its deadline has passed."""
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
            self._mailbox.forget([message_id])
            return Arrival(message_id, None)
        self.add(message_id, order, late=True)
        return Overdue(message_id)


class VirtualClock(Clock):
    """Simulated time: tasks arrive in the order of their due times.

    A duration is fixed at dispatch, so the order of arrivals depends on nothing
    measured: not on the engine, the number of workers or the load of the machine.
    `patience` is how many real seconds to wait for a reply that has arrived in virtual
    time.
    """

    node_poll_interval = longest_wait = math.inf
    now = 0.0

    def __init__(self, mailbox: Mailbox, patience: float) -> None:
        super().__init__(mailbox)
        self._patience = patience

    def _set_time(self, now: float) -> None:
        self.now = now

    @property
    def has_event_now(self) -> bool:
        """Whether another event is at this very time."""
        return bool(self._moments) and self._moments[0][0] <= self.now

    def next(self, until: float = math.inf) -> Event | None:
        """Advance to the next event; wait for the reply of a task that arrives."""
        until = max(until, self.now)  # an aggregator may ask for a step in the past
        if until < math.inf and (not self._moments or until < self._moments[0][0]):
            self.now = until
            return None
        self.now, _, message_id = self._moments[0]
        if self.now < self._orders[message_id].timing.due:
            return self._time_is_up()
        heapq.heappop(self._moments)
        del self._orders[message_id]
        message = self._mailbox.wait([message_id], self._patience, beyond_outages=True)
        if message is None:
            self._mailbox.forget([message_id])
        return Arrival(message_id, message)


class WallClock(Clock):
    """Real time: the next event is the first reply."""

    node_poll_interval = 5.0
    longest_wait = 60.0

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
