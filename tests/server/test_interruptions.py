"""A signal that comes while the grid does not answer leaves the run as it was."""

import signal
from contextlib import contextmanager

import pytest

from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.mailbox import Mailbox
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
        assert not self.is_guarded
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
