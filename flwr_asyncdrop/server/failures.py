"""What a task that fails means for its device, and for the run."""

import logging
import math
from collections.abc import Callable, Sequence

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.callbacks import Callback, FailureKind
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.stopping import StoppingRule

logger = logging.getLogger("flwr.asyncdrop")


class Failures:
    """Counts the tasks that fail, and ends a run in which nothing else happens.

    From `fail` to `count`, each method does what the next one does, and more.
    `look_for_nodes` brings the fleet up to date.
    """

    def __init__(
        self,
        run: Run,
        stopping: StoppingRule,
        callbacks: Sequence[Callback],
        look_for_nodes: Callable[[], None],
    ) -> None:
        self._state = run.state
        self._tracker = run.dispatcher.tracker
        self._stopping = stopping
        self._callbacks = callbacks
        self._look_for_nodes = look_for_nodes

    def no_reply(self, order: Order) -> None:
        """Count a task without a reply; a simulated loss is no fault of the project."""
        timing, patience = order.timing, self._stopping.patience
        waited = timing.gives_up - timing.dispatched_at
        if timing.lost:
            self.lose(order, "dropout", "the simulated device dropped out")
        elif timing.due == math.inf:
            # It takes at least that long: the next deadline is a later one.
            self._tracker.took_longer(order, waited)
            self.fail(order, "no-reply", f"no reply within {waited:g} s")
        elif self._state.time < timing.due:
            self.lose(order, "no-reply", f"no reply within {waited:g} virtual s")
        else:
            self.fail(order, "no-reply", f"no reply within {patience:g} s")

    def fail(self, order: Order, kind: FailureKind, reason: str) -> None:
        """Count a failure; end the run when only failures come in."""
        state = self._state
        state.lost_in_a_row.append(order.device)
        # Most tasks are lost with their node: it must not get the next one.
        self._look_for_nodes()
        self.lose(order, kind, reason)
        lost = len(state.lost_in_a_row)
        changed = state.version > 0
        if lost >= self._stopping.most_failures(state.num_devices, changed=changed):
            self.give_up(
                "failures",
                f"the last {lost} tasks all failed, the last one on device "
                f"{order.device}: {reason}",
            )

    def lose(self, order: Order, kind: FailureKind, reason: str) -> None:
        """Count a task that is lost, and hold it against its device."""
        self._tracker.failed(self._state, order)
        self.count(order, kind, reason)

    def count(self, order: Order, kind: FailureKind, reason: str) -> None:
        """Count a task that is lost by no fault of its device."""
        failures = self._state.failures
        failures[kind] = failures.get(kind, 0) + 1
        for callback in self._callbacks:
            callback.on_failure(self._state, order, kind, reason)

    def give_up(self, word: str, reason: str) -> None:
        """End the run early, or with an error if the model has never changed."""
        if self._state.version == 0:
            raise RunError(reason) from None  # it has all that the reply said
        self._state.ended = word
        logger.error("the run ends early, with what it has so far: %s", reason)
