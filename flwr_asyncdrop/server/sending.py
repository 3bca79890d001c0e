"""Tasks that leave: to whom the next one goes, and what is out by then."""

from collections.abc import Sequence

from flwr.app import Message

from flwr_asyncdrop.exceptions import GridError, GridLostError
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.clock import Clock
from flwr_asyncdrop.server.failures import Failures
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.stopping import StoppingRule


class Sender:
    """Sends idle devices their next tasks, and counts what goes down to them."""

    def __init__(
        self,
        run: Run,
        *,
        mailbox: Mailbox,
        clock: Clock,
        stopping: StoppingRule,
        failures: Failures,
        callbacks: Sequence[Callback],
    ) -> None:
        self._run = run
        self._mailbox = mailbox
        self._clock = clock
        self._stopping = stopping
        self._failures = failures
        self._callbacks = callbacks

    def send_next(self) -> bool:
        """Send one task; return whether a device was idle."""
        state = self._run.state
        state.time = self._clock.now
        task = self._run.dispatcher.next_task(
            state,
            self._stopping.round_of(state.updates),
            self._stopping.progress(state.updates, state.time),
        )
        if task is None:
            return False
        order, message = task
        state.dispatched += 1
        message_id = self._send(order, message)
        if message_id is None:
            return True
        self._clock.add(message_id, order)
        for callback in self._callbacks:
            callback.on_dispatch(state, order)
        return True

    def _send(self, order: Order, message: Message) -> str | None:
        """Put a task in flight; return its message's id, or None if it was not sent."""
        unsent = f"order-{order.number}"
        self._take_out(order, unsent)
        # A task that will be lost need not be computed.
        if order.timing.lost:
            return unsent
        # It is out before it is sent: a run that is saved while the grid fails, or by a
        # signal, resumes with this task like any other.
        failed_before = self._mailbox.pushes_fail
        try:
            message_id = self._mailbox.push(message)
        except GridLostError:
            raise
        except GridError as error:
            self._take_back(order, unsent)
            # An outage is no fault of its devices: it costs only the first a failure,
            # in case that nothing can be sent to that one.
            count = self._failures.count if failed_before else self._failures.lose
            count(order, "not-sent", str(error))
            return None
        if message_id is None:
            self._take_back(order, unsent)
            self._failures.fail(order, "not-sent", "the grid did not take the message")
            return None
        in_flight = self._run.state.in_flight
        in_flight[message_id] = in_flight.pop(unsent)
        return message_id

    def _take_out(self, order: Order, message_id: str) -> None:
        state = self._run.state
        state.in_flight[message_id] = order
        state.bytes_down += order.cost.bytes_down
        self._run.add_energy(order.device, order.cost_with(bytes_up=0))

    def _take_back(self, order: Order, message_id: str) -> None:
        """Undo `_take_out`."""
        state = self._run.state
        del state.in_flight[message_id]
        state.bytes_down -= order.cost.bytes_down
        self._run.add_energy(order.device, order.cost_with(bytes_up=0), sign=-1)
