import math
from dataclasses import replace

import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.selection import Stratified
from flwr_asyncdrop.seeding import derive_seed, numpy_generator
from flwr_asyncdrop.server.dispatch import Dispatcher, DispatchRules
from flwr_asyncdrop.server.order import Part
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.train_settings import TrainSettings
from tests.runs import KEYS


class Half:
    """Sends the first half of the weights, at a quarter of the cost."""

    def __init__(self):
        self.asked = []

    masks = None

    def part(self, state, rank, num_ranks, **_):
        self.asked.append((rank, num_ranks))
        indices = {"w": {0: torch.arange(2)}}
        return Part({"w": state.arrays["w"][:2]}, indices, {"w": (2,)}, compute=0.25)


def dispatcher(
    profiles=None, nodes=(30, 10), assignment=None, ttl=60, num_ranks=None, **faults
):
    fleet = Fleet(num_ranks or len(nodes), profiles)
    fleet.refresh(nodes)
    settings = TrainSettings({"lr": 0.5}, StepDecay((3,), 0.1), KEYS, ttl)
    rules = DispatchRules(
        Stratified(), assignment or Half(), settings, FaultPolicy(**faults)
    )
    return Dispatcher(fleet, rules)


def run_state():
    return RunState.start_from({"w": torch.arange(4.0)}, seed=5)


def at(time, state):
    state.time = time
    return state


VIRTUAL = [DeviceProfile(2.0, 100.0, 100.0), DeviceProfile(4.0)]


def test_an_order_says_all_about_its_task():
    state = run_state()
    state.dispatched, state.version, state.time = 6, 4, 12.5
    order, message = dispatcher(VIRTUAL).next_task(state, 3)
    size = wire.array_bytes(message.content["arrays"])
    assert (order.number, order.round, order.base_version) == (6, 3, 4)
    assert (order.device, order.node_id) == (0, 10)
    assert (order.rank, order.num_ranks) == (0, 2)
    assert order.timing.dispatched_at == 12.5
    assert order.part.shapes == {"w": (2,)}
    assert order.part.indices["w"][0].tolist() == [0, 1]
    assert (order.cost.compute, order.cost.bytes_down) == (0.25, size)
    assert wire.from_record(message.content["arrays"])["w"].tolist() == [0, 1]
    assert (message.metadata.dst_node_id, message.metadata.ttl) == (10, 60)
    assert (message.metadata.message_type, message.metadata.group_id) == ("train", "3")


def test_a_simulated_device_is_told_who_it_is_and_a_real_one_is_not():
    _, message = dispatcher(VIRTUAL).next_task(run_state(), 1)
    assert wire.read_task(message) == wire.TaskConfig(
        1, derive_seed(5, "task", 0, 0), partition_id=0, num_partitions=2
    )
    _, message = dispatcher().next_task(run_state(), 1)
    task = wire.read_task(message)
    assert (task.partition_id, task.num_partitions) == (None, None)


def test_a_simulated_task_arrives_after_compute_and_transfer():
    state = run_state()
    state.time = 10.0
    order, _ = dispatcher(VIRTUAL).next_task(at(10.0, state), 1)
    duration = 2.0 * 0.25 + 2 * order.cost.bytes_down / 100.0
    assert order.timing.due == 10.0 + duration
    # Three times as long as it should take, and twice that.
    assert (order.timing.deadline, order.timing.gives_up) == (
        10 + 3 * duration,
        10 + 6 * duration,
    )


def test_jitter_is_drawn_from_the_seed_of_the_run_and_the_number_of_the_order():
    sender, state = dispatcher([DeviceProfile(2.0, jitter=0.5)] * 2), run_state()

    def order(number, state=state):
        state.dispatched = number
        return sender.next_task(at(0.0, state), 1)[0].timing

    noise = [numpy_generator(5, "jitter", n).standard_normal() for n in (0, 1)]
    # 2 s with a quarter of the compute.
    assert [order(n).due for n in (0, 1)] == [0.5 * math.exp(0.5 * z) for z in noise]
    assert order(0).due != order(1).due
    assert order(0).deadline == order(1).deadline == 1.5
    other = RunState.start_from({"w": torch.zeros(4)}, seed=6)
    assert order(0, other).due != order(0).due


class TestDeadlinesOfRealDevices:
    def order(self, sender, seconds=None):
        if seconds is not None:
            for device in (0, 1):
                sender.fleet.observe(device, seconds, compute=1.0)
        state = run_state()
        state.time = 100.0
        order, message = sender.next_task(at(100.0, state), 1)
        return (
            order.timing.deadline - 100,
            order.timing.gives_up - 100,
            message.metadata.ttl,
        )

    def test_a_device_that_nobody_knows_has_the_timeout(self):
        assert self.order(dispatcher(ttl=3600)) == (3600, 3600, 3600)

    def test_one_that_is_known_has_three_times_as_long_as_its_last_tasks(self):
        # 80 s for the full model, 20 s for a quarter. Clocks may differ by ten minutes.
        limits = self.order(dispatcher(ttl=3600), seconds=80.0)
        assert limits == (60.0, 120.0, 720.0)

    def test_nobody_has_less_than_three_times_ten_seconds(self):
        assert self.order(dispatcher(ttl=3600), seconds=0.1) == (30.0, 60.0, 660.0)

    def test_nobody_has_longer_than_the_timeout(self):
        assert self.order(dispatcher(ttl=100), seconds=80.0) == (60.0, 100.0, 100.0)
        assert self.order(dispatcher(ttl=40), seconds=80.0) == (40.0, 40.0, 40.0)

    def test_without_deadlines_all_have_the_timeout(self):
        sender = dispatcher(ttl=3600, deadline=0)
        assert self.order(sender, seconds=80.0) == (3600, 3600, 3600)

    def test_a_task_that_was_given_up_makes_the_next_deadline_a_later_one(self):
        sender = dispatcher(ttl=3600)
        assert self.order(sender, seconds=80.0)[0] == 60.0
        order, _ = sender.next_task(at(0.0, run_state()), 1)
        sender.tracker.took_longer(
            order, 120.0
        )  # 480 s for the full model: 80 + 0.3 * 400
        assert sender.fleet.devices.expected(order.device, order.cost) == 200.0 / 4

    def test_of_a_device_that_nobody_knows_it_says_nothing(self):
        sender = dispatcher(ttl=3600)
        order, _ = sender.next_task(at(0.0, run_state()), 1)
        sender.tracker.took_longer(order, 3600.0)
        assert sender.fleet.devices.expected(order.device, order.cost) is None


@pytest.mark.parametrize(
    ("profiles", "released"),
    # Twice its 0.5 s for a quarter of the compute; ten seconds for a real device.
    [([DeviceProfile(2.0)] * 2, 7.0 + 1.0), (None, 7.0 + 20.0)],
)
def test_too_many_failures_in_a_row_bring_quarantine(profiles, released):
    sender, state = dispatcher(profiles, quarantine_after=2), run_state()
    state.time = 7.0
    order, _ = sender.next_task(at(7.0, state), 1)
    for _ in range(3):
        sender.tracker.failed(state, order)
    assert sender.fleet.readiness.quarantined_until == {order.device: released}
    sender.tracker.succeeded(order, Trip(6.0, 7.0, order.cost), report=None)
    assert sender.fleet.readiness.quarantined_until == {}
    sender.tracker.failed(state, order)
    assert sender.fleet.readiness.quarantined_until == {}


def test_a_share_of_the_orders_gets_lost_wherever_time_is_simulated():
    sender, state = dispatcher([DeviceProfile(2.0, dropout=0.25)] * 2), run_state()
    lost = 0
    for number in range(400):
        state.dispatched = number
        lost += sender.next_task(at(0.0, state), 1)[0].timing.lost
    assert 70 <= lost <= 130  # 100 are expected, with a deviation of 9
    assert not dispatcher().next_task(at(0.0, state), 1)[0].timing.lost


@pytest.mark.parametrize(("deadline", "shows_at"), [(3.0, 1.5), (0.0, 0.5)])
def test_a_lost_order_never_arrives_and_shows_when_it_is_overdue(deadline, shows_at):
    # 2 s with a quarter of the compute; without deadlines, when it would arrive.
    sender = dispatcher([DeviceProfile(2.0, dropout=0.99)] * 2, deadline=deadline)
    order, _ = sender.next_task(at(0.0, run_state()), 1)
    assert order.timing.lost
    assert (order.timing.due, order.timing.deadline, order.timing.gives_up) == (
        math.inf,
        shows_at,
        shows_at,
    )


def test_a_late_order_keeps_its_device_and_gives_its_rank_to_another():
    profiles = [DeviceProfile(s) for s in (1, 1, 2, 2)]
    sender = dispatcher(profiles, nodes=range(1, 5), num_ranks=2)
    state = run_state()
    first, _ = sender.next_task(at(0.0, state), 1)
    assert first.rank == 0
    state.late["m0"] = first
    second, _ = sender.next_task(at(0.0, state), 1)
    assert (second.rank, first.device != second.device) == (0, True)
    state.in_flight["m1"] = second
    assert sender.next_task(at(0.0, state), 1)[0].rank == 1


def test_an_order_is_sent_again_as_it_was():
    state = run_state()
    sender = dispatcher(VIRTUAL)
    order, message = sender.next_task(state, 1)
    state.fastest_updates = 3  # the schedule has gone on
    state.arrays["w"] += 1
    arrays = {"w": torch.tensor([0.0, 1.0])}
    kept = replace(order, part=replace(order.part, arrays=arrays))
    again = sender.message(state, kept)
    assert again.content == message.content
    assert again.metadata.ttl == message.metadata.ttl
    with pytest.raises(ConfigError, match="keeps what was sent"):
        sender.message(state, order)


def test_who_is_not_there_gets_no_task():
    away = DeviceProfile(1.0, availability=Availability(10.0, ((6.0, 10.0),)))
    sender, state = dispatcher([away, DeviceProfile(2.0)]), run_state()
    assert sender.next_task(at(0.0, state), 1)[0].device == 1
    assert sender.next_task(at(6.0, state), 1)[0].device == 0
    state.in_flight["m"] = sender.next_task(at(0.0, state), 1)[0]
    assert sender.next_task(at(0.0, state), 1) is None
    assert sender.next_return(state) == 6.0


def test_every_task_has_a_seed_of_its_own():
    sender, state, seeds = dispatcher(VIRTUAL), run_state(), set()
    for number in range(20):
        state.dispatched = number
        _, message = sender.next_task(state, 1)
        seeds.add(wire.read_task(message).seed)
    assert len(seeds) == 20


def test_no_device_gets_a_second_task():
    sender, state = dispatcher(VIRTUAL), run_state()
    devices = []
    for number in range(2):
        order, _ = sender.next_task(state, 1)
        state.in_flight[str(number)] = order
        devices.append(order.device)
    assert sorted(devices) == [0, 1]
    assert sender.next_task(state, 1) is None


def test_a_device_that_has_just_failed_comes_last():
    sender, state = dispatcher(VIRTUAL), run_state()
    assert sender.next_task(state, 1)[0].device == 0
    state.lost_in_a_row = [0]
    assert sender.next_task(state, 1)[0].device == 1
    state.lost_in_a_row = [0, 1]
    assert sender.next_task(state, 1)[0].device == 0


@pytest.mark.parametrize(
    ("config", "schedule", "warnings"),
    [
        ({"learning-rate": 0.5}, StepDecay((3,), 0.1), 1),
        ({"lr": "0.5"}, StepDecay((3,), 0.1), 1),
        ({"lr": 0.5}, StepDecay((3,), 0.1), 0),
        ({}, StepDecay(), 0),
    ],
)
def test_a_schedule_without_a_learning_rate_is_a_warning(
    config, schedule, warnings, caplog
):
    fleet = Fleet(2, VIRTUAL)
    fleet.refresh((30, 10))
    settings = TrainSettings(config, schedule, KEYS, ttl=60)
    rules = DispatchRules(Stratified(), Half(), settings, FaultPolicy())
    sends, state = Dispatcher(fleet, rules), run_state()
    for _ in range(2):
        sends.next_task(state, 1)
    assert caplog.text.count("the schedule changes nothing") == warnings


def test_the_assignment_hears_the_rank():
    half = Half()
    dispatcher(VIRTUAL, assignment=half).next_task(run_state(), 1)
    assert half.asked == [(0, 2)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.5, "epochs": 2}, {"lr": 0.05, "epochs": 2}),
        ({"lr": 1}, {"lr": 0.1}),
        ({"lr": "auto"}, {"lr": "auto"}),
        ({"epochs": 2}, {"epochs": 2}),
        ({}, {}),
    ],
)
def test_only_a_learning_rate_that_is_a_number_follows_the_schedule(config, expected):
    settings = TrainSettings(config, StepDecay((3,), 0.1), KEYS, ttl=60)
    assert settings.config_at(0.1) == pytest.approx(expected)
    assert settings.config_at(1.0) == config
    assert settings.config == config
