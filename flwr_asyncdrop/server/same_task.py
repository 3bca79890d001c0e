"""The same task of a simulated device, sent once more."""

from flwr_asyncdrop.server.clock import Clock
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run


def send_same(
    run: Run, mailbox: Mailbox, clock: Clock, order: Order, *, late: bool
) -> None:
    """Send an order whose reply has come once more; `late` ones are past the deadline.

    Neither the virtual clock nor the books see that it was sent twice.
    """
    state = run.state
    # Out before it is sent: a run that is interrupted here resumes with it.
    tasks, unsent = state.late if late else state.in_flight, f"order-{order.number}"
    tasks[unsent] = order
    message_id = run.push_again(mailbox, order)
    del tasks[unsent]
    tasks[message_id] = order
    clock.add(message_id, order, late=late)
