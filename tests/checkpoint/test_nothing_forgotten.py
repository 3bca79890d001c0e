"""Nothing that changes during a run can be forgotten in a checkpoint."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.frozen_delivery import FrozenDelivery
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import Frozen, UnitGroup
from flwr_asyncdrop.wire import Coding
from tests.states import saved_and_read

PART = Part(
    arrays={"w": torch.ones(2, 3)},
    indices={"w": {0: torch.tensor([0, 2])}},
    shapes={"w": (2, 3)},
    compute=0.5,
    work=0.25,
    masked=True,
    kept={UnitGroup("hidden", 3, "internal"): torch.tensor([0, 2])},
    extra={"controls": {"w": torch.ones(2)}},
    extra_names={"controls": ("w",)},
)
TIMING = Timing(dispatched_at=1.25, due=2.5, deadline=3.5, gives_up=4.5, lost=True)
ORDER = Order(
    number=7,
    device=3,
    node_id=1 << 62,
    rank=1,
    num_ranks=4,
    round=2,
    base_version=5,
    lr_factor=0.1,
    part=PART,
    cost=TaskCost(0.5, 100, 120),
    timing=TIMING,
    coding=Coding("q4", "top10%+q8", 5, 2**63 - 1, feedback=True),
    sent={"w": 2**64 - 1},
)
STATE = RunState(
    seed=9,
    arrays={"w": torch.ones(3, 3)},
    initial={"w": torch.zeros(3, 3)},
    num_devices=8,
    version=6,
    updates=12,
    dispatched=16,
    evaluated=8,
    fastest_updates=4,
    time=17.5,
    bytes_down=1000,
    bytes_up=900,
    joules=2.5,
    failures={"dropout": 2},
    lost_in_a_row=[3, 3],
    duplicates=1,
    in_flight={"message-1": ORDER},
    late={"message-2": replace(ORDER, number=8)},
    waiting=[replace(ORDER, number=9)],
    averaged={"w": torch.full((3, 3), 0.5)},
    ended="timeout",
    frozen=Frozen({"f": torch.ones(2)}, ("f", "w"), "12ab"),
)


def plain(value):
    """Return a value with its tensors as lists, to compare it."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value), plain(parts)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("value", [PART, TIMING, ORDER, STATE], ids=type)
def test_the_examples_leave_no_field_at_its_default(value):
    """A new field makes this fail until it is in the example, and so in the next."""
    required = [f for f in fields(value) if f.default is f.default_factory]
    bare = type(value)(**{f.name: getattr(value, f.name) for f in required})
    for field in fields(value):
        if field not in required:
            assert plain(getattr(value, field.name)) != plain(getattr(bare, field.name))


def test_every_field_of_the_books_is_saved():
    state = RunState.start_from({}, seed=0)
    state.load_state_dict(saved_and_read(STATE.state_dict()))
    assert plain(state) == plain(STATE)


def test_a_state_of_a_version_without_energy_is_read():
    saved = STATE.state_dict()
    del saved["joules"]
    state = RunState.start_from({}, seed=0)
    state.load_state_dict(saved)
    assert state.joules is None


def test_a_state_of_a_version_without_work_policies_is_read():
    saved = STATE.state_dict()
    orders = [*saved["in_flight"].values(), *saved["late"].values(), *saved["waiting"]]
    for order in orders:
        del order["part"]["work"]
    state = RunState.start_from({}, seed=0)
    state.load_state_dict(saved)
    assert {order.part.work for order in state.orders} == {None}
    assert len(state.orders) == 3


def test_all_that_a_fleet_knows_is_saved_or_derived():
    fleet = Fleet(4)
    known = vars(fleet) | vars(fleet.devices) | vars(fleet.readiness)
    derived = {"profiles", "devices", "speeds", "readiness", "_come_and_go"}
    derived |= {"_connected", "_seen", "_device_of", "_model_bytes"}
    derived |= {"_devices", "_speeds", "_filings", "_calendar"}
    # Who is being probed is asked again.
    derived |= {"probed_until"}
    assert known.keys() - derived == fleet.state_dict().keys()


def test_ranks_follow_from_what_else_a_fleet_knows():
    fleet, resumed = Fleet(2), Fleet(2)
    fleet.refresh([1, 2])
    fleet.observe(0, 5.0, compute=1.0)
    fleet.observe(1, 1.0, compute=1.0)
    resumed.refresh([1, 2])
    assert resumed.speeds.ranks.tolist() == [0, 1]
    resumed.load_state_dict(fleet.state_dict())
    assert resumed.speeds.ranks.tolist() == fleet.speeds.ranks.tolist() == [1, 0]


def test_all_that_a_delivery_knows_is_saved_or_derived():
    delivery = FrozenDelivery(unasked=True)
    # What the run says, what is made of the state, and a count for the log.
    derived = {"unasked", "simulated", "always", "_record", "_times"}
    saved = {f"_{name}" for name in delivery.state_dict()}
    assert set(vars(delivery)) - derived == saved


def test_a_state_of_an_earlier_version_has_nothing_frozen():
    saved = saved_and_read(replace(STATE, frozen=Frozen()).state_dict())
    del saved["frozen"]
    state = RunState.start_from({}, seed=0)
    state.load_state_dict(saved)
    assert plain(state) == plain(replace(STATE, frozen=Frozen()))


def merged(aggregator, state, ranks):
    """Merge updates that all differ; return the model after each."""
    models = []
    for rank in ranks:
        arrays = {"w": torch.arange(3) * 0.5 + rank}
        update = Update(
            arrays,
            {},
            1 + rank % 2,
            4 + rank,
            {"w": torch.ones(3)},
            rank=rank,
            num_ranks=5,
            lr_factor=1 / (1 + rank),
            capability=0.5,
        )
        aggregator.merge(state, update)
        models.append(state["w"].tolist())
    return models


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("before", range(6))
def test_an_aggregator_continues_from_its_state(name, momentum, before):
    kind = ALGORITHMS[name]
    known = {field.name for field in fields(kind)}
    options = {"server_momentum": momentum} if "server_momentum" in known else {}
    first, again = (kind(**options).clipped_aggregator(4) for _ in range(2))
    state = {"w": torch.zeros(3)}
    merged(first, state, [rank % 5 for rank in range(before)])
    again.load_state_dict(saved_and_read(first.state_dict()))
    copy = {"w": state["w"].clone()}
    later = [4, 1, 3, 0, 2, 2, 1, 4, 0]
    assert merged(again, copy, later) == merged(first, state, later)
