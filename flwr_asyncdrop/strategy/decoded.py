"""Coded replies to a synchronous round, as an own `aggregate_train` gets them."""

from collections.abc import Iterable

from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.server.frozen_delivery import FrozenLackedError
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run


class DecodedReplies:
    """Decodes the replies of a round before a hook reads them, and reads them after.

    The hook gets no reply that cannot be read: it is refused when the others are
    merged. What the hook changes is merged as it is then, as without a codec.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._decoded: list[Message] = []
        self._refused: list[tuple[Message, ReplyError | FrozenLackedError]] = []

    def given(self, replies: Iterable[Message]) -> list[Message]:
        """Return what the hook gets of the replies as they came."""
        orders = {each.node_id: each for each in self._run.state.in_flight.values()}
        found: list[Message] = []
        for message in replies:
            order = orders.get(message.metadata.src_node_id)
            if order is None or not order.coding.up or message.has_error():
                found.append(message)
                continue
            try:
                reply = self._run.read(order, message)
            except (ReplyError, FrozenLackedError) as error:
                self._refused.append((message, error))
                continue
            found.append(wire.in_flowers_arrays(message, reply))
            self._decoded.append(found[-1])
        return found

    def merged(self, replies: Iterable[Message]) -> list[Message]:
        """Return what is to be merged: what the hook passes on, and what is refused."""
        return [*replies, *(message for message, _ in self._refused)]

    def read(self, order: Order, message: Message) -> wire.Reply:
        """Read one of them, as `Run.read` does."""
        for refused, error in self._refused:
            if refused is message:
                raise error
        decoded = any(each is message for each in self._decoded)
        return self._run.read(order, message, decoded=decoded)
