"""Devices that lie, in whole runs of every algorithm."""

import json
import logging

import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered, OutlierGuard
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.callbacks import Callback
from tests.checkpoint import small_runs
from tests.grids import HandlerGrid
from tests.runs import Run, answer, failing, mlp, plus_one
from tests.strategies import STRATEGIES

NODES = 10


def lying(liars, lie=lambda tensor: torch.full_like(tensor, 1e10), honest=None):
    """A handler: the devices with these numbers answer with what `lie` makes."""

    def handle(message):
        device = wire.read_task(message).partition_id
        if device is None:
            device = message.metadata.dst_node_id - 1
        train = message.metadata.message_type == "train"
        if device not in liars or not train:
            return (honest or small_runs.client)(message)
        sent = wire.from_record(message.content["arrays"])
        return answer(message, {name: lie(tensor) for name, tensor in sent.items()})

    return handle


class Books(Callback):
    def __init__(self):
        self.merged, self.failures, self.largest = [], [], 0.0

    def on_update(self, state, merged):
        self.merged.append(merged.order.device)
        self.largest = max(
            self.largest, *(float(t.abs().max()) for t in state.arrays.values())
        )
        assert all(bool(t.isfinite().all()) for t in state.arrays.values())

    def on_failure(self, state, order, kind, reason):
        self.failures.append((order.device, kind))


@pytest.mark.parametrize("liars", [{0}, {0, 1, 2}], ids=len)
@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_what_liars_return_never_reaches_the_model(algorithm, liars, tmp_path):
    books = Books()
    small_runs.run(
        tmp_path,
        algorithm,
        handler=lying(liars),
        node_ids=range(1, NODES + 1),
        callbacks=[books],
        rounds=10,
    )
    assert len(books.merged) == 40
    assert liars.isdisjoint(books.merged)
    assert books.largest < 1e3
    refused = [device for device, kind in books.failures if kind == "outlier"]
    assert refused
    assert liars.issuperset(refused)


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_without_the_guard_they_take_it_over(algorithm, tmp_path):
    books = Books()
    small_runs.run(
        tmp_path, algorithm, handler=lying({0}), callbacks=[books], outlier_factor=0
    )
    assert 0 in books.merged
    assert books.largest > 1e6


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_honest_runs_are_the_same_with_and_without(algorithm, tmp_path):
    runs = [
        small_runs.run(tmp_path / str(factor), algorithm, outlier_factor=factor)
        for factor in (0, 30.0)
    ]
    assert runs[0] == runs[1]


def test_a_fast_liar_gets_hardly_any_tasks():
    """It answers at once, and would get nine of ten."""
    seconds = (0.01, *(1.0 + device / 10 for device in range(1, NODES)))
    grid = HandlerGrid(lying({0}, honest=plus_one), node_ids=range(1, NODES + 1))
    run = Run(grid, seconds, in_flight=8, rounds=12, arrays=mlp().state_dict()).go()
    tasks = [order.device for order in run.recorder.orders]
    assert len(run.recorder.merged) == 96
    assert tasks.count(0) < 25


class TestWhereDevicesWaitForEachOther:
    """All that there are train, and the liars' updates never come."""

    def run(self, handler, in_flight=4):
        grid = HandlerGrid(handler, node_ids=range(1, 5))
        return Run(
            grid,
            (1.0, 1.5, 2.0, 2.5),
            in_flight=in_flight,
            rounds=6,
            arrays=mlp().state_dict(),
            build_aggregator=lambda count: Buffered(count, waits=True),
        ).go()

    @pytest.mark.parametrize(
        "bad", [lying({1}, honest=plus_one), None], ids=["lies", "raises"]
    )
    def test_the_step_is_taken_without_those_in_quarantine(self, bad):
        def raising(message):
            first = wire.read_task(message).partition_id == 1
            return failing(message) if first else plus_one(message)

        run = self.run(bad or raising)
        assert run.state.updates == 24
        assert not run.state.ended
        assert {merged.order.device for merged in run.recorder.merged} == {0, 2, 3}
        # Each step adds one, and steps are of three updates.
        moved = run.state.arrays["0.weight"] - mlp().state_dict()["0.weight"]
        torch.testing.assert_close(moved, torch.full_like(moved, 8.0))

    def test_an_honest_cohort_is_as_large_as_ever(self):
        run = self.run(plus_one)
        assert run.state.version == 6


def test_a_counter_cannot_be_pushed_to_its_end():
    model = {"w": torch.ones(2), "bn.num_batches_tracked": torch.tensor(5)}

    def push(tensor):
        return tensor if tensor.is_floating_point() else torch.full_like(tensor, 2**62)

    grid = HandlerGrid(lying({0}, push, plus_one), node_ids=range(1, NODES + 1))
    run = Run(
        grid, tuple(range(1, NODES + 1)), in_flight=4, rounds=5, arrays=model
    ).go()
    assert {kind for _, kind, _ in run.recorder.failures} == {"counter"}
    assert int(run.state.arrays["bn.num_batches_tracked"]) < 100


def test_it_is_said_who_was_refused_and_by_how_much(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    small_runs.run(
        tmp_path,
        "async-fedavg",
        handler=lying({0}),
        node_ids=range(1, NODES + 1),
        rounds=10,
        quarantine_after=0,
    )
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    named = [text for text in warnings if "its change of '0.weight' is 1e+10" in text]
    assert 1 < len(named) <= 5
    assert all(text.startswith("device 0 (rank 0) failed") for text in named)
    assert warnings[-1].startswith("tasks lost: ")
    assert " outlier" in warnings[-1]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    refused = [e for e in events if e.get("kind") == "outlier"]
    assert {e["device"] for e in refused} == {0}
    assert events[-1]["failures"]["outlier"] == len(refused)


def test_if_all_seem_to_lie_the_message_names_the_key():
    """Two devices, which say nothing of each other, and an absurd first change."""
    grid = HandlerGrid(lying({0, 1}), node_ids=[1, 2])
    with pytest.raises(RunError, match="raise outlier-factor if changes may differ"):
        Run(grid, (1.0, 2.0), arrays=mlp().state_dict()).go()


def test_what_is_usual_is_in_the_state_of_a_run():
    grid = HandlerGrid(plus_one, node_ids=range(1, 5))
    run = Run(grid, (1.0, 1.5, 2.0, 2.5), in_flight=3, rounds=2).go().run
    other = Run(grid, (1.0, 1.5, 2.0, 2.5), in_flight=3).open()
    other.load_state_dict(run.state_dict())
    assert other.guard.state_dict() == run.guard.state_dict()
    assert len(run.guard.state_dict()["latest"]) >= 3


def test_a_run_that_had_no_guard_is_resumed_with_one():
    grid = HandlerGrid(plus_one, node_ids=range(1, 5))
    run = Run(grid, (1.0, 1.5, 2.0, 2.5), in_flight=3, rounds=2).go().run
    run.guard = None
    other = Run(grid, (1.0, 1.5, 2.0, 2.5), in_flight=3).open()
    other.load_state_dict(run.state_dict())
    assert other.guard.state_dict() == OutlierGuard().state_dict()
