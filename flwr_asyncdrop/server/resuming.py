"""What becomes of the tasks that were out when the server stopped."""

from collections.abc import Mapping
from dataclasses import replace

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.state import Order


def send_again(session: Run, mailbox: Mailbox) -> list[Order]:
    """Send the tasks that were out once more, and note their new message ids.

    A simulated device computes what it would have computed. A real one may have done
    its task already, for a server that is gone, and gets a new one instead: so nothing
    is merged twice.

    Parameters
    ----------
    session : Run
        The run that goes on.
    mailbox : Mailbox
        The way to the devices.

    Returns
    -------
    list of Order
        The tasks that are lost.

    Raises
    ------
    RunError
        If the grid does not take a task.
    """
    state = session.state
    if session.simulated:
        state.in_flight = _sent(session, mailbox, state.in_flight)
        state.late = _sent(session, mailbox, state.late)
        return []
    lost = [*state.in_flight.values(), *state.late.values()]
    state.in_flight.clear()
    state.late.clear()
    return lost


def _sent(
    session: Run, mailbox: Mailbox, orders: Mapping[str, Order]
) -> dict[str, Order]:
    sent: dict[str, Order] = {}
    for message_id, old in orders.items():
        dispatcher = session.dispatcher
        order = replace(old, node_id=dispatcher.fleet.node_ids[old.device])
        if order.lost:
            sent[message_id] = order
            continue
        new_id = mailbox.push(dispatcher.message(session.state, order))
        if new_id is None:
            raise RunError(
                f"the grid did not take the task of device {order.device} once more: "
                "go on again when its nodes are there"
            )
        sent[new_id] = order
    return sent
