"""Tasks that end: merged, counted as lost, or sent once more."""

import logging
from collections.abc import Sequence

from flwr.app import Message

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.clock import Arrival, Clock
from flwr_asyncdrop.server.dead_workers import DeadWorkers
from flwr_asyncdrop.server.failures import Failures
from flwr_asyncdrop.server.frozen_delivery import FrozenLackedError
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.resends import Resends
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.server.updates import trained_share

logger = logging.getLogger("flwr.asyncdrop")

_MUCH_MORE = 1.5  # times the steps that were asked for


class Arrivals:
    """Takes each task off the books when it ends, whatever has come of it."""

    def __init__(
        self,
        run: Run,
        *,
        clock: Clock,
        stopping: StoppingRule,
        failures: Failures,
        resends: Resends,
        dead_workers: DeadWorkers,
        callbacks: Sequence[Callback],
    ) -> None:
        self._run = run
        self._clock = clock
        self._stopping = stopping
        self._failures = failures
        self._resends = resends
        self._dead_workers = dead_workers
        self._callbacks = callbacks
        self._said_more = False

    def end(self, arrival: Arrival) -> int | None:
        """End a task; return the number of the round that is over with it, if one is.

        GridLostError if tasks come back from dead workers alone.
        """
        state, message_id = self._run.state, arrival.message_id
        late = message_id in state.late
        # The order is still out if this ends the run: a run that resumes has it.
        nobody = self._dead_workers.answered(arrival.message)
        order = (state.late if late else state.in_flight).pop(message_id)
        if arrival.message is None:
            self._failures.no_reply(order)
        elif nobody:
            self._send_again(order, late=late)
        else:
            return self._take(order, arrival.message, late=late)
        return None

    def _send_again(self, order: Order, *, late: bool) -> None:
        """Send a task again that no device has had; a real one gets another."""
        if self._run.simulated and order.part.arrays is not None:
            self._resends.send(order, late=late)
            return
        self._run.dispatcher.tracker.replied(self._run.state, order.device)
        self._failures.count(
            order, "no-worker", "a worker of Flower's simulation had died"
        )

    def _take(self, order: Order, message: Message, *, late: bool) -> int | None:
        """Merge the reply to an order, or count why that cannot be done."""
        state, dispatcher = self._run.state, self._run.dispatcher
        began_at, queued = dispatcher.tracker.began(order)
        staleness = state.version - order.base_version
        discount = dispatcher.rules.faults.late_weight if late else 1.0
        try:
            reply = self._run.read(order, message)
            if discount > 0:
                self._run.merge(order, reply, staleness, discount)
            if self._is_last():
                self._run.stop_waiting()
        except FrozenLackedError:
            self._resends.bring_frozen(order, late=late)
            return None
        except ReplyError as error:
            dispatcher.tracker.replied(state, order.device)
            self._failures.fail(order, error.kind, str(error))
            return None
        dispatcher.tracker.replied(state, order.device)
        state.bytes_up += reply.num_bytes
        self._run.add_energy(order.device, TaskCost(0.0, 0, reply.num_bytes))
        if discount == 0:
            self._drop(order, state.time - began_at)
            return None
        work = trained_share(order, reply)
        self._compare(order, work)
        trip = Trip(began_at, state.time, order.cost_with(reply.num_bytes, work))
        dispatcher.tracker.succeeded(order, trip, reply.report)
        state.lost_in_a_row.clear()
        number = self._stopping.round_of(state.updates - 1)
        merged = Merged(order, reply, staleness, number, late, queued, message)
        for callback in self._callbacks:
            callback.on_update(state, merged)
        return number if self._stopping.ends_round(state.updates) else None

    def _compare(self, order: Order, work: float) -> None:
        """Warn, once, of many more steps than simulated time and energy count."""
        asked = order.part.work
        if self._said_more or not self._run.simulated or asked is None:
            return
        if work > _MUCH_MORE * asked:
            self._said_more = True
            logger.warning(
                "device %d has trained %.3g of the usual local steps, and simulated "
                "time and energy count the %.3g that the work policy gave it: give no "
                "less than one step",
                order.device,
                work,
                asked,
            )

    def _drop(self, order: Order, seconds: float) -> None:
        """Count a reply that came too late to be merged, after so many seconds."""
        self._run.fleet.observe(order.device, seconds, order.cost.compute)
        behind = f"{self._run.state.time - order.timing.deadline:.3g} s"
        self._failures.lose(
            order, "late", f"its reply came {behind} after its deadline"
        )

    def _is_last(self) -> bool:
        """Return whether the run ends with what is handled now."""
        state, more = self._run.state, self._clock.has_event_now
        return self._stopping.is_over(state.updates, state.time, more_comes_now=more)
