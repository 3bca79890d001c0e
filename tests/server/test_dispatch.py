import math
from dataclasses import replace

import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.schedule import StepDecay
from flwr_asyncdrop.seeding import derive_seed, numpy_generator
from flwr_asyncdrop.server.assignment import Part
from flwr_asyncdrop.server.dispatch import Dispatcher, TrainSettings
from flwr_asyncdrop.server.fleet import Fleet, Stratified
from flwr_asyncdrop.server.state import ServerState
from flwr_asyncdrop.simulation.availability import Availability
from flwr_asyncdrop.simulation.profiles import DeviceProfile
from tests.runs import KEYS


class Half:
    """Sends the first half of the weights, at a quarter of the cost."""

    def __init__(self):
        self.asked = []

    def assign(self, state, rank, num_ranks):
        self.asked.append((rank, num_ranks))
        indices = {"w": {0: torch.arange(2)}}
        return Part({"w": state.arrays["w"][:2]}, indices, {"w": (2,)}, compute=0.25)


def dispatcher(profiles=None, nodes=(30, 10), assignment=None, **changes):
    fleet = Fleet(len(nodes), profiles)
    fleet.refresh(nodes)
    settings = {"config": {"lr": 0.5}, "schedule": StepDecay((3,), 0.1), **changes}
    settings = TrainSettings(keys=KEYS, ttl=60, **settings)
    return Dispatcher(fleet, Stratified(), assignment or Half(), settings)


def run_state():
    return ServerState.start_from({"w": torch.arange(4.0)}, seed=5)


VIRTUAL = [DeviceProfile(2.0, 100.0, 100.0), DeviceProfile(4.0)]


def test_an_order_says_all_about_its_task():
    state = run_state()
    state.dispatched, state.version, state.time = 6, 4, 12.5
    order, message = dispatcher(VIRTUAL).next_task(state, 3)
    size = wire.array_bytes(message.content["arrays"])
    assert (order.number, order.round, order.base_version) == (6, 3, 4)
    assert (order.device, order.node_id) == (0, 10)
    assert (order.rank, order.num_ranks) == (0, 2)
    assert order.dispatched_at == 12.5
    assert order.shapes == {"w": (2,)}
    assert order.indices["w"][0].tolist() == [0, 1]
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


def test_the_duration_is_compute_and_transfer():
    sender = dispatcher(VIRTUAL)
    order, _ = sender.next_task(run_state(), 1)
    transfer = 2 * order.cost.bytes_down / 100.0
    assert sender.duration(run_state(), order) == 2.0 * 0.25 + transfer
    assert dispatcher().duration(run_state(), order) == 0.0


def test_jitter_is_drawn_from_the_seed_of_the_run_and_the_number_of_the_order():
    sender = dispatcher([DeviceProfile(2.0, jitter=0.5)] * 2)
    order, _ = sender.next_task(run_state(), 1)
    durations = [sender.duration(run_state(), replace(order, number=n)) for n in (0, 1)]
    noise = [numpy_generator(5, "jitter", n).standard_normal() for n in (0, 1)]
    # 2 s with a quarter of the compute.
    assert durations == [0.5 * math.exp(0.5 * z) for z in noise]
    assert durations[0] != durations[1]
    other = ServerState.start_from({"w": torch.zeros(4)}, seed=6)
    assert sender.duration(other, order) != durations[0]


def test_a_share_of_the_orders_gets_lost_wherever_time_is_simulated():
    sender, state = dispatcher([DeviceProfile(2.0, dropout=0.25)] * 2), run_state()
    lost = 0
    for number in range(400):
        state.dispatched = number
        assert not sender.next_task(state, 1)[0].lost
        lost += sender.next_task(state, 1, time=0.0)[0].lost
    assert 70 <= lost <= 130  # 100 are expected, with a deviation of 9
    assert not dispatcher().next_task(state, 1, time=0.0)[0].lost


def test_who_is_not_there_gets_no_task():
    away = DeviceProfile(1.0, availability=Availability(10.0, ((6.0, 10.0),)))
    sender, state = dispatcher([away, DeviceProfile(2.0)]), run_state()
    assert sender.next_task(state, 1, time=0.0)[0].device == 1
    assert sender.next_task(state, 1, time=6.0)[0].device == 0
    state.in_flight["m"] = sender.next_task(state, 1, time=0.0)[0]
    assert sender.next_task(state, 1, time=0.0) is None
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
    assert settings.config_at(3) == pytest.approx(expected)
    assert settings.config_at(2) == config
    assert settings.config == config
