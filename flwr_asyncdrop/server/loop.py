"""The event loop: slots are filled, and every reply is merged on arrival."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

from flwr_asyncdrop.exceptions import GridLostError, Interrupted
from flwr_asyncdrop.server.arrivals import Arrivals
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.clock import Arrival, Clock, Overdue
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.failures import Failures
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.resends import Resends
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.sending import Sender
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule

logger = logging.getLogger("flwr.asyncdrop")

# Seconds of sending, where the grid is slow, before what has arrived is taken.
_LONGEST_FILL = 2.0


class AsyncLoop:
    """Keeps `StoppingRule.slots` devices training and merges each reply on arrival.

    An overdue task gives its slot to another device; `FaultPolicy` says what happens to
    its reply. The last tasks are not replaced, so that no device trains for nothing;
    late orders may outlive the run. `resumed`: the run begins with a saved state.
    """

    def __init__(
        self,
        run: Run,
        *,
        mailbox: Mailbox,
        clock: Clock,
        stopping: StoppingRule,
        evaluations: Evaluations,
        callbacks: Sequence[Callback] = (),
        nodes: Nodes,
        probe: CapabilityProbe,
        resumed: bool = False,
    ) -> None:
        self.state = run.state
        self._run = run
        run.on_step = self._tell_of_step
        self._dispatcher = run.dispatcher
        self._mailbox = mailbox
        self._clock = clock
        self._stopping = stopping
        self._evaluations = evaluations
        self._callbacks = callbacks
        self._nodes = nodes
        self._probe = probe
        self._resumed = resumed
        self._duplicates_before = run.state.duplicates
        self._failures = Failures(
            run, stopping, callbacks, lambda: self._refresh(self._nodes.ids())
        )
        self._resends = Resends(run, mailbox, clock)
        self._sender = Sender(
            run,
            mailbox=mailbox,
            clock=clock,
            stopping=stopping,
            failures=self._failures,
            callbacks=callbacks,
        )
        self._arrivals = Arrivals(
            run,
            clock=clock,
            stopping=stopping,
            failures=self._failures,
            resends=self._resends,
            dead_workers=mailbox.dead_workers,
            callbacks=callbacks,
        )

    def run(self) -> None:
        """Run to the end.

        When no device comes within the patience, nothing comes through the grid for as
        long, or only failures come in, the run ends early and ``state.ended`` says why;
        RunError if the global model has never changed by then. Interrupted if the
        mailbox or the nodes raise it while they wait.
        """
        last = [each.on_end for each in self._callbacks]
        try:
            self._run_until_lost()
        except Interrupted:
            # The evaluators still have what is pending.
            last = [each.on_interrupt for each in self._callbacks]
            raise
        finally:
            with ExitStack() as stack:
                stack.callback(self._mailbox.close)
                stack.callback(self._evaluations.close)
                self._tell_all(last)

    def _tell_all(self, hooks: Sequence[Callable[[RunState], None]]) -> None:
        """Call the last hooks of the callbacks in turn, whatever one of them raises."""
        with ExitStack() as stack:
            for hook in reversed(hooks):
                stack.callback(hook, self.state)

    def _tell_of_step(self, metrics: Mapping[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_step(self.state, metrics)

    def _run_until_lost(self) -> None:
        """Run to the end, or until nothing comes through the grid any more."""
        try:
            self.begin()
            while self.continues:
                for callback in self._callbacks:
                    callback.on_pause(self.state)
                self.step()
                self._evaluations.collect(self.state, finish=False)
            if self.state.time >= self._stopping.max_seconds:
                self._evaluations.submit_rest(self.state)
            self._evaluations.collect(self.state, finish=True)
        except GridLostError as error:
            self._failures.give_up("timeout", str(error))
            with suppress(GridLostError):
                self._evaluations.collect(self.state, finish=True)

    def begin(self) -> None:
        """Begin, or resume with the tasks that were out."""
        state = self.state
        if state.ended:
            state.ended = ""
            state.lost_in_a_row.clear()
        for callback in self._callbacks:
            callback.on_fleet(self._run.fleet)
        for callback in self._callbacks:
            (callback.on_resume if self._resumed else callback.on_start)(state)
        for callback in self._callbacks:
            callback.on_begin(state)
        if self._resumed:
            self._resume()
        else:
            self._evaluations.submit(state, 0)
        # By the clock of the run, which has been set by now.
        self._probe.note_joined()

    def _resume(self) -> None:
        """Begin again what was pending when the run stopped, at that time."""
        self._evaluations.resume(self.state)
        for order in self._resends.resume():
            self._failures.count(
                order, "interrupted", "the server stopped before it replied"
            )
        self._clock.resume(self.state)
        # It may have stopped at the end of a round, before the step of that moment.
        self._step_if_due()

    @property
    def continues(self) -> bool:
        """Whether the run is not over yet."""
        state = self.state
        return not state.ended and not self._stopping.is_over(
            state.updates, state.time, more_comes_now=self._clock.has_event_now
        )

    def step(self) -> None:
        """Fill the slots, wait for the next event, and handle it."""
        state = self.state
        self._probe.ask()
        self._probe.take_answers()
        until = self._fill()
        if not self.continues:
            return
        steps_at = self._run.aggregator.steps_at
        step_comes = bool(state.waiting) and steps_at < math.inf
        nothing_out = not (state.in_flight or state.late or step_comes)
        if nothing_out and self._dispatcher.next_return(state) == math.inf:
            self._wait_for_a_device()
            return
        longest = self._clock.now + self._clock.longest_wait
        until = min(until, self._probe.next_question, longest)
        event = self._clock.next(min(until, steps_at, self._stopping.max_seconds))
        state.time = self._clock.now
        state.duplicates = self._duplicates_before + self._mailbox.duplicates
        if isinstance(event, Arrival):
            round_over = self._arrivals.end(event)
            if round_over is not None:
                self._end_round(round_over)
        elif isinstance(event, Overdue):
            state.late[event.message_id] = state.in_flight.pop(event.message_id)
        elif self._clock.node_poll_interval < math.inf:
            self._refresh(self._nodes.ids())
        self._step_if_due()

    def _step_if_due(self) -> None:
        """Take a step by the time, after all that happens at this very moment."""
        if not self._clock.has_event_now:
            self._run.step_if_due()

    def _fill(self) -> float:
        """Dispatch until every slot is taken, or no more updates are needed.

        Return when to look for a device for a slot that is still free, on the loop's
        clock; infinity if none is free or no device will come. After about 2 real
        seconds, as of many slots or a slow grid, it is at once: what has arrived
        meanwhile comes first.
        """
        state, stopping = self.state, self._stopping
        until = self._clock.now + _LONGEST_FILL
        if state.time >= stopping.max_seconds:
            return math.inf
        left = stopping.num_updates - state.updates
        most = self._dispatcher.most_in_flight(stopping.slots)
        if len(state.waiting) >= most:
            self._run.stop_waiting()
        while len(state.in_flight) < min(most - len(state.waiting), left):
            if self._clock.now > until:
                return self._clock.now
            # Simulated time stands still while a push is tried again.
            seconds = 0.0 if self._run.simulated else self._mailbox.push_due_in
            if seconds > 0:
                return state.time + seconds
            if not self._sender.send_next():
                if self._run.stop_waiting():
                    continue
                return min(
                    self._dispatcher.next_return(state),
                    self._probe.next_look,
                    state.time + self._clock.node_poll_interval,
                )
            if state.ended:
                break
        return math.inf

    def _wait_for_a_device(self) -> None:
        state, stopping = self.state, self._stopping
        patience = seconds = stopping.patience
        if not self._run.simulated:  # else virtual time stands still meanwhile
            seconds = min(patience, stopping.max_seconds - self._clock.now)
        waiting = len(state.waiting)
        others = f" (devices that wait for its step: {waiting})" if waiting else ""
        logger.warning("no device can train: waiting %g s for one%s", seconds, others)
        found = self._nodes.watch(self._somebody_can_train, seconds)
        state.time = self._clock.now
        if not found and state.time < stopping.max_seconds:
            self._failures.give_up(
                "timeout",
                f"no device was there to train for {patience:g} s{others}: start "
                "SuperNodes, or raise the timeout",
            )

    def _somebody_can_train(self, node_ids: Iterable[int]) -> bool:
        self._refresh(node_ids)
        return self._dispatcher.next_return(self.state) < math.inf

    def _end_round(self, number: int) -> None:
        self._refresh(self._nodes.ids(recent=not self._run.simulated))
        for callback in self._callbacks:
            callback.on_round(self.state, number)
        if self._stopping.evaluates(number):
            self._evaluations.submit(self.state, number)

    def _refresh(self, node_ids: Iterable[int]) -> None:
        self._run.fleet.refresh(node_ids)
        self._probe.note_joined()
        self.state.num_devices = len(self._run.fleet)
