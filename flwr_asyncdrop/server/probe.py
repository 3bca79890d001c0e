"""Asking real devices what they can do, before their first task."""

import logging
import math
import time
from collections.abc import Callable

from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import GridError, Interrupted
from flwr_asyncdrop.fleet.capacity import Capacity, Trip
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import BYTES_PER_MEGABIT, TaskCost
from flwr_asyncdrop.readable import printable_error, readable_bytes
from flwr_asyncdrop.server.mailbox import Mailbox

logger = logging.getLogger("flwr.asyncdrop")

_POLL = 0.5
_PAUSE = 20  # times as long as a look for answers
# A probe has no arrays.
_FIRST = "; CapacityMod goes first, ClientApp(mods=[CapacityMod()])"
_NOTHING = TaskCost(compute=1.0, bytes_down=0, bytes_up=0)


class CapabilityProbe:
    """Asks each real device that joins what it can do.

    A device gets no task before it has answered, or until `patience` seconds are over:
    then its first task measures it.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        fleet: Fleet,
        *,
        enabled: bool = True,
        patience: float = 60.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mailbox = mailbox
        self._fleet = fleet
        self._enabled = enabled and fleet.profiles is None
        self._patience = patience
        self._timer = timer
        self._look_again_at = 0.0
        self._known: set[int] = set()
        self._asked: dict[str, tuple[int, float]] = {}

    def ask(self, now: float) -> None:
        """Ask the devices that have joined; `now` is on the loop's clock."""
        if not self._enabled:
            return
        if len(self._known) == len(self._fleet):
            return
        for device in sorted(self._fleet.present - self._known):
            if self._mailbox.push_due_in > 0:
                return  # the others are asked the next time
            message = wire.make_probe(self._fleet.node_ids[device], self._patience)
            try:
                message_id = self._mailbox.push(message)
            except GridError as error:
                logger.warning("device %d is not asked yet: %s", device, error)
                return
            except Interrupted:
                return  # the next wait raises it, when the run can be saved
            self._known.add(device)
            if message_id is not None:
                self._asked[message_id] = device, now
                self._fleet.readiness.await_answer(device, now + self._patience)

    def take_answers(self, now: float) -> None:
        """Read the answers that are there.

        Not sooner than 20 times as long after the last look as that took: devices that
        never answer are looked for at every event.
        """
        began = self._timer()
        if not self._asked or began < self._look_again_at:
            return
        replies = self._mailbox.poll(self._asked)
        self._look_again_at = began + _PAUSE * (self._timer() - began)
        for reply in replies:
            device, asked_at = self._asked.pop(reply.metadata.reply_to_message_id)
            self._fleet.readiness.answered(device)
            self._learn(device, reply, Trip(asked_at, now, _NOTHING))

    def next_look(self, now: float) -> float:
        """Return when to look for answers; infinity if none is awaited."""
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
