"""What becomes of a task whose device lacked the frozen tensors."""

from flwr_asyncdrop.server.clock import Clock
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.same_task import send_same


def bring_frozen(
    run: Run, mailbox: Mailbox, clock: Clock, order: Order, *, late: bool
) -> None:
    """Let a device that asked for the frozen tensors do its task, or another.

    A real one gets them with its next task, which is cut from the model of that moment.
    A simulated one does the same task, and neither the virtual clock nor the
    books see that it was sent twice: what a device downloads follows from the seed, and
    not from which process of this machine happens to have it. `late` orders are past
    their deadline.
    """
    state = run.state
    if not run.simulated:
        run.dispatcher.replied(state, order.device)
        return
    run.dispatcher.delivery.bring_again(order)
    send_same(run, mailbox, clock, order, late=late)
