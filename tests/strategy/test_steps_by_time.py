"""Aggregators that step by the time, whatever has come."""

import math

import pytest
import torch
from flwr.app import ConfigRecord

from flwr_asyncdrop import AsyncStrategy, wire
from flwr_asyncdrop.aggregation import Aggregator, Clipped
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.server.callbacks import Callback
from tests.grids import HandlerGrid
from tests.runs import plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

ZEROS = {"w": torch.zeros(2)}


class Window(Aggregator):
    """Every `seconds`, the mean change of all that has come since."""

    needs_base = True

    def __init__(self, seconds, *, waits=False):
        self.seconds = self.steps_at = seconds
        self.waits_for = 2 if waits else 1
        self.changes = []

    def merge(self, state, update):
        self.changes.append(update.arrays["w"] - update.sent["w"])
        return False

    def flush(self, state):
        self.steps_at += self.seconds
        if self.changes:
            state["w"] += sum(self.changes) / len(self.changes)
        done, self.changes = bool(self.changes), []
        return done

    def state_dict(self):
        return {"steps_at": self.steps_at, "changes": list(self.changes)}

    def load_state_dict(self, state):
        self.steps_at, self.changes = state["steps_at"], list(state["changes"])


class Sent(Callback):
    """Notes when tasks leave, and with which version."""

    def __init__(self):
        self.tasks, self.merged = [], []

    def on_dispatch(self, state, order):
        self.tasks.append((state.time, order.device, order.base_version))

    def on_update(self, state, merged):
        self.merged.append((state.time, merged.order.device, state.version))


def fleet(count):
    return [DeviceProfile(1.0 + 2 * place) for place in range(count)]


def started(aggregator, rounds=4, **arguments):
    sent = Sent()
    strategy = AsyncStrategy(
        aggregator=aggregator,
        in_flight=2,
        fleet=fleet,
        fraction_evaluate=0.0,
        callbacks=[sent],
        **arguments,
    )
    grid = HandlerGrid(plus_one, node_ids=(1, 2))
    result = strategy.start(grid, record(ZEROS), num_rounds=rounds)
    return sent, wire.from_record(result.arrays)["w"].tolist()


def test_a_step_with_each_window():
    """Devices of 1 s and 3 s, and a step at 2.5 s and 5 s."""
    sent, weights = started(Window(2.5))
    assert sent.tasks == [
        *[(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0)],
        *[(3, 1, 1), (3, 0, 1), (4, 0, 1), (5, 0, 2)],
    ]
    assert weights == [2, 2]


def test_what_arrives_at_that_very_moment_counts():
    sent, _ = started(Window(1.0), rounds=2)
    # At 3 s both come; the last to come gets the model that both are in.
    assert sent.merged == [(1, 0, 0), (2, 0, 1), (3, 1, 2), (3, 0, 2)]
    assert sent.tasks[2:] == [(1, 0, 1), (2, 0, 2)]


def test_devices_wait_for_the_step():
    sent, weights = started(Window(4.0, waits=True), rounds=3)
    assert sent.tasks == [(4 * n, device, n) for n in range(3) for device in range(2)]
    assert weights == [2, 2]  # the last step was not due when the run was over


def test_a_window_in_which_nobody_comes():
    sent, _ = started(Window(0.5, waits=True), rounds=2)
    assert sent.tasks[:3] == [(0, 0, 0), (0, 1, 0), (1, 0, 1)]


def test_a_step_that_is_due_at_the_end_of_time_is_taken():
    _, weights = started(Window(2.5), max_seconds=2.5)
    assert weights == [1, 1]


def test_a_clipped_one_goes_on():
    window = Clipped(Window(2.5), 100.0)
    sent, weights = started(window)
    assert (sent.tasks, weights) == (started(Window(2.5))[0].tasks, [2, 2])


class Stopped(Window):
    def flush(self, state):
        return False


@pytest.mark.parametrize("kind", [Stopped, lambda s: Clipped(Stopped(s), 1.0)])
def test_one_that_does_not_say_when_the_next_step_is_is_refused(kind):
    with pytest.raises(
        ConfigError, match=r"of Stopped has left steps_at=2.0 at 2 s: se"
    ):
        started(kind(2.0))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, "soon"])
def test_a_time_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="steps_at of Window"):
        AsyncStrategy(aggregator=Window(value))


def test_rounds_without_a_clock_are_refused():
    strategy = AsyncStrategy(aggregator=Window(2.0), fleet=fleet)
    grid = HandlerGrid(plus_one, node_ids=(1, 2))
    with pytest.raises(ConfigError, match="steps by the time, and rounds that are"):
        strategy.configure_train(1, record(ZEROS), ConfigRecord(), grid)
