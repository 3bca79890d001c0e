"""Simulated devices that jitter, drop out, come and go."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered, Mixing
from flwr_asyncdrop.fleet import Availability, DeviceProfile
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.strategy.driven import DrivenRun
from tests.grids import HandlerGrid
from tests.nightly import examples
from tests.runs import Run, answer, plus_one

ON_AND_OFF = Availability(10.0, ((0.0, 2.5),))


def run_of(*profiles, grid=None, **kwargs):
    grid = grid or HandlerGrid(plus_one, node_ids=range(1, len(profiles) + 1))
    return Run(grid, profiles=profiles, in_flight=len(profiles), **kwargs)


def orders_of(run):
    return [
        (o.device, o.timing.dispatched_at, o.timing.due) for o in run.recorder.orders
    ]


def test_a_device_that_leaves_finishes_its_task_and_gets_the_next_when_it_is_back():
    # It is there from 0 to 2.5 s and from 10 to 12.5 s.
    run = run_of(DeviceProfile(1.0, availability=ON_AND_OFF), rounds=5).go()
    assert run.recorder.times == [1.0, 2.0, 3.0, 11.0, 12.0]


def test_a_slot_is_taken_the_moment_that_a_device_comes_back():
    """One device is always there and takes 4 s, the other takes 3 s and goes.

    ====  ===========================  ===========================================
    time  event                        sent
    ====  ===========================  ===========================================
    0     both are there               0 until 4, 1 until 3
    3     update of 1, which has gone  nobody: 0 is busy
    4     update of 0                  0 until 8
    8     update of 0                  0 until 12
    10    1 is back                    1 until 13: the slot was free
    12    update of 0                  0 until 16, there are 2 left and 1 flying
    13    update of 1                  nobody: 1 left, 1 flying
    16    update of 0                  the last of 6
    ====  ===========================  ===========================================
    """
    steady, guest = DeviceProfile(4.0), DeviceProfile(3.0, availability=ON_AND_OFF)
    run = run_of(steady, guest, rounds=3).go()
    assert orders_of(run) == [
        *((1, 0.0, 3.0), (0, 0.0, 4.0)),
        *((0, 4.0, 8.0), (0, 8.0, 12.0)),
        *((1, 10.0, 13.0), (0, 12.0, 16.0)),
    ]
    assert run.recorder.times == [3.0, 4.0, 8.0, 12.0, 13.0, 16.0]


def test_an_arrival_at_the_moment_of_a_return_comes_first():
    # Device 0 arrives at 10, when device 1 comes: the update counts before the order.
    steady = DeviceProfile(10.0)
    guest = DeviceProfile(1.0, availability=Availability(20.0, ((10.0, 20.0),)))
    run = run_of(steady, guest, rounds=2).go()
    back = next(order for order in run.recorder.orders if order.device == 1)
    assert (back.timing.dispatched_at, back.base_version) == (10.0, 1)


def test_with_nobody_there_the_clock_goes_to_who_comes_first():
    late = Availability(100.0, ((70.0, 80.0),))
    later = Availability(100.0, ((90.0, 100.0),))
    run = run_of(
        DeviceProfile(1.0, availability=later),
        DeviceProfile(30.0, availability=late),
        rounds=1,
    ).go()
    assert orders_of(run) == [(1, 70.0, 100.0), (0, 90.0, 91.0)]
    assert run.recorder.times == [91.0, 100.0]


def lost(seed, number, dropout):
    return numpy_generator(seed, "dropout", number).random() < dropout


@pytest.mark.parametrize(("deadline", "notices_after"), [(0.0, 2.0), (3.0, 6.0)])
def test_a_lost_task_costs_its_time_and_its_bytes_down(deadline, notices_after):
    faults = FaultPolicy(deadline, quarantine_after=0)
    device = DeviceProfile(2.0, dropout=0.5)
    run = run_of(device, rounds=6, seed=1, faults=faults).go()
    fates = []
    while fates.count(False) < 6:
        fates.append(lost(1, len(fates), 0.5))
    assert True in fates
    state = run.state
    assert state.dispatched == len(fates)
    assert state.failures == {"dropout": fates.count(True)}
    reason = "the simulated device dropped out"
    assert run.recorder.failures[0] == (0, "dropout", reason)
    ends = list(accumulate(notices_after if gone else 2.0 for gone in fates))
    assert run.recorder.times == [
        end for end, gone in zip(ends, fates, strict=True) if not gone
    ]
    size = run.recorder.orders[0].cost.bytes_down
    assert state.bytes_down == len(fates) * size
    assert state.bytes_up == 6 * size


def test_nobody_computes_what_gets_lost():
    grid = HandlerGrid(plus_one, node_ids=[1])
    run = run_of(DeviceProfile(2.0, dropout=0.7), grid=grid, rounds=4).go()
    assert run.state.failures["dropout"] >= 1
    assert len(grid.pushed) == 4


def test_a_row_of_dropouts_is_bad_luck_and_not_the_end_of_the_run():
    run = run_of(DeviceProfile(1.0, dropout=0.95), rounds=3).go()
    assert run.state.updates == 3
    assert run.state.failures["dropout"] > 3 * run.run.slots
    assert run.state.lost_in_a_row == []


@dataclass
class Task:
    """A task of the reference."""

    device: int
    sent: float
    lost: bool
    arrives: float
    deadline: float
    gives_up: float
    overdue: bool = False

    @property
    def moment(self):
        return min(self.arrives, self.gives_up if self.overdue else self.deadline)


def reference(profiles, updates, seed, faults):
    """Return the orders, and how and when they ended, written down naively.

    As many slots as devices, each of its own rank: whoever is there is sent out.
    """

    def there(device, time):
        pattern = profiles[device].availability
        return pattern is None or any(
            start <= time % pattern.period < end for start, end in pattern.intervals
        )

    def starts(device, time):
        pattern = profiles[device].availability
        cycles = range(int(time / pattern.period) + 3) if pattern else ()
        begins = [start for start, _ in pattern.intervals] if pattern else ()
        moments = [k * pattern.period + start for k in cycles for start in begins]
        return [moment for moment in (*moments, released[device]) if moment > time]

    def task(number, device):
        profile = profiles[device]
        noise = numpy_generator(seed, "jitter", number).standard_normal()
        usual = profile.seconds_per_task
        arrives = now + usual * math.exp(profile.jitter * noise)
        overdue = faults.deadline * usual or math.inf
        if lost(seed, number, profile.dropout):
            shows = now + overdue if faults.deadline else arrives
            return Task(device, now, True, math.inf, shows, shows)
        return Task(device, now, False, arrives, now + overdue, now + 2 * overdue)

    speeds = sorted(range(len(profiles)), key=lambda d: profiles[d].seconds_per_task)
    failures, released = Counter(), Counter()
    now, merged, orders, out, ends = 0.0, 0, [], [], []
    while merged < updates:
        for device in speeds:
            room = sum(not task.overdue for task in out) < updates - merged
            free = device not in {task.device for task in out}
            if room and free and there(device, now) and released[device] <= now:
                out.append(task(len(orders), device))
                orders.append(out[-1])
        room = sum(not task.overdue for task in out) < updates - merged
        idle = set(speeds) - {task.device for task in out} if room else set()
        wakes = [moment for device in idle for moment in starts(device, now)]
        now = min(wakes + [task.moment for task in out])
        due = [task for task in out if task.moment == now]
        if not due:
            continue
        ended = due[0]
        if now < min(ended.arrives, ended.gives_up):
            ended.overdue = True
            continue
        out.remove(ended)
        kind = "dropout" if ended.lost else "no-reply"
        if now == ended.arrives:
            drops = ended.overdue and faults.late == "drop"
            kind = "late" if drops else "merged"
        ends.append((now, ended.device, kind))
        failures[ended.device] += 1
        if kind == "merged":
            merged += 1
            failures[ended.device] = released[ended.device] = 0
        elif (beyond := failures[ended.device] - faults.quarantine_after) >= 0:
            usual = profiles[ended.device].seconds_per_task
            pause = 2 ** min(beyond, 6) * usual if faults.quarantine_after else 0
            released[ended.device] = now + pause
    return [(task.device, task.sent, task.lost) for task in orders], ends


FLEET = (
    DeviceProfile(3.0, jitter=0.5, availability=Availability(16.0, ((4.0, 9.0),))),
    DeviceProfile(1.0, jitter=0.25, dropout=0.3),
    DeviceProfile(2.0, dropout=0.5, availability=Availability(8.0, ((0.0, 4.0),))),
    DeviceProfile(
        1.5, jitter=1.0, availability=Availability(64.0, ((0.0, 8.0), (40.0, 64.0)))
    ),
)


TOLERANCES = (
    FaultPolicy(),
    FaultPolicy(deadline=0, quarantine_after=0),
    FaultPolicy(deadline=1.5, late="drop", quarantine_after=2),
    FaultPolicy(deadline=1, late="merge", quarantine_after=1),
)


@pytest.mark.parametrize("faults", TOLERANCES)
@pytest.mark.parametrize("seed", range(4))
def test_the_loop_equals_the_naive_fleet(seed, faults):
    run = run_of(*FLEET, rounds=15, seed=seed, faults=faults).go()
    orders, ends = reference(FLEET, 60, seed, faults)
    made = [
        (o.device, o.timing.dispatched_at, o.timing.lost) for o in run.recorder.orders
    ]
    assert made == orders
    assert run.recorder.ends == ends
    assert run.state.failures["dropout"] > 3
    out = len(run.state.in_flight) + len(run.state.late)
    assert len(orders) == len(ends) + out
    kinds = Counter(kind for _, _, kind in ends)
    assert kinds.pop("merged") == 60
    assert kinds == run.state.failures


def virtual_run(delays, seed=0):
    """A run whose training depends on the task's seed, over any real delays."""

    def train(message):
        shift = message.content["config"]["asyncdrop-seed"] % 1000 / 1000
        arrays = message.content["arrays"]["w"].numpy()
        return answer(message, {"w": torch.from_numpy(arrays) * 0.9 + shift})

    grid = HandlerGrid(
        train,
        node_ids=range(10, 14),
        delay=lambda message: delays[int(message.metadata.message_id[1:]) % 12],
    )
    run = run_of(*FLEET, grid=grid, rounds=4, seed=seed).go()
    return run.recorder.history(), run.recorder.failures, run.state.time


@settings(max_examples=15)
@given(st.lists(st.floats(0, 50), min_size=12, max_size=12))
def test_the_history_depends_on_the_seed_and_not_on_real_delays(delays):
    assert virtual_run(delays) == virtual_run([0.0] * 12)


def test_another_seed_is_another_history():
    assert virtual_run([0.0] * 12, seed=1) != virtual_run([0.0] * 12)


@st.composite
def devices(draw):
    availability = None
    if draw(st.booleans()):
        share, phase = draw(st.floats(0.05, 0.95)), draw(st.floats(0, 0.99))
        availability = Availability.from_share(share, draw(st.floats(0.5, 90)), phase)
    return DeviceProfile(
        draw(st.floats(0.01, 50)),
        latency=draw(st.sampled_from([0.0, 0.5])),
        jitter=draw(st.sampled_from([0.0, 0.3, 2.0])),
        dropout=draw(st.sampled_from([0.0, 0.2, 0.8])),
        availability=availability,
    )


@settings(max_examples=examples(80))
@given(
    fleet=st.lists(devices(), min_size=1, max_size=6),
    in_flight=st.integers(1, 7),
    waits=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_fleet_comes_to_the_end_and_time_never_goes_back(
    fleet, in_flight, waits, seed
):
    grid = HandlerGrid(plus_one, node_ids=range(len(fleet)))
    run = Run(
        grid,
        profiles=tuple(fleet),
        in_flight=in_flight,
        rounds=4,
        seed=seed,
        build_aggregator=lambda n: Buffered(n, waits=True) if waits else Mixing(0.5),
    ).go()  # the recorder checks slots and devices at every dispatch
    state, orders = run.state, run.recorder.orders
    assert state.updates == len(run.recorder.merged) == 4 * min(in_flight, len(fleet))
    assert state.version == (4 if waits else state.updates)
    assert run.recorder.times == sorted(run.recorder.times)
    sent = [order.timing.dispatched_at for order in orders]
    assert sent == sorted(sent)
    for order in orders:
        pattern = fleet[order.device].availability
        assert order.timing.due > order.timing.dispatched_at
        assert pattern is None or pattern.earliest(order.timing.dispatched_at) == (
            order.timing.dispatched_at
        )
    out = [*state.in_flight.values(), *state.late.values()]
    assert len(orders) == state.updates + sum(state.failures.values()) + len(out)
    gone = [order for order in orders if order.timing.lost]
    assert len(gone) == state.failures.get("dropout", 0) + sum(
        o.timing.lost for o in out
    )
    assert len(grid.pushed) == len(orders) - len(gone)
    assert state.bytes_down == sum(order.cost.bytes_down for order in orders)


def test_flowers_own_rounds_know_no_time_and_find_everybody_there_and_reliable():
    gone = Availability(10.0, ((9.0, 10.0),))
    session = run_of(
        *(DeviceProfile(1.0, dropout=0.9, availability=gone) for _ in range(3))
    ).open()
    messages = DrivenRun(session).train(1)
    assert len(messages) == 3
    assert not any(order.timing.lost for order in session.state.in_flight.values())
    assert wire.read_task(messages[0]).num_partitions == 3
