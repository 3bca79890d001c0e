"""A run that ends by the clock."""

import pytest

from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.strategy.named import AsyncFedAvg
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one


class Noting:
    """An evaluator that notes what it is asked for."""

    source, first_round, pending = "server", 1, ()

    def __init__(self):
        self.asked = []

    def submit(self, state, number):
        self.asked.append((number, state.updates))

    def collect(self, *, finish):
        return []

    def close(self):
        pass


@pytest.mark.parametrize(
    ("limit", "times", "asked"),
    [
        (2.4, [1.0, 2.0], [(1, 2)]),
        (2.5, [1.0, 2.0, 2.5], [(1, 2), (2, 3)]),
        (3.5, [1.0, 2.0, 2.5, 3.0], [(1, 2), (2, 4)]),
        (2.7, [1.0, 2.0, 2.5], [(1, 2), (2, 3)]),
        (0.5, [], []),
    ],
)
def test_it_ends_when_its_time_is_up_and_evaluates_what_it_has(limit, times, asked):
    """The run of test_loop that is worked out by hand, cut off."""
    evaluator = Noting()
    run = Run(
        HandlerGrid(plus_one, node_ids=[7, 9]),
        seconds=(1.0, 2.5),
        max_seconds=limit,
        evaluators=(evaluator,),
    ).go()
    assert run.recorder.times == times
    assert run.state.time == limit
    assert run.state.ended == ""
    assert evaluator.asked == asked


def test_all_that_happens_at_the_very_moment_counts():
    evaluator = Noting()
    run = Run(
        HandlerGrid(plus_one, node_ids=[7, 8, 9]),
        seconds=(1.0, 2.0, 2.0),
        in_flight=3,
        max_seconds=2.0,
        evaluators=(evaluator,),
    ).go()
    assert run.recorder.times == [1.0, 2.0, 2.0, 2.0]
    assert len(run.recorder.orders) == 4, "nothing is sent when the time is up"
    assert (run.state.time, run.state.in_flight) == (2.0, {})
    assert evaluator.asked == [(1, 3), (2, 4)]


def test_the_last_synchronous_round_is_done_if_the_time_is_that_of_whole_rounds():
    run = Run(
        HandlerGrid(plus_one, node_ids=[7, 8, 9]),
        seconds=(2.0, 2.0, 2.0),
        in_flight=3,
        max_seconds=4.0,
        build_aggregator=lambda cohort: Buffered(cohort, waits=True),
    ).go()
    assert (run.state.updates, run.state.version) == (6, 2)


def test_a_task_that_is_lost_at_the_very_moment_counts_too():
    run = Run(
        HandlerGrid(plus_one, node_ids=[7, 9]),
        profiles=(DeviceProfile(3.0), DeviceProfile(1.0, dropout=0.999)),
        faults=FaultPolicy(deadline=3.0, quarantine_after=1),
        max_seconds=3.0,
    ).go()
    assert run.recorder.times == [3.0]
    assert run.state.failures == {"dropout": 1}


def test_a_round_that_is_not_due_is_evaluated_if_it_is_the_last():
    evaluator = Noting()
    Run(
        HandlerGrid(plus_one, node_ids=[7, 9]),
        seconds=(1.0, 2.5),
        max_seconds=2.2,
        evaluate_every=2,
        evaluators=(evaluator,),
    ).go()
    assert evaluator.asked == [(1, 2)]


def test_real_time_is_up_too():
    grid = HandlerGrid(plus_one, node_ids=[1], delay=lambda message: 2.0)
    run = Run(grid, in_flight=1, rounds=99, max_seconds=7.0).go()
    assert run.state.updates == 3
    assert 7.0 <= run.state.time < 7.1


def test_it_changes_nothing_before():
    cut, whole = (
        Run(HandlerGrid(plus_one, node_ids=[7, 9]), seconds=(1.0, 2.5), **limit).go()
        for limit in ({"max_seconds": 3.0}, {})
    )
    history = whole.recorder.history()
    assert cut.recorder.history() == history[: cut.state.updates]


def test_a_limit_must_leave_time():
    with pytest.raises(ConfigError, match="max_seconds=0 must be more than 0"):
        AsyncFedAvg(max_seconds=0)
    assert StoppingRule(1, 1, 1, 1.0).max_seconds == float("inf")


def test_nobody_waits_for_a_device_beyond_it():
    def train(message):
        grid.node_ids = []
        return plus_one(message)

    evaluator = Noting()
    grid = HandlerGrid(train, node_ids=[1], delay=lambda message: 1.0)
    run = Run(grid, patience=30.0, max_seconds=7.0, evaluators=(evaluator,)).go()
    assert 7.0 <= run.state.time < 7.6
    assert (run.state.updates, run.state.ended) == (1, "")
    assert evaluator.asked == [(1, 1)]
