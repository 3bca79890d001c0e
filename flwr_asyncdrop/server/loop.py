"""The event loop: every reply is merged on arrival."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flwr_asyncdrop.exceptions import ReplyError, RunError
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.clock import Arrival, Clock
from flwr_asyncdrop.server.evaluation import Evaluator
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.session import Session
from flwr_asyncdrop.server.state import Order
from flwr_asyncdrop.wire import Reply

__all__ = ["AsyncLoop", "Limits"]

_FAILURES_PER_SLOT = 3


@dataclass(frozen=True)
class Limits:
    """How long the run is, and how wide.

    Attributes
    ----------
    num_rounds : int
        Rounds to run.
    updates_per_round : int
        Updates that make a round.
    slots : int
        Most tasks in flight at any moment.
    patience : float
        Real seconds to wait for a reply, and for nodes when none is left.
    evaluate_every : int
        Rounds from one evaluation to the next.
    """

    num_rounds: int
    updates_per_round: int
    slots: int
    patience: float
    evaluate_every: int = 1

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        return self.num_rounds * self.updates_per_round

    def round_of(self, update: int) -> int:
        """Return the round, from 1, that update number `update`, from 0, is in."""
        return update // self.updates_per_round + 1

    def evaluates(self, number: int) -> bool:
        """Return whether the model is evaluated after round `number`."""
        return number % self.evaluate_every == 0 or number == self.num_rounds


class AsyncLoop:
    """Keeps `Limits.slots` devices training and merges each reply on arrival.

    The last tasks are not replaced, so that no device trains for nothing and no task
    outlives the run.

    Parameters
    ----------
    session : Session
        The state of the run, and those who change it.
    mailbox : Mailbox
        The way to the devices.
    clock : Clock
        Says which task ends next.
    limits : Limits
        When to end.
    evaluators : sequence of Evaluator
        Run after every round, and before the first update if they start at round 0.
    callbacks : sequence of Callback
        Told of everything.
    nodes : Nodes
        Says which nodes are connected.
    """

    def __init__(
        self,
        session: Session,
        *,
        mailbox: Mailbox,
        clock: Clock,
        limits: Limits,
        evaluators: Sequence[Evaluator] = (),
        callbacks: Sequence[Callback] = (),
        nodes: Nodes,
    ) -> None:
        self.state = session.state
        self._session = session
        self._dispatcher = session.dispatcher
        self._mailbox = mailbox
        self._clock = clock
        self._limits = limits
        self._evaluators = evaluators
        self._callbacks = callbacks
        self._nodes = nodes

    def run(self) -> None:
        """Run to the end.

        Raises
        ------
        RunError
            If no node is left, or if every task fails.
        """
        try:
            for callback in self._callbacks:
                callback.on_start(self.state)
            self._evaluate(0)
            while self.state.updates < self._limits.num_updates:
                arrival = self._clock.next(until=self._fill())
                if arrival is not None:
                    self._handle(arrival)
                self._collect(finish=False)
            self._collect(finish=True)
        finally:
            for evaluator in self._evaluators:
                evaluator.close()
            for callback in self._callbacks:
                callback.on_end(self.state)

    def _fill(self) -> float:
        """Dispatch until every slot is taken, or no more updates are needed.

        Returns
        -------
        float
            When a device comes for a slot that is still free, in seconds on the
            clock; infinity if none is free or nobody comes.
        """
        state, limits = self.state, self._limits
        left = limits.num_updates - state.updates
        while len(state.in_flight) < min(limits.slots - len(state.waiting), left):
            if self._dispatch():
                continue
            returns_at = self._dispatcher.next_return(state)
            if state.in_flight or returns_at < math.inf:
                return returns_at
            self._wait_for_a_device()
        return math.inf

    def _dispatch(self) -> bool:
        """Send one task; return whether a device was idle."""
        state = self.state
        state.time = self._clock.now
        server_round = self._limits.round_of(state.updates)
        task = self._dispatcher.next_task(state, server_round, time=state.time)
        if task is None:
            return False
        order, message = task
        due = self._clock.due(self._dispatcher.duration(state, order))
        order = replace(order, due=due)
        state.dispatched += 1
        # Nobody needs to compute what never comes back.
        lost_id = f"lost-{order.number}" if order.lost else None
        message_id = lost_id or self._mailbox.push(message)
        if message_id is None:
            self._fail(order, "not-sent", "the grid did not take the message")
            return True
        state.in_flight[message_id] = order
        state.bytes_down += order.cost.bytes_down
        self._clock.add(message_id, order)
        for callback in self._callbacks:
            callback.on_dispatch(state, order)
        return True

    def _wait_for_a_device(self) -> None:
        fleet = self._dispatcher.fleet
        # With nothing in flight, whoever is connected waits for others' updates.
        waiting = len(fleet.idle(()))
        self._refresh(self._nodes.wait_for(waiting + 1, self._limits.patience))
        if len(fleet.idle(())) == waiting:
            raise RunError(
                "the nodes of the simulated fleet have gone, and those that are "
                "connected now are not among its devices: start the run again"
            )

    def _handle(self, arrival: Arrival) -> None:
        """End a task: merge its reply, or note why that cannot be done."""
        state = self.state
        state.time = self._clock.now
        order = state.in_flight.pop(arrival.message_id)
        if order.lost:
            self._lose(order, "dropout", "the simulated device dropped out")
            return
        if arrival.message is None:
            patience = self._limits.patience
            self._fail(order, "no-reply", f"no reply within {patience:g} s")
            return
        staleness = state.version - order.base_version
        try:
            reply = self._session.merge(order, arrival.message, staleness)
        except ReplyError as error:
            self._fail(order, error.kind, str(error))
            return
        self._merged(order, reply, staleness)

    def _merged(self, order: Order, reply: Reply, staleness: int) -> None:
        """Keep the books of an update, and end its round with it."""
        state = self.state
        state.bytes_up += reply.num_bytes
        state.lost_in_a_row.clear()
        elapsed = state.time - order.dispatched_at
        self._dispatcher.fleet.observe(order.device, elapsed, order.cost.compute)
        number = self._limits.round_of(state.updates - 1)
        for callback in self._callbacks:
            callback.on_update(state, Merged(order, reply, staleness, number))
        if state.updates % self._limits.updates_per_round == 0:
            self._end_round(number)

    def _end_round(self, number: int) -> None:
        self._refresh(self._nodes.ids())
        for callback in self._callbacks:
            callback.on_round(self.state, number)
        if self._limits.evaluates(number):
            self._evaluate(number)

    def _refresh(self, node_ids: Iterable[int]) -> None:
        fleet = self._dispatcher.fleet
        fleet.refresh(node_ids)
        self.state.num_devices = len(fleet)

    def _fail(self, order: Order, kind: str, reason: str) -> None:
        """Note a failure; end the run when nothing but failures comes in."""
        state = self.state
        state.lost_in_a_row.append(order.device)
        # A task is mostly lost with its node: do not send it the next one.
        self._refresh(self._nodes.ids())
        self._lose(order, kind, reason)
        lost = len(state.lost_in_a_row)
        if lost >= _FAILURES_PER_SLOT * self._limits.slots:
            raise RunError(
                f"the last {lost} tasks all failed, the last one on device "
                f"{order.device}: {reason}"
            )

    def _lose(self, order: Order, kind: str, reason: str) -> None:
        """Count a lost task."""
        state = self.state
        state.failures[kind] = state.failures.get(kind, 0) + 1
        for callback in self._callbacks:
            callback.on_failure(state, order, kind, reason)

    def _evaluate(self, number: int) -> None:
        for evaluator in self._evaluators:
            if number < evaluator.first_round:
                continue
            for callback in self._callbacks:
                callback.on_evaluation_due(self.state, evaluator.source, number)
            evaluator.submit(self.state, number)

    def _collect(self, *, finish: bool) -> None:
        for evaluator in self._evaluators:
            for evaluation in evaluator.collect(finish=finish):
                for callback in self._callbacks:
                    callback.on_evaluation(self.state, evaluation)
