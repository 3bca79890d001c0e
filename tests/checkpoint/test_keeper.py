"""Nothing that changes during a run can be forgotten in a checkpoint."""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from flwr_asyncdrop.algorithms.hyperparameters import Hyperparameters

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.aggregation.buffered import Collected
from flwr_asyncdrop.aggregation.latest_per_group import Latest
from flwr_asyncdrop.algorithms.registry import ALGORITHMS
from flwr_asyncdrop.checkpoint import keeper, newest
from flwr_asyncdrop.checkpoint.codec import decode, encode
from flwr_asyncdrop.checkpoint.files import all_checkpoints
from flwr_asyncdrop.fleet.fleet import Fleet, FleetMemory
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.history import HistoryMemory
from flwr_asyncdrop.observers.results import ResultsMemory
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluation import UnderWay
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.run import RunMemory
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import UnitGroup
from tests.checkpoint.small_runs import run

pytestmark = pytest.mark.usefixtures("no_settling")

ORDER = Order(
    number=7,
    device=3,
    node_id=1 << 62,
    rank=1,
    num_ranks=4,
    round=2,
    indices={"w": {0: torch.tensor([0, 2])}},
    shapes={"w": (2, 3)},
    base_version=5,
    dispatched_at=1.25,
    due=2.5,
    cost=TaskCost(0.5, 100, 120),
    lr_factor=0.1,
    masked=True,
    deadline=3.5,
    gives_up=4.5,
    lost=True,
    kept={UnitGroup("hidden", 3, "internal"): torch.tensor([0, 2])},
    base={"w": torch.ones(2, 3)},
)
STATE = RunState(
    seed=9,
    arrays={"w": torch.ones(3, 3)},
    initial={"w": torch.zeros(3, 3)},
    num_devices=8,
    version=6,
    updates=12,
    dispatched=16,
    fastest_updates=4,
    time=17.5,
    bytes_down=1000,
    bytes_up=900,
    failures={"dropout": 2},
    lost_in_a_row=[3, 3],
    duplicates=1,
    in_flight={"message-1": ORDER},
    late={"message-2": replace(ORDER, number=8)},
    waiting=[replace(ORDER, number=9)],
    averaged={"w": torch.full((3, 3), 0.5)},
    ended="timeout",
)


SAVED = {bool, int, float, str, NoneType, Any, Literal, torch.Tensor, ...}
SAVED |= {MetricRecord, RecordDict}
CONTAINERS = {dict, Mapping, list, Sequence, tuple, UnionType}


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


@pytest.mark.parametrize("value", [ORDER, STATE])
def test_the_examples_leave_no_field_at_its_default(value):
    """A new field makes this fail until it is in the example, and so in the next."""
    for field in fields(value):
        required = [f for f in fields(value) if f.default is f.default_factory]
        bare = type(value)(**{f.name: getattr(value, f.name) for f in required})
        if field not in required:
            assert plain(getattr(value, field.name)) != plain(getattr(bare, field.name))


@pytest.mark.parametrize("value", [ORDER, STATE])
def test_every_field_of_the_books_is_saved(value):
    tensors = {}
    written = encode(value, type(value), "state", tensors)
    assert written.keys() == {field.name for field in fields(value)}
    assert plain(decode(written, type(value), tensors)) == plain(value)


@pytest.mark.parametrize(
    "kind",
    [
        RunState,
        RunMemory,
        HistoryMemory,
        ResultsMemory,
        UnderWay,
        Collected,
        Latest,
    ],
)
def test_every_field_is_of_a_kind_that_can_be_saved(kind):
    """Also one that is empty in the runs of all other tests."""
    assert leaves(kind) <= SAVED


def leaves(kind):
    """Return the kinds that a kind is made of in the end."""
    if isinstance(kind, type) and is_dataclass(kind):
        return set().union(*map(leaves, get_type_hints(kind).values()))
    if get_origin(kind) is Literal:
        return {Literal}
    if arguments := get_args(kind):
        assert get_origin(kind) in CONTAINERS
        return set().union(*map(leaves, arguments))
    return {kind}


def test_all_that_a_fleet_knows_is_saved_or_derived():
    derived = {"num_ranks", "profiles", "_present", "_ranks", "_slowness"}
    derived |= {"_come_and_go", "model_bytes"}
    known = set(vars(Fleet(4))) - derived
    assert known == {field.name for field in fields(FleetMemory)}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_an_aggregator_changes_nothing_but_its_memory(algorithm):
    rules, state = ALGORITHMS[algorithm], {"w": torch.zeros(3)}
    momentum = {"server_momentum": 0.5} if "server_momentum" in rules.uses else {}
    aggregator = rules.build_aggregator(Hyperparameters(**momentum), 4)

    def others():
        known = {**vars(aggregator), "memory": None}
        step = known.pop("_server_step", None)
        return {**known, "step": copy.deepcopy(vars(step)) if step else None}

    before = others()
    for rank in range(5):
        arrays, base = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
        update = Update(arrays, {}, 1, 4, base, rank=rank, num_ranks=5)
        aggregator.merge(state, update)
        assert others() == before


def test_the_loop_waits_for_the_disk_only_before_the_next_checkpoint(
    tmp_path, monkeypatch
):
    go_on, begun, merged = threading.Event(), [], []
    write = keeper.write

    def slow(*arguments):
        begun.append(len(merged))
        assert go_on.wait(30)
        return write(*arguments)

    class Merged(Callback):
        def on_update(self, state, _):
            merged.append(state.updates)
            if state.updates == 3:
                go_on.set()

    monkeypatch.setattr(keeper, "write", slow)
    run(tmp_path, "async-fedavg", callbacks=[Merged()])
    assert begun[0] < 3
    assert len(merged) == 16


def test_what_is_saved_is_what_was_there_when_it_was_saved(tmp_path, monkeypatch):
    """The thread that writes comes late, when the model is another already."""
    weights, write, later = {}, keeper.write, threading.Event()

    class Weights(Callback):
        def on_pause(self, state):
            weights[state.updates] = copy.deepcopy(state.arrays)
            if state.updates % 4 == 3 or state.updates == 15:
                later.set()

    def patient(*arguments):
        assert later.wait(30)
        later.clear()
        return write(*arguments)

    monkeypatch.setattr(keeper, "write", patient)
    run(tmp_path, "async-fedavg", callbacks=[Weights()])
    saved = [newest(path) for path in all_checkpoints(tmp_path / "checkpoints")]
    assert [checkpoint.updates for checkpoint in saved] == [12, 8, 4, 0]
    for checkpoint in saved:
        state = checkpoint.part("state", RunState)
        assert plain(state.arrays) == plain(weights[checkpoint.updates])


def test_checkpoints_come_as_often_as_asked(tmp_path):
    run(tmp_path, "async-fedavg", every=2)
    saved = all_checkpoints(tmp_path / "checkpoints")
    assert [newest(path).updates for path in saved] == [8, 0]
