import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.server.clock import VirtualClock, WallClock
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.state import Order
from flwr_asyncdrop.simulation.profiles import TaskCost
from tests.grids import HandlerGrid, echo


def order(number, due, **fields):
    return Order(
        number=number,
        device=number,
        node_id=1,
        rank=0,
        num_ranks=1,
        round=1,
        indices={},
        shapes={},
        base_version=0,
        dispatched_at=0.0,
        due=due,
        cost=TaskCost(1.0, 0, 0),
        **fields,
    )


def send(box):
    return box.push(Message(RecordDict({"config": ConfigRecord()}), 1, "train"))


def setup(clock_type, patience=100.0, **kwargs):
    grid = HandlerGrid(echo, **kwargs)
    box = Mailbox(grid, timer=grid.timer, sleep=grid.sleep)
    extra = {"timer": grid.timer} if clock_type is WallClock else {}
    return grid, box, clock_type(box, patience, **extra)


@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=12))
def test_virtual_arrivals_come_by_due_time_and_then_by_number(dues):
    _, box, clock = setup(VirtualClock)
    for number, due in enumerate(dues):
        clock.add(send(box), order(number, due))
    arrivals = [(clock.next().message_id, clock.now) for _ in dues]
    expected = sorted(range(len(dues)), key=lambda number: (dues[number], number))
    assert arrivals == [(f"m{number}", dues[number]) for number in expected]


def test_virtual_time_does_not_depend_on_real_time():
    grid, box, clock = setup(
        VirtualClock, delay=lambda m: {"m0": 9.0, "m1": 1.0}[m.metadata.message_id]
    )
    clock.add(send(box), order(0, due=1.0))
    clock.add(send(box), order(1, due=2.0))
    assert clock.next().message_id == "m0"
    assert clock.now == 1.0
    assert grid.now >= 9.0
    assert clock.due(4.0) == 5.0


def test_virtual_clock_gives_up_on_a_reply_that_never_comes():
    grid, box, clock = setup(VirtualClock, patience=5.0)
    grid.handler = lambda message: None
    clock.add(send(box), order(0, due=1.0))
    arrival = clock.next()
    assert arrival.message is None
    assert clock.now == 1.0


def test_virtual_time_goes_no_further_than_until():
    _, box, clock = setup(VirtualClock)
    clock.add(send(box), order(0, due=5.0))
    assert clock.next(until=3.0) is None
    assert clock.now == 3.0
    assert clock.next(until=5.0).message_id == "m0"
    assert clock.now == 5.0


def test_virtual_time_goes_on_with_nothing_in_flight():
    _, _, clock = setup(VirtualClock)
    assert clock.next(until=7.5) is None
    assert clock.now == 7.5


def test_nobody_waits_for_what_gets_lost():
    grid, box, clock = setup(VirtualClock, patience=50.0)
    clock.add("lost-0", order(0, due=1.0, lost=True))
    clock.add(send(box), order(1, due=2.0))
    arrival = clock.next()
    assert (arrival.message_id, arrival.message, clock.now) == ("lost-0", None, 1.0)
    assert grid.now < 1
    assert clock.next().message is not None


def test_wall_clock_takes_the_first_reply_whatever_the_durations():
    _, box, clock = setup(
        WallClock, delay=lambda m: {"m0": 9.0, "m1": 1.0}[m.metadata.message_id]
    )
    for number in range(2):
        clock.add(send(box), order(number, due=clock.due(0.0)))
    assert clock.next().message_id == "m1"
    assert 1.0 <= clock.now < 9.0
    assert clock.next().message_id == "m0"


def test_wall_clock_gives_up_the_task_that_is_due_and_keeps_the_others():
    grid, box, clock = setup(WallClock, patience=5.0, delay=lambda m: 8.0)
    clock.add(send(box), order(0, due=clock.due(0.0)))
    grid.now = 4.0
    clock.add(send(box), order(1, due=clock.due(0.0)))
    first = clock.next()
    assert (first.message_id, first.message) == ("m0", None)
    assert clock.now == pytest.approx(5.0, abs=0.3)
    second = clock.next()
    assert second.message_id == "m1"
    assert second.message is None


@pytest.mark.parametrize("clock_type", [VirtualClock, WallClock])
def test_nothing_in_flight_is_an_error(clock_type):
    _, _, clock = setup(clock_type)
    with pytest.raises(IndexError):
        clock.next()
