"""Asking real devices what they can do, before their first task."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable

from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import GridError, Interrupted
from flwr_asyncdrop.fleet.capacity import Capacity, Trip
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import BYTES_PER_MEGABIT, TaskCost
from flwr_asyncdrop.readable import printable_error, readable_bytes
from flwr_asyncdrop.server.clock import Clock
from flwr_asyncdrop.server.mailbox import Mailbox

logger = logging.getLogger("flwr.asyncdrop")

_POLL = 0.5
_PAUSE = 20  # times as long as a look for answers that has brought none
# Seconds of asking before the run goes on: a message takes one where the SuperLink is
# busy.
_AT_A_TIME = 2.0
_MANY = 16
# A probe has no arrays.
_FIRST = "; CapacityMod goes first, ClientApp(mods=[CapacityMod()])"
_NOTHING = TaskCost(compute=1.0, bytes_down=0, bytes_up=0)


class CapabilityProbe:
    """Asks each real device that joins what it can do.

    A device gets no task before it has answered, or until `patience` seconds are over:
    then its first task measures it. In a large fleet the first tasks leave while
    others have not been asked yet.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        fleet: Fleet,
        clock: Clock,
        *,
        enabled: bool = True,
        patience: float = 60.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mailbox = mailbox
        self._fleet = fleet
        self._clock = clock
        self._enabled = enabled and fleet.profiles is None
        self._patience = patience
        self._timer = timer
        self._look_again_at = 0.0
        self._known: set[int] = set()
        self._to_ask: deque[int] = deque()
        self._asked: dict[str, tuple[int, float]] = {}

    def note_joined(self) -> None:
        """Let the devices that have joined wait until they are asked."""
        if not self._enabled or len(self._known) == len(self._fleet):
            return
        joined = sorted(self._fleet.present - self._known)
        until = self._clock.now + self._patience
        for device in joined:
            self._fleet.readiness.await_answer(device, until)
        self._known.update(joined)
        self._to_ask.extend(joined)
        if len(joined) > _MANY:
            logger.info("%d devices are asked what they can do", len(joined))

    def ask(self) -> None:
        """Ask some of those that have not been asked yet, at most for about 2 s."""
        until = self._clock.now + _AT_A_TIME
        while self._to_ask and self._clock.now < until:
            if self._mailbox.push_due_in > 0:
                return
            device = self._to_ask[0]
            if device not in self._fleet.present:
                self._known.discard(device)  # until it joins again
            elif not self._ask(device):
                return
            self._to_ask.popleft()

    def _ask(self, device: int) -> bool:
        """Ask a device; return whether that need not be tried again."""
        readiness = self._fleet.readiness
        message = wire.make_probe(self._fleet.node_ids[device], self._patience)
        left_at = self._clock.now
        try:
            message_id = self._mailbox.push(message)
        except GridError as error:
            logger.warning("device %d is not asked yet: %s", device, error)
            return False
        except Interrupted:
            return False  # the next wait raises it, when the run can be saved
        if message_id is None:
            readiness.answered(device)
        else:
            self._asked[message_id] = device, left_at
            readiness.await_answer(device, left_at + self._patience)
        return True

    def take_answers(self) -> None:
        """Read the answers that are there.

        Not sooner than 20 times as long after a look without any as that took: devices
        that never answer are looked for at every event.
        """
        began, now = self._timer(), self._clock.now
        if not self._asked or began < self._look_again_at:
            return
        replies = self._mailbox.poll(self._asked)
        if not replies:
            self._look_again_at = began + _PAUSE * (self._timer() - began)
        for reply in replies:
            device, left_at = self._asked.pop(reply.metadata.reply_to_message_id)
            self._fleet.readiness.answered(device)
            self._learn(device, reply, Trip(left_at, now, _NOTHING))

    @property
    def next_question(self) -> float:
        """When to ask the others; infinity if all have been asked."""
        if not self._to_ask:
            return math.inf
        return self._clock.now + self._mailbox.push_due_in

    @property
    def next_look(self) -> float:
        """When to look for answers; infinity if none is awaited."""
        now = self._clock.now
        awaited = any(now < at + self._patience for _, at in self._asked.values())
        return now + _POLL if awaited else math.inf

    def _learn(self, device: int, reply: Message, trip: Trip) -> None:
        report = wire.read_report(reply)
        if report is None:
            why = f": {_reason(reply)}" if reply.has_error() else ""
            logger.info("device %d does not say what it can do%s", device, why)
            return
        self._fleet.update_from_report(device, report, trip)
        known = self._fleet.devices.capacities[device]
        logger.info("device %d: %s", device, _described(known))


def _reason(reply: Message) -> str:
    reason = printable_error(reply.error.reason or "") or "no reason given"
    return reason + _FIRST if wire.WANTS_ONE_RECORD in reason else reason


def _described(known: Capacity) -> str:
    parts = []
    if known.train_seconds < math.inf:
        parts.append(f"{known.train_seconds:.3g} s of local steps a task")
    if known.declared:
        parts.append(f"capacity {known.declared:g} (declared)")
    if known.memory < math.inf:
        parts.append(f"{readable_bytes(known.memory)} of memory")
    if known.bandwidth:
        megabits = known.bandwidth / BYTES_PER_MEGABIT
        parts.append(f"{megabits:g} Mbit/s (declared)")
    return ", ".join(parts) or "nothing is known of it"
