"""The contract of a Grid, held by LocalGrid in one process and in several."""

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_asyncdrop.exceptions import ConfigError, Interrupted, RunError
from flwr_asyncdrop.seeding import kept_global_generators
from flwr_asyncdrop.simulation import LocalGrid
from tests.nightly import examples
from tests.simulation.thread_runner import ThreadRunner

APP = "grid_apps:app"


@pytest.fixture(params=[0, 1, 2, "runner"], ids="workers={}".format)
def grid(request: pytest.FixtureRequest) -> Iterator[LocalGrid]:
    # The contract holds with a runner that is defined outside of the package, too.
    own = request.param == "runner"
    runs = {"runner": ThreadRunner(APP)} if own else {"workers": request.param}
    with LocalGrid(
        None if own else APP,
        num_nodes=3,
        **runs,
        node_config=lambda partition: {"level": partition * 10},
        run_config={"lr": 0.5, "algo": "x"},
    ) as grid:
        yield grid


def task(
    node: int, action: str = "train", number: float = 0, ttl: float | None = None
) -> Message:
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, action, ttl=ttl, group_id="7")


def answer(grid: LocalGrid, message: Message) -> Message:
    (reply,) = grid.send_and_receive([message])
    return reply


def test_reply_carries_the_content_back(grid: LocalGrid) -> None:
    arrays = {
        "weight": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "count": Array(np.array(4, dtype=np.int64)),
        "empty": Array(np.zeros((0, 5), dtype=np.float32)),
    }
    content = RecordDict(
        {"arrays": ArrayRecord(arrays), "config": ConfigRecord({"lr": 0.1})}
    )
    reply = answer(grid, Message(content, grid.get_node_ids()[0], "train"))
    assert reply.content == content
    assert type(reply.content["arrays"]["weight"].data) is bytes
    assert reply.content["arrays"]["weight"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_reply_metadata_points_back_to_the_message(grid: LocalGrid) -> None:
    node = grid.get_node_ids()[1]
    message = task(node, ttl=60.0)
    (message_id,) = grid.push_messages([message])
    assert grid.wait_any([message_id])
    (reply,) = grid.pull_messages([message_id])
    assert message.metadata.message_id == message_id
    assert reply.metadata.reply_to_message_id == message_id
    assert reply.metadata.message_id not in ("", message_id)
    assert reply.metadata.src_node_id == node
    assert reply.metadata.dst_node_id == message.metadata.src_node_id == 1
    assert reply.metadata.run_id == message.metadata.run_id == grid.run.run_id
    assert reply.metadata.group_id == "7"
    assert reply.metadata.message_type == "train"
    age = reply.metadata.created_at - message.metadata.created_at
    assert reply.metadata.ttl == pytest.approx(60.0 - age)
    assert 0 <= age < 60


def test_ids_are_counted_not_drawn(grid: LocalGrid) -> None:
    nodes = grid.get_node_ids()
    assert nodes == [1000, 1001, 1002]
    ids = grid.push_messages([task(nodes[0]), task(nodes[1])])
    assert ids == ["message-1", "message-2"]


def test_each_reply_is_given_once(grid: LocalGrid) -> None:
    ids = grid.push_messages(task(node) for node in grid.get_node_ids())
    pulled: list[str] = []
    while len(pulled) < 3:
        assert grid.wait_any(set(ids) - set(pulled))
        replies = grid.pull_messages(set(ids) - set(pulled))
        assert all(reply.has_content() for reply in replies)
        pulled += [reply.metadata.reply_to_message_id for reply in replies]
    assert sorted(pulled) == ids
    again = grid.pull_messages(ids)
    assert [reply.error.code for reply in again] == [ErrorCode.MESSAGE_UNAVAILABLE] * 3


def test_only_the_replies_asked_for_are_pulled(grid: LocalGrid) -> None:
    first, second = grid.push_messages(task(node) for node in grid.get_node_ids()[:2])
    assert grid.wait_any([second])
    assert grid.wait_any([first])
    (reply,) = grid.pull_messages([second, second])
    assert reply.metadata.reply_to_message_id == second
    (reply,) = grid.pull_messages([first])
    assert reply.metadata.reply_to_message_id == first


def test_what_is_forgotten_is_not_kept_and_begins_no_more(grid: LocalGrid) -> None:
    """As many replies as were in flight stayed until the grid was closed."""
    messages = [task(1000, "train.tally", n) for n in range(1, 5)]
    waiting = [weakref.ref(each) for each in messages[1:]]
    ids = grid.push_messages(messages)
    del messages
    grid.forget_messages(ids)
    gc.collect()
    assert [each() for each in waiting] == [None] * 3  # at once
    assert grid.pull_messages(ids[:1])[0].error.code == ErrorCode.MESSAGE_UNAVAILABLE
    seen = answer(grid, task(1000, "train.tally", 9)).content["seen"]["numbers"]
    assert seen == [1, 9]
    for kept in (grid._replies, grid._open, grid._nodes):
        assert not kept


def test_what_comes_after_the_timeout_is_not_kept() -> None:
    with LocalGrid(APP, num_nodes=2, workers=1) as grid:
        assert grid.send_and_receive([task(1000, "train.sleep", 0.2)], timeout=0) == []
        assert answer(grid, task(1000)).has_content()
        assert not grid._replies


def test_unknown_id_gives_an_error_reply(grid: LocalGrid) -> None:
    assert grid.wait_any(["message-99"])
    (reply,) = grid.pull_messages(["message-99"])
    assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert reply.metadata.reply_to_message_id == "message-99"
    assert "message-99" in (reply.error.reason or "")


def test_waiting_for_nothing_returns_at_once(grid: LocalGrid) -> None:
    assert not grid.wait_any([])
    assert grid.pull_messages([]) == []
    assert grid.push_messages([]) == []
    assert grid.send_and_receive([]) == []


def test_message_to_no_node_is_dropped_and_logged(
    grid: LocalGrid, caplog: pytest.LogCaptureFixture
) -> None:
    ids = grid.push_messages([task(5), task(grid.get_node_ids()[0])])
    assert ids == ["message-1"]
    assert "No node 5" in caplog.text


def test_same_message_object_cannot_wait_twice(grid: LocalGrid) -> None:
    message = task(grid.get_node_ids()[0])
    ids = grid.push_messages([message])
    with pytest.raises(RunError, match="message-1 is not answered yet"):
        grid.push_messages([message])
    assert grid.wait_any(ids)
    assert grid.push_messages([message]) == ["message-2"]


def test_context_is_what_flower_gives(grid: LocalGrid) -> None:
    for partition, node in enumerate(grid.get_node_ids()):
        content = answer(grid, task(node, "train.describe")).content
        assert dict(content["node"]) == {
            "partition-id": partition,
            "num-partitions": 3,
            "level": partition * 10,
        }
        assert dict(content["run"]) == {"lr": 0.5, "algo": "x"}
        assert content["facts"]["node-id"] == node
        assert content["facts"]["run-id"] == grid.run.run_id


def test_state_stays_with_its_node(grid: LocalGrid) -> None:
    left, right, _ = grid.get_node_ids()
    for number in range(3):
        answer(grid, task(left, "train.tally", number))
    seen = answer(grid, task(left, "train.tally", 3)).content["seen"]["numbers"]
    assert seen == [0, 1, 2, 3]
    seen = answer(grid, task(right, "train.tally", 8)).content["seen"]["numbers"]
    assert seen == [8]


def test_messages_of_a_node_are_processed_in_order(grid: LocalGrid) -> None:
    first, second, _ = grid.get_node_ids()
    messages = [task((first, second)[n % 2], "train.tally", n) for n in range(20)]
    replies = grid.send_and_receive(messages)
    longest = {
        reply.metadata.src_node_id: reply.content["seen"]["numbers"]
        for reply in sorted(replies, key=lambda r: len(r.content["seen"]["numbers"]))
    }
    assert longest == {first: list(range(0, 20, 2)), second: list(range(1, 20, 2))}


def test_client_shares_no_memory_with_the_server(grid: LocalGrid) -> None:
    message = task(grid.get_node_ids()[0], "train.spoil", 5)
    reply = answer(grid, message)
    assert reply.content["task"]["number"] == -1
    assert message.content["task"]["number"] == 5


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("boom", "ValueError: the batch is empty"),
        ("leave", "SystemExit: 3"),
        ("nothing", "The ClientApp returned None, not a Message."),
        ("stranger", "make it with Message(content, reply_to=message)"),
        ("missing", "No train function registered with name 'missing'"),
    ],
)
def test_what_a_client_does_wrong_is_an_error_reply(
    grid: LocalGrid, action: str, reason: str
) -> None:
    node = grid.get_node_ids()[0]
    reply = answer(grid, task(node, f"train.{action}"))
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reason in (reply.error.reason or "")
    assert "\n" not in (reply.error.reason or "")
    assert reply.metadata.group_id == "7"
    assert answer(grid, task(node)).has_content()


def test_a_client_that_raises_leaves_its_nodes_state_as_it_was(
    grid: LocalGrid,
) -> None:
    node = grid.get_node_ids()[-1]
    before = answer(grid, task(node, "train.tally", 1)).content["seen"]["numbers"]
    assert answer(grid, task(node, "train.boom")).has_error()
    after = answer(grid, task(node, "train.tally", 2)).content["seen"]["numbers"]
    assert after == [*before, 2]


def test_a_reply_in_the_name_of_another_node_is_its_senders(grid: LocalGrid) -> None:
    sender, other, _ = grid.get_node_ids()
    reply = answer(grid, task(sender, "train.disguise"))
    assert reply.has_content()
    assert reply.metadata.src_node_id == sender
    for node, before in ((sender, [7]), (other, [])):
        seen = answer(grid, task(node, "train.tally", 1)).content["seen"]["numbers"]
        assert seen == [*before, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_task_that_cannot_be_pickled_says_so_and_keeps_no_node(workers: int) -> None:
    configs: list[dict[str, Any]] = [{"hook": lambda: None}, {}]
    with LocalGrid(
        APP, num_nodes=2, workers=workers, node_config=configs.__getitem__
    ) as grid:
        with pytest.raises(ConfigError, match="task of node 1000 cannot be sent"):
            grid.push_messages([task(1000)])
        with pytest.raises(ConfigError, match="task of node 1000 cannot be sent"):
            grid.send_and_receive([task(1000)])
        assert answer(grid, task(1001)).has_content()


def test_a_signal_in_this_process_is_no_clients_doing() -> None:
    with (
        LocalGrid(APP, num_nodes=1, workers=0) as grid,
        pytest.raises(Interrupted),
    ):
        answer(grid, task(grid.get_node_ids()[0], "train.interrupted"))


def test_a_task_that_was_interrupted_here_does_not_keep_its_node() -> None:
    app, calls = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        calls.append(message.metadata.message_id)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return Message(message.content, reply_to=message)

    with LocalGrid(lambda: app, num_nodes=1, workers=0) as grid:
        with pytest.raises(KeyboardInterrupt):
            answer(grid, task(1000, "train"))
        (reply,) = grid.send_and_receive([task(1000, "train")], timeout=10)
    assert reply.metadata.reply_to_message_id == "message-2"
    assert calls == ["message-1", "message-1", "message-2"]


def test_more_messages_than_slots_all_come_back(grid: LocalGrid) -> None:
    nodes = grid.get_node_ids()
    replies = grid.send_and_receive(task(nodes[n % 3], number=n) for n in range(40))
    numbers = sorted(reply.content["task"]["number"] for reply in replies)
    assert numbers == list(range(40))


def test_replies_come_in_the_order_in_which_they_were_made() -> None:
    # Floats are summed in it. Two answers and more may be there at one pull.
    with LocalGrid(APP, num_nodes=3, workers=0) as grid:
        nodes = grid.get_node_ids()
        replies = grid.send_and_receive(task(nodes[n % 3], number=n) for n in range(40))
    numbers = [reply.content["task"]["number"] for reply in replies]
    assert numbers == list(range(40))


def test_set_run_reaches_messages_and_contexts(grid: LocalGrid) -> None:
    run = grid.run
    run.run_id = 42
    assert grid.run.run_id != 42
    grid.set_run(run)
    message = task(grid.get_node_ids()[0], "train.describe")
    assert answer(grid, message).content["facts"]["run-id"] == 42
    assert message.metadata.run_id == grid.run.run_id == 42


def test_create_message_is_flowers_message(grid: LocalGrid) -> None:
    content = RecordDict()
    message = grid.create_message(content, "train", 1000, "3", ttl=5.0)
    assert message.content is content
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (1000, "3")
    assert message.metadata.ttl == 5.0


def test_closed_grid_says_so(grid: LocalGrid) -> None:
    grid.push_messages([task(1000)])
    grid.close()
    grid.close()
    for call in (grid.pull_messages, grid.push_messages, grid.wait_any):
        with pytest.raises(RunError, match="closed"):
            call(["message-1"])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("grid_apps", r"cannot be imported \(AttributeError"),
        ("grid_apps:absent", r"cannot be imported \(AttributeError: .*'absent'"),
        ("no_such_module:app", r"'no_such_module:app' cannot be imported \(ModuleNotF"),
        ("grid_apps:not_an_app", "gives a str, not a ClientApp"),
    ],
)
def test_client_app_that_cannot_be_loaded(
    source: str, message: str, workers: int
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        LocalGrid(source, num_nodes=1, workers=workers)
    assert "\n" not in str(caught.value)
    assert "module:attribute" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_app_itself_is_asked_for_by_its_name(workers: int) -> None:
    with pytest.raises(ConfigError, match="is a ClientApp itself: give module:attr"):
        LocalGrid(ClientApp(), num_nodes=1, workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_factory_is_called_where_the_app_runs(workers: int) -> None:
    from grid_apps import make_app, make_nothing

    with LocalGrid(make_app, num_nodes=1, workers=workers) as grid:
        assert answer(grid, task(1000)).has_content()
    with pytest.raises(ConfigError, match="OSError: the data is not there"):
        LocalGrid(make_nothing, num_nodes=1, workers=workers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "num_nodes=0"),
        ({"num_nodes": 1, "workers": -1}, "workers=-1"),
        ({"num_nodes": 1, "workers": 125}, "workers=125"),
        ({"num_nodes": 1, "threads_per_worker": 0}, "threads_per_worker=0"),
        ({"num_nodes": 1, "client_app": None}, "needs a client_app, or a runner"),
        ({"num_nodes": 1, "runner": object()}, "leave client_app out"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalGrid(**{"client_app": APP, **arguments})


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LocalGrid, LocalGrid]]:
    from grid_apps import make_app

    with (
        LocalGrid(make_app, num_nodes=1, workers=0) as plain,
        LocalGrid(make_app, num_nodes=1, workers=1) as fast,
    ):
        yield plain, fast


@settings(max_examples=examples(40), deadline=None)
@given(
    arrays=st.dictionaries(
        st.text(max_size=4),
        hnp.arrays(
            st.sampled_from([np.float32, np.int64, np.bool_, np.float16]),
            hnp.array_shapes(min_dims=0, min_side=0, max_side=200),
            fill=st.nothing(),
            elements={"allow_nan": False},
        ).map(Array),
        max_size=4,
    ),
    config=st.dictionaries(st.text(max_size=4), st.binary(max_size=5000), max_size=3),
)
def test_workers_give_what_the_naive_way_gives(
    pair: tuple[LocalGrid, LocalGrid],
    arrays: dict[str, Array],
    config: dict[str, bytes],
) -> None:
    content = RecordDict({"a": ArrayRecord(arrays), "c": ConfigRecord(config)})
    plain, fast = (
        answer(grid, Message(content, 1000, "train")).content for grid in pair
    )
    assert plain == fast == content


def test_grids_of_several_threads_draw_what_they_would_alone() -> None:
    app, drawing = ClientApp(), threading.Event()

    @app.train()
    def draw(message: Message, context: Context) -> Message:
        numbers = []
        for _ in range(20):
            numbers.append(float(torch.rand(1)))
            drawing.set()
            time.sleep(0.001)
        content = RecordDict({"drawn": ConfigRecord({"numbers": numbers})})
        return Message(content, reply_to=message)

    def drawn() -> Any:
        with LocalGrid(lambda: app, num_nodes=1, workers=0) as grid:
            return answer(grid, task(1000)).content["drawn"]["numbers"]

    alone = drawn()
    drawing.clear()
    with ThreadPoolExecutor(2) as threads:
        together = [threads.submit(drawn) for _ in range(2)]
        assert drawing.wait(300)
        assert drawn() == alone
    assert [each.result() for each in together] == [alone, alone]


def test_what_runs_here_leaves_the_global_generators_as_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(()).item(), np.random.rand(), random.random()  # noqa: NPY002, S311

    with kept_global_generators():
        expected = draw()
    with LocalGrid(APP, num_nodes=1, workers=0) as grid:
        assert answer(grid, task(1000, "train.draw")).has_content()
    assert draw() == expected
