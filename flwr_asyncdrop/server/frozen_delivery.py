"""Which devices get the frozen tensors with their next task."""

import logging
from collections.abc import Iterable

from flwr.app import ArrayRecord, Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.readable import printable_error, readable_bytes, shown
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import Frozen
from flwr_asyncdrop.wire.advice import advice

logger = logging.getLogger("flwr.asyncdrop")

_MANY = 3
# What a mod raises that looks for what a reply has not got.
_NOT_THERE = ("KeyError", "IndexError", "StopIteration")


class FrozenLackedError(Exception):
    """A device asks for the frozen tensors: it has not done its task."""


class FrozenDelivery:
    """Brings the frozen tensors to each device once, or not at all if it has them.

    With `unasked` every device gets them with its first task. Else a device has them
    until it says that it has not, and gets them with its next task. What is on its way
    to a device is not sent a second time. Who plays a `simulated` device, and what that
    process has, says nothing about the device: its task is sent again with them. With
    `always` each message brings them.
    """

    def __init__(self, *, unasked: bool, simulated: bool = False) -> None:
        self.unasked = unasked
        self.simulated = simulated
        self.always = False
        self._record: tuple[str, ArrayRecord] = ("", ArrayRecord())
        # The orders that bring them and are not ended, and the last such order that a
        # device has replied to.
        self._bringing: dict[int, int] = {}  # number of the order -> device
        self._brought: dict[int, int] = {}  # device -> number of the order
        self._asked: set[int] = set()
        # Tasks that were sent again to be done, by the number of their order.
        self._again: set[int] = set()
        self._times: dict[int, int] = {}  # that a device has asked, for the log

    def state_dict(self) -> StateDict:
        """Return who has them, and what is on its way."""
        sets = {"asked": self._asked, "again": self._again}
        maps = {"bringing": self._bringing, "brought": self._brought}
        plain: StateDict = to_plain({**sets, **maps})
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Restore that."""
        self._asked = from_plain(set[int], state["asked"])
        self._again = from_plain(set[int], state["again"])
        self._bringing = from_plain(dict[int, int], state["bringing"])
        self._brought = from_plain(dict[int, int], state["brought"])

    def forget(self) -> None:
        """Begin anew, with other tensors."""
        for known in (self._bringing, self._brought, self._asked, self._again):
            known.clear()

    def record(self, frozen: Frozen) -> ArrayRecord:
        """Return the frozen tensors for the wire, serialised once."""
        if self._record[0] != frozen.sha256:
            self._record = frozen.sha256, wire.to_record(frozen.tensors)
        return self._record[1]

    def add_to(
        self, frozen: Frozen, number: int, device: int, out: Iterable[Order]
    ) -> int:
        """Let the order of this number bring them if its device is to get them.

        `out` are the orders whose devices are taken. Return the bytes that it brings.
        """
        if not frozen.tensors:
            return 0
        numbers = {order.number for order in out}
        self._bringing = {n: d for n, d in self._bringing.items() if n in numbers}
        if not self._lacks(device) or device in self._bringing.values():
            return 0
        self._bringing[number] = device
        return wire.array_bytes(self.record(frozen))

    def for_evaluation(self, frozen: Frozen, device: int) -> dict[str, ArrayRecord]:
        """Return the record that an evaluation on a device brings, by its key."""
        if not frozen.tensors or not (self.always or self._lacks(device)):
            return {}
        self._asked.discard(device)
        return {wire.FROZEN_RECORD: self.record(frozen)}

    def records(self, frozen: Frozen, order: Order) -> dict[str, ArrayRecord]:
        """Return the record that an order brings beside the model, by its key."""
        if not frozen.tensors or not self._brings(order.number):
            return {}
        return {wire.FROZEN_RECORD: self.record(frozen)}

    def check(self, frozen: Frozen, order: Order, reply: Message) -> None:
        """Learn from a reply who has them.

        FrozenLackedError if the device asks for them; ReplyError if it asks although
        its task has brought them, or shows that its ClientApp has no FrozenMod, or one
        in the wrong place.
        """
        if not frozen.tensors:
            return
        number, device = order.number, order.device
        brings = self._brings(number)
        may_ask = not brings and (self.simulated or device not in self._brought)
        if not wire.lacks_frozen(reply, frozen.sha256):
            if self._bringing.pop(number, None) is not None:
                self._brought[device] = number
                self._asked.discard(device)
            self._again.discard(number)
            _check_mod(frozen, reply, may_ask=may_ask)
            return
        self._bringing.pop(number, None)
        if brings:
            self._again.discard(number)
            raise ReplyError(
                "frozen",
                "the client asks for the frozen tensors that its task has brought: "
                "give its ClientApp the FrozenMod of this version of flwr-asyncdrop",
            )
        # A task that left before it got them says nothing new.
        if not self.simulated and number > self._brought.get(device, -1):
            self._note(frozen, device)
        raise FrozenLackedError

    def bring_again(self, order: Order) -> None:
        """Let an order that is sent once more bring them."""
        self._again.add(order.number)

    def _note(self, frozen: Frozen, device: int) -> None:
        self._asked.add(device)
        self._times[device] = times = self._times.get(device, 0) + 1
        size = readable_bytes(wire.array_bytes(self.record(frozen)))
        logger.info("device %d lacks what does not train: it gets %s", device, size)
        if times == _MANY:
            logger.warning(
                "device %d has asked %d times for what does not train (%s): it loses "
                "its context.state between tasks; give its FrozenMod the model that "
                "it has, FrozenMod(lambda context: Net())",
                device,
                times,
                size,
            )

    def _brings(self, number: int) -> bool:
        return self.always or number in self._bringing or number in self._again

    def _lacks(self, device: int) -> bool:
        return device in self._asked or (self.unasked and device not in self._brought)


def _check_mod(frozen: Frozen, reply: Message, *, may_ask: bool) -> None:
    """Raise ReplyError if a client shows that its ClientApp has no FrozenMod.

    Or if one that `may_ask` for the frozen tensors may have a mod before it that fails.
    """
    fix = (
        "give its ClientApp the mod that completes tasks, ClientApp(mods=[FrozenMod()])"
    )
    if reply.has_error():
        reason = reply.error.reason or ""
        if wire.WANTS_ONE_RECORD in reason:
            raise ReplyError(
                "client-error",
                f"the client failed: {printable_error(reason)}; it sees how the "
                "FrozenMod behind it gets what does not train: hand such a mod to it, "
                "ClientApp(mods=[FrozenMod(train_mods=[...])]) (docs/frozen.md)",
            )
        if any(words in reason for words in wire.INCOMPLETE):
            raise ReplyError(
                "client-error",
                f"the client failed: {printable_error(reason)}; the task leaves "
                f"{len(frozen.tensors):,} tensors out, as they do not train: "
                f"{fix}, or say trainable=lambda name: True to the strategy",
            )
        is_known = bool(advice(reason))
        if may_ask and not is_known and any(name in reason for name in _NOT_THERE):
            raise ReplyError(
                "client-error",
                f"the client failed: {printable_error(reason)}; if a mod of your own "
                "reads replies, put it behind FrozenMod: a device that lacks what does "
                "not train replies with neither arrays nor metrics (docs/frozen.md)",
            )
        return
    for arrays in wire.records_of(reply.content, ArrayRecord).values():
        found = next((name for name in arrays if name in frozen.tensors), None)
        if found is not None:
            raise ReplyError(
                "names",
                f"the reply has the array {shown(found)}, which does not train and was "
                f"not sent: {fix}",
            )
