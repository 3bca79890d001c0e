"""Tasks that are sent once more."""

from collections.abc import Mapping
from dataclasses import replace

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.clock import Clock
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run


class Resends:
    """Sends the tasks of simulated devices once more.

    What such a device computes, and downloads, follows from the seed, and not from
    which process of this machine does it, or how often: neither the virtual clock nor
    the books see that a task was sent twice. A real device gets another task instead,
    cut from the model of that moment, so that nothing is merged twice.
    """

    def __init__(self, run: Run, mailbox: Mailbox, clock: Clock) -> None:
        self._run = run
        self._mailbox = mailbox
        self._clock = clock

    def resume(self) -> list[Order]:
        """Send the tasks that were out when the server stopped; return those lost.

        Those of real devices are: they may have been done for the server that is gone.
        RunError if the grid does not take a task.
        """
        state = self._run.state
        if self._run.simulated:
            state.in_flight = self._push_all(state.in_flight)
            state.late = self._push_all(state.late)
            return []
        lost = [*state.in_flight.values(), *state.late.values()]
        state.in_flight.clear()
        state.late.clear()
        return lost

    def bring_frozen(self, order: Order, *, late: bool) -> None:
        """Let a device that asked for the frozen tensors do its task, or another.

        A real one gets them with its next task. `late` orders are past their deadline.
        """
        dispatcher = self._run.dispatcher
        if not self._run.simulated:
            dispatcher.tracker.replied(self._run.state, order.device)
            return
        dispatcher.delivery.bring_again(order)
        self.send(order, late=late)

    def send(self, order: Order, *, late: bool) -> None:
        """Send an order whose reply has come, but has not done it; RunError as above.

        The order has kept what was sent.
        """
        state = self._run.state
        # Out before it is sent: a run that is interrupted here resumes with it.
        tasks, unsent = state.late if late else state.in_flight, f"order-{order.number}"
        tasks[unsent] = order
        message_id = self._push(order)
        del tasks[unsent]
        tasks[message_id] = order
        self._clock.add(message_id, order, late=late)

    def _push_all(self, orders: Mapping[str, Order]) -> dict[str, Order]:
        sent: dict[str, Order] = {}
        for message_id, old in orders.items():
            order = replace(old, node_id=self._run.fleet.node_ids[old.device])
            sent[message_id if order.timing.lost else self._push(order)] = order
        return sent

    def _push(self, order: Order) -> str:
        """Push the message of an order; return its new id."""
        message = self._run.dispatcher.message(self._run.state, order)
        message_id = self._mailbox.push(message)
        if message_id is None:
            raise RunError(
                f"the grid did not take the task of device {order.device} once "
                "more: resume again when its nodes are there"
            )
        return message_id
