"""Devices that wait for those of their own speed alone."""

import pytest
import torch

from flwr_asyncdrop import AsyncStrategy, wire
from flwr_asyncdrop.aggregation import Aggregator, Clipped
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.state_dict import to_plain
from tests.checkpoint.small_runs import client, run
from tests.checkpoint.test_resume import checkpoints
from tests.grids import HandlerGrid
from tests.runs import failing, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

ZEROS = {"w": torch.zeros(2)}


class Pairs(Aggregator):
    """Two of the faster half step together, and two of the slower half."""

    waits_for = 2

    def __init__(self):
        self.came, self.stepped = [0, 0], 0

    def merge(self, state, update):
        half = self.stepped = 2 * update.rank // update.num_ranks
        self.came[half] = (self.came[half] + 1) % 2
        if self.came[half]:
            return False
        for tensor in state.values():
            tensor += 1
        return True

    def flush(self, state):
        if not any(self.came):
            return False
        self.came = [0, 0]
        for tensor in state.values():
            tensor += 1
        return True

    def releases(self, rank, num_ranks):
        return 2 * rank // num_ranks == self.stepped

    def state_dict(self):
        return {"came": to_plain(self.came), "stepped": self.stepped}

    def load_state_dict(self, state):
        self.came, self.stepped = list(state["came"]), state["stepped"]


class Sent(Callback):
    def __init__(self):
        self.tasks, self.waiting = [], []

    def on_dispatch(self, state, order):
        self.tasks.append((state.time, order.device))

    def on_update(self, state, merged):
        self.waiting.append((state.time, [order.device for order in state.waiting]))


def fleet(count):
    return [DeviceProfile(seconds) for seconds in (1.0, 2.0, 5.0, 7.0)]


def started(aggregator, handle=plus_one, rounds=3, nodes=4):
    sent = Sent()
    strategy = AsyncStrategy(
        aggregator=aggregator,
        in_flight=4,
        fleet=fleet,
        fraction_evaluate=0.0,
        callbacks=[sent],
    )
    grid = HandlerGrid(handle, node_ids=range(1, nodes + 1))
    strategy.start(grid, record(ZEROS), num_rounds=rounds)
    return sent


@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: Clipped(own, 9.0)])
def test_a_step_lets_those_go_on_that_it_is_for(wrapped):
    sent = started(wrapped(Pairs()))
    # The fast ones have a task every 2 s, and the slow ones every 7 s.
    assert [task for task in sent.tasks if task[1] < 2] == [
        (time, device) for time in (0, 2, 4, 6) for device in (0, 1)
    ]
    assert [task for task in sent.tasks if task[1] > 1] == [
        (time, device) for time in (0, 7) for device in (2, 3)
    ]
    assert (5, [2, 0]) in sent.waiting
    assert (6, [2]) in sent.waiting


def test_by_default_all_go_on():
    class Together(Pairs):
        releases = Aggregator.releases

    sent = started(Together())
    # The one of 5 s goes on with the step of the fast ones at 6 s.
    assert (6, 2) in sent.tasks


def without(broken):
    """Return devices one of which always fails."""

    def handle(message):
        fails = message.content["config"]["partition-id"] == broken
        return failing(message) if fails else plus_one(message)

    return handle


@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: Clipped(own, 9.0)])
def test_a_tier_whose_devices_fail_steps_without_them_and_holds_nobody(wrapped):
    sent = started(wrapped(Pairs()), without(3), rounds=6)
    assert len(sent.waiting) == 24
    assert sum(device == 0 for _, device in sent.tasks) > 6
    # The third failure, at 21 s, begins a quarantine: nobody comes for the other one.
    assert [time for time, device in sent.tasks if device == 2][:2] == [0, 21]


def test_who_waits_for_a_task_that_is_still_out_is_not_let_go():
    sent = started(Pairs(), without(1), rounds=6)
    # In quarantine from 6 s on. That of 5 s waits for that of 7 s all the same, and
    # until then it may be the one that is waited for.
    assert [time for time, device in sent.tasks if device == 1][:3] == [0, 2, 4]
    assert [time for time, device in sent.tasks if device == 2][:2] == [0, 7]
    assert [time for time, device in sent.tasks if device == 0][:2] == [0, 7]


def test_one_that_does_not_say_is_refused():
    class Silent(Pairs):
        def releases(self, rank, num_ranks):
            pass

    says = "^releases of Silent returned None, no bool: return whether those of the r"
    with pytest.raises(ConfigError, match=says):
        started(Clipped(Silent(), 9.0))


def test_who_is_never_let_go_goes_on_when_all_wait():
    class Never(Pairs):
        def releases(self, rank, num_ranks):
            return False

    sent = started(Never())
    assert len(sent.waiting) == 12
    assert {device for _, device in sent.tasks[4:]} == {0, 1, 2, 3}


def test_a_run_resumes_with_those_that_wait(tmp_path):
    def handle(message):
        task = wire.read_task(message)
        return (
            failing(message)
            if task.partition_id == 1 and task.seed
            else client(message)
        )

    settings = {"aggregator": Pairs(), "handler": handle, "node_ids": range(1, 5)}
    whole = run(tmp_path, "asyncdrop", **settings)
    for checkpoint in checkpoints(tmp_path)[:0:-1]:
        assert run(tmp_path, "asyncdrop", resume=checkpoint, **settings) == whole
