"""A signal that comes while the grid does not answer leaves the run as it was."""

import signal
from contextlib import contextmanager

import pytest

from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.mailbox import Mailbox
from tests.faulty import FaultyGrid
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one


class StuckGrid(HandlerGrid):
    """Its SuperLink is gone when it is asked for replies for the given time."""

    def __init__(self, looks):
        super().__init__(plus_one)
        self.looks = looks
        self.is_guarded = False

    @contextmanager
    def guard(self):
        self.is_guarded = True
        yield
        self.is_guarded = False

    def push_messages(self, messages):
        assert self.is_guarded
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        assert self.is_guarded
        self.looks -= 1
        if self.looks == 0:
            raise Interrupted(signal.SIGINT)
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("clock", [{}, {"seconds": (1.0, 2.0, 3.0)}])
@pytest.mark.parametrize("looks", [1, 2, 3])
def test_an_interrupted_look_for_replies_changes_nothing(looks, clock):
    grid = StuckGrid(looks)
    run = Run(grid, **clock)
    time = {"timer": grid.timer, "sleep": grid.sleep}
    run.mailbox = Mailbox(grid, **time, patiently=grid.guard)
    with pytest.raises(Interrupted):
        run.go()
    state = run.state
    assert state.dispatched == len(grid.pushed) == len(run.recorder.orders)
    assert state.dispatched == state.updates + len(state.in_flight)
    assert state.failures == {}
    assert run.recorder.ended == 0


class StuckNodes(HandlerGrid):
    """A signal comes while it is asked for nodes; the wait that follows raises it."""

    def __init__(self):
        super().__init__(plus_one)
        self.looks = 0

    def get_node_ids(self):
        self.looks += 1
        if self.looks == 3:
            raise Interrupted(signal.SIGINT)
        return super().get_node_ids()

    def check(self):
        if self.looks >= 3:
            raise Interrupted(signal.SIGINT)


@pytest.mark.parametrize("clock", [{}, {"seconds": (1.0, 2.0, 3.0)}])
def test_a_signal_during_a_look_for_nodes_ends_the_run_after_the_event(clock):
    grid = StuckNodes()
    run = Run(grid, **clock)
    time = {"timer": grid.timer, "sleep": grid.sleep}
    run.mailbox = Mailbox(grid, **time, check=grid.check)
    with pytest.raises(Interrupted):
        run.go()
    state, recorder = run.state, run.recorder
    assert state.updates % run.in_flight == 0
    assert [number for _, number in recorder.rounds][-1] == state.updates > 0
    assert state.dispatched == state.updates + len(state.in_flight)


@pytest.mark.parametrize("clock", [{}, {"seconds": (1.0, 2.0, 3.0)}])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_task_that_is_being_sent_when_a_signal_comes_is_in_flight(clock, number):
    def interrupt(name, at):
        asked = name == "push_messages" and at == number
        return Interrupted(signal.SIGTERM) if asked else None

    run = Run(HandlerGrid(plus_one), **clock)
    time = {"timer": run.grid.timer, "sleep": run.grid.sleep}
    run.mailbox = Mailbox(FaultyGrid(run.grid, interrupt), **time)
    with pytest.raises(Interrupted):
        run.go()
    state = run.state
    assert state.dispatched == state.updates + len(state.in_flight) == number + 1
    sent = sum(order.cost.bytes_down for order in run.recorder.orders)
    unsent = [o for o in state.in_flight.values() if o not in run.recorder.orders]
    assert [order.number for order in unsent] == [number]
    assert state.bytes_down == sent + unsent[0].cost.bytes_down


class ByTime(Buffered):
    """Steps every 2 s."""

    steps_at = 2.0

    def __init__(self):
        super().__init__(99, waits=False)

    def flush(self, state):
        self.steps_at += 2.0
        return super().flush(state)

    def state_dict(self):
        return {**super().state_dict(), "steps_at": self.steps_at}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.steps_at = state["steps_at"]


class Evaluator:
    """A signal comes while it begins with a round."""

    source, first_round, pending = "server", 1, ()

    def __init__(self, interrupted=0):
        self.interrupted = interrupted

    def submit(self, state, number):
        if number == self.interrupted:
            raise Interrupted(signal.SIGTERM)

    def collect(self, *, finish):
        return []

    def resume(self):
        pass

    def close(self):
        pass


def test_a_step_that_was_due_when_a_signal_came_is_taken_before_anything_is_sent():
    """At 2 s a round ends, is evaluated, and then the model changes."""

    def run(**more):
        return Run(
            HandlerGrid(plus_one, node_ids=[7, 9]),
            seconds=(1.0, 3.0),
            build_aggregator=lambda _: ByTime(),
            **more,
        )

    whole = run(evaluators=[Evaluator()]).go().recorder.history()
    first = run(evaluators=[Evaluator(interrupted=1)])
    with pytest.raises(Interrupted):
        first.go()
    assert first.state.time == 2.0
    rest = run(evaluators=[Evaluator()], saved=first.run.state_dict()).go()
    assert first.recorder.history() + rest.recorder.history() == whole
