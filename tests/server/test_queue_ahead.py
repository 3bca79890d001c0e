"""Tasks that wait on a device behind the one that it trains."""

import pytest

from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from tests.grids import HandlerGrid
from tests.runs import Run, failing, plus_one


class QueueGrid(HandlerGrid):
    """Devices that do one task after the other, each in its own time."""

    def __init__(self, seconds, handler=plus_one):
        super().__init__(handler, node_ids=seconds)
        self.seconds = seconds
        self.free_at = dict.fromkeys(seconds, 0.0)
        self.delay = self.until_done

    def until_done(self, message):
        node = message.metadata.dst_node_id
        self.free_at[node] = max(self.free_at[node], self.now) + self.seconds[node]
        return self.free_at[node] - self.now


def test_a_queue_of_one_worked_out_by_hand():
    """Alg. 1, W <- W/2 + W_i/2 with W_i = W + 1; a device of 2 s, another of 5 s.

    Each has two tasks from the start. Of its first task nothing waited; the second
    waited while the first was trained, and missed what was merged until then.

    ====  ======  ============  =========  ==================================
    time  device  trained from  staleness  of it queued
    ====  ======  ============  =========  ==================================
    2     0       version 0     0          0: it came first
    4     0       version 0     1          1: version 1 came as it began, at 2
    5     1       version 0     2          0: it came first
    6     0       version 1     2          1: sent at 2, begun at 4 with version 2
    8     0       version 2     2          2: sent at 4, begun at 6 with version 4
    ====  ======  ============  =========  ==================================
    """
    grid = QueueGrid({7: 2.0, 9: 5.0})
    run = Run(grid, in_flight=2, queue_ahead=1, rounds=4).go()
    merged = run.recorder.merged[:5]
    times = [round(time) for time in run.recorder.times[:5]]
    assert times == [2, 4, 5, 6, 8]
    assert [m.order.device for m in merged] == [0, 0, 1, 0, 0]
    assert [m.order.base_version for m in merged] == [0, 0, 0, 1, 2]
    assert [m.staleness for m in merged] == [0, 1, 2, 2, 2]
    assert [m.queued for m in merged] == [0, 1, 0, 1, 2]


def test_its_time_in_the_queue_does_not_make_a_device_slow():
    grid = QueueGrid({7: 20.0, 9: 50.0})
    run = Run(grid, in_flight=2, queue_ahead=2, rounds=6, patience=500.0).go()
    seconds = run.run.fleet.devices.seconds
    assert seconds == pytest.approx([20.0, 50.0], abs=0.5)


def test_a_queued_task_has_the_time_of_those_ahead_of_it_too():
    grid = QueueGrid({7: 20.0, 9: 20.0})
    run = Run(
        grid,
        in_flight=2,
        queue_ahead=1,
        rounds=6,
        patience=500.0,
        faults=FaultPolicy(deadline=2.0),
    ).go()
    late = run.recorder.orders[-1]
    # Expected 20 s, twice as it is second in its queue, and twice that is too late.
    assert late.timing.deadline - late.timing.dispatched_at == pytest.approx(
        80.0, abs=2.0
    )
    assert not any(merged.late for merged in run.recorder.merged)


def test_without_a_queue_a_device_has_one_task_and_nothing_is_queued():
    run = Run(QueueGrid({7: 2.0, 9: 5.0}), in_flight=2, rounds=4).go()
    assert [merged.queued for merged in run.recorder.merged] == [0] * 8


def test_devices_that_are_not_in_flight_get_the_tasks_instead_of_a_queue():
    grid = QueueGrid(dict.fromkeys(range(1, 7), 1.0))
    run = Run(grid, in_flight=2, queue_ahead=1, rounds=9).go()
    assert {m.order.device for m in run.recorder.merged} == set(range(6))
    assert [merged.queued for merged in run.recorder.merged] == [0] * 18


def test_a_failure_makes_way_for_the_next_of_the_queue():
    grid = QueueGrid({7: 2.0}, handler=lambda message: failing(message))
    grid.handler = lambda m: (
        failing(m) if m.metadata.message_id == "m0" else plus_one(m)
    )
    run = Run(grid, in_flight=1, queue_ahead=1, rounds=3).go()
    assert run.state.failures == {"client-error": 1}
    assert run.recorder.merged[0].queued == 0
    assert run.run.fleet.devices.seconds == pytest.approx([2.0], abs=0.3)


def test_simulated_devices_and_those_that_wait_for_each_other_have_no_queue():
    grid = HandlerGrid(plus_one)
    with pytest.raises(ConfigError, match="only real devices have a queue"):
        Run(grid, seconds=(1.0, 2.0, 3.0), queue_ahead=1).open()
    for size in (3, 2):
        waiting = {"build_aggregator": lambda _, size=size: Buffered(size, waits=True)}
        with pytest.raises(ConfigError, match="not wait for each other: set waits=Fa"):
            Run(grid, in_flight=3, queue_ahead=1, **waiting).open()
