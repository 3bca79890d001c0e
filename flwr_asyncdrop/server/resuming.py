"""The tasks that were out when the server stopped."""

from collections.abc import Mapping
from dataclasses import replace

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run


def send_again(run: Run, mailbox: Mailbox) -> list[Order]:
    """Send the tasks that were out once more; return those that are lost.

    A simulated device computes what it would have computed. A real one may have done
    its task for the server that is gone: it gets a new task instead, so nothing is
    merged twice. RunError if the grid does not take a task.
    """
    state = run.state
    if run.simulated:
        state.in_flight = _sent(run, mailbox, state.in_flight)
        state.late = _sent(run, mailbox, state.late)
        return []
    lost = [*state.in_flight.values(), *state.late.values()]
    state.in_flight.clear()
    state.late.clear()
    return lost


def _sent(run: Run, mailbox: Mailbox, orders: Mapping[str, Order]) -> dict[str, Order]:
    sent: dict[str, Order] = {}
    for message_id, old in orders.items():
        order = replace(old, node_id=run.fleet.node_ids[old.device])
        if order.timing.lost:
            sent[message_id] = order
            continue
        new_id = mailbox.push(run.dispatcher.message(run.state, order))
        if new_id is None:
            raise RunError(
                f"the grid did not take the task of device {order.device} once more: "
                "resume again when its nodes are there"
            )
        sent[new_id] = order
    return sent
