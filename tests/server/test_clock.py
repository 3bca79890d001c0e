import math

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.clock import Arrival, VirtualClock, WallClock
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.server.state import RunState
from tests.grids import HandlerGrid, echo


def order(number, due=math.inf, deadline=math.inf, gives_up=None):
    limit = deadline if gives_up is None else gives_up
    return Order(
        number=number,
        device=number,
        node_id=1,
        rank=0,
        num_ranks=1,
        round=1,
        base_version=0,
        lr_factor=1.0,
        part=Part({}, {}, {}),
        cost=TaskCost(1.0, 0, 0),
        timing=Timing(0.0, due, deadline, limit),
    )


def send(box):
    return box.push(Message(RecordDict({"config": ConfigRecord()}), 1, "train"))


def setup(clock_type, patience=100.0, **kwargs):
    grid = HandlerGrid(echo, **kwargs)
    box = Mailbox(grid, timer=grid.timer, sleep=grid.sleep)
    if clock_type is WallClock:
        return grid, box, WallClock(box, grid.timer)
    return grid, box, VirtualClock(box, patience)


def by_id(**seconds):
    return lambda message: seconds[message.metadata.message_id]


def happened(clock, until=math.inf):
    """Return what happened, to which message, and when."""
    event = clock.next(until)
    kind = "gone" if event == Arrival(event.message_id, None) else type(event).__name__
    return kind, event.message_id, clock.now


@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=12))
def test_virtual_arrivals_come_by_due_time_and_then_by_number(dues):
    _, box, clock = setup(VirtualClock)
    for number, due in enumerate(dues):
        clock.add(send(box), order(number, due))
    arrivals = [(clock.next().message_id, clock.now) for _ in dues]
    expected = sorted(range(len(dues)), key=lambda number: (dues[number], number))
    assert arrivals == [(f"m{number}", dues[number]) for number in expected]


def test_virtual_time_does_not_depend_on_real_time():
    grid, box, clock = setup(VirtualClock, delay=by_id(m0=9.0, m1=1.0))
    clock.add(send(box), order(0, due=1.0))
    clock.add(send(box), order(1, due=2.0))
    assert clock.next().message_id == "m0"
    assert clock.now == 1.0
    assert grid.now >= 9.0


def test_virtual_clock_gives_up_on_a_reply_that_never_comes():
    grid, box, clock = setup(VirtualClock, patience=5.0)
    grid.handler = lambda message: None
    clock.add(send(box), order(0, due=1.0))
    assert happened(clock) == ("gone", "m0", 1.0)
    assert grid.now == pytest.approx(5.0, abs=0.3)


def test_virtual_time_goes_no_further_than_until():
    _, box, clock = setup(VirtualClock)
    clock.add(send(box), order(0, due=5.0))
    assert clock.next(until=3.0) is None
    assert clock.now == 3.0
    assert clock.next(until=5.0).message_id == "m0"
    assert clock.now == 5.0


def test_virtual_time_does_not_go_back():
    _, box, clock = setup(VirtualClock)
    clock.add(send(box), order(0, due=5.0))
    clock.add(send(box), order(1, due=5.0))
    assert clock.next().message_id == "m0"
    assert clock.next(until=3.0).message_id == "m1"
    assert clock.next(until=3.0) is None
    assert clock.now == 5.0


def test_virtual_time_goes_on_with_nothing_in_flight():
    _, _, clock = setup(VirtualClock)
    assert clock.next(until=7.5) is None
    assert clock.now == 7.5


def test_nobody_waits_for_what_gets_lost():
    grid, box, clock = setup(VirtualClock, patience=50.0)
    clock.add("lost-0", order(0, deadline=1.0))
    clock.add(send(box), order(1, due=2.0))
    assert happened(clock) == ("gone", "lost-0", 1.0)
    assert grid.now < 1
    assert happened(clock) == ("Arrival", "m0", 2.0)


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (3.0, [("Arrival", 3.0)]),
        (4.0, [("Arrival", 4.0)]),  # in time, if only just
        (6.0, [("Overdue", 4.0), ("Arrival", 6.0)]),
        (8.0, [("Overdue", 4.0), ("Arrival", 8.0)]),
        (9.0, [("Overdue", 4.0), ("gone", 8.0)]),
        (math.inf, [("Overdue", 4.0), ("gone", 8.0)]),
    ],
)
def test_virtual_deadlines_pass_before_what_arrives_after_them(due, expected):
    _, box, clock = setup(VirtualClock)
    clock.add(send(box), order(0, due, deadline=4.0, gives_up=8.0))
    events = [happened(clock) for _ in expected]
    assert [(kind, now) for kind, _, now in events] == expected
    with pytest.raises(IndexError):
        clock.next()


def test_wall_clock_takes_the_first_reply_whatever_the_deadlines():
    _, box, clock = setup(WallClock, delay=by_id(m0=9.0, m1=1.0))
    for number in range(2):
        clock.add(send(box), order(number, deadline=60.0))
    assert clock.next().message_id == "m1"
    assert 1.0 <= clock.now < 9.0
    assert clock.next().message_id == "m0"


def test_wall_clock_gives_up_the_task_that_is_due_and_keeps_the_others():
    grid, box, clock = setup(WallClock, delay=lambda m: 8.0)
    clock.add(send(box), order(0, deadline=5.0))
    grid.now = 4.0
    clock.add(send(box), order(1, deadline=20.0))
    kind, message_id, now = happened(clock)
    assert (kind, message_id) == ("gone", "m0")
    assert now == pytest.approx(5.0, abs=0.3)
    kind, message_id, now = happened(clock)
    assert (kind, message_id) == ("Arrival", "m1")
    assert now == pytest.approx(12.0, abs=0.3)


def test_wall_deadlines_pass_in_their_order_also_after_a_reply():
    _, box, clock = setup(WallClock, delay=lambda m: 0.5 if is_second(m) else 99.0)
    # As a heap has them, and no heap is left where the second one is taken out
    for number, deadline in enumerate((1.0, 2.0, 10.0, 3.0, 4.0, 11.0, 12.0)):
        clock.add(send(box), order(number, deadline=deadline))
    assert clock.next().message_id == "m1"
    gone = [happened(clock) for _ in range(6)]
    assert [name for _, name, _ in gone] == ["m0", "m3", "m4", "m2", "m5", "m6"]


def is_second(message):
    return message.metadata.message_id == "m1"


def test_wall_clock_waits_on_for_a_task_that_is_overdue():
    _, box, clock = setup(WallClock, delay=by_id(m0=6.0, m1=99.0))
    for number in range(2):
        clock.add(send(box), order(number, deadline=4.0, gives_up=8.0))
    events = [happened(clock) for _ in range(4)]
    assert [(kind, message_id) for kind, message_id, _ in events] == [
        ("Overdue", "m0"),
        ("Overdue", "m1"),
        ("Arrival", "m0"),
        ("gone", "m1"),
    ]
    assert [now for _, _, now in events] == pytest.approx([4, 4, 6, 8], abs=0.3)


def test_wall_clock_wakes_up_when_it_is_told_to():
    grid, box, clock = setup(WallClock, delay=lambda m: 30.0)
    assert clock.next(until=2.0) is None
    assert grid.now == pytest.approx(2.0, abs=0.3)
    clock.add(send(box), order(0, deadline=60.0))
    assert clock.next(until=10.0) is None
    assert grid.now == pytest.approx(10.0, abs=0.3)
    assert clock.next(until=99.0).message_id == "m0"


@pytest.mark.parametrize("clock_type", [VirtualClock, WallClock])
def test_nothing_out_and_nothing_to_wait_for_is_an_error(clock_type):
    _, _, clock = setup(clock_type)
    with pytest.raises(IndexError):
        clock.next()


def state_at(time, in_flight, late):
    state = RunState.start_from({"w": torch.zeros(1)}, seed=0)
    state.time, state.in_flight, state.late = time, in_flight, late
    return state


def test_a_virtual_clock_is_rebuilt_from_the_orders_that_are_out():
    orders = {
        "m0": order(0, due=20.0, deadline=12.0, gives_up=24.0),
        "m1": order(1, due=11.0, deadline=15.0, gives_up=30.0),
        "m2": order(2, due=13.0, deadline=5.0, gives_up=16.0),  # overdue by now
    }
    _, box, clock = setup(VirtualClock)
    for _ in orders:
        send(box)
    late = {"m2": orders.pop("m2")}
    clock.resume(state_at(10.0, orders, late))
    assert clock.now == 10.0
    assert [happened(clock) for _ in range(4)] == [
        ("Arrival", "m1", 11.0),
        ("Overdue", "m0", 12.0),
        ("Arrival", "m2", 13.0),
        ("Arrival", "m0", 20.0),
    ]


def test_a_wall_clock_goes_on_where_it_was():
    grid, box, clock = setup(WallClock, delay=lambda m: 99.0)
    grid.now = 50.0
    waiting = {send(box): order(0, deadline=1015.0)}
    clock.resume(state_at(1000.0, waiting, {}))
    assert clock.now == 1000.0
    kind, _, now = happened(clock)
    assert (kind, now) == ("gone", pytest.approx(1015.0, abs=0.3))
