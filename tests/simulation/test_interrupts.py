"""Ctrl-C at any moment: the grid goes on afterwards, and answers everything once."""

import multiprocessing
import signal
import threading

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flwr_asyncdrop import AsyncFedAvg, LocalGrid, speed_levels
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import pool_worker
from flwr_asyncdrop.simulation.held_signals import held_signals
from flwr_asyncdrop.simulation.task_queue import TaskQueue
from flwr_asyncdrop.simulation.transport import Notice, Slot
from tests.simulation.apps import frozen_app

APP = "grid_apps:app"


def task(node, action="tally", number=0.0):
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, f"train.{action}")


@pytest.fixture(autouse=True)
def _python_hears_of_it():
    """Not so in a process that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_once_after(monkeypatch, owner, name):
    """Let Ctrl-C come at the end of one call."""
    function, calls = getattr(owner, name), []

    def call(*arguments, **options):
        result = function(*arguments, **options)
        if result is not None and not calls:
            calls.append(name)
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Notice, "receive"),
        (Slot, "read"),
        (Slot, "write"),
        (TaskQueue, "pop"),
    ],
)
def test_it_loses_no_answer(owner, name, monkeypatch):
    with LocalGrid(APP, num_nodes=2, workers=1) as grid:
        interrupted_once_after(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            grid.send_and_receive([task(1000, number=1), task(1001, number=2)])
        (reply,) = grid.send_and_receive([task(1000, number=3)], timeout=60)
    assert reply.content["seen"]["numbers"] == [1, 3]


class Stop(Callback):
    def on_update(self, state, merged):
        raise KeyboardInterrupt


def test_a_grid_keeps_no_replies_of_a_run_that_was_interrupted():
    """Each was as large as a model, and stayed until the grid was closed."""
    net = frozen_app.build()
    arrays = ArrayRecord(net.state_dict())
    options = {"fleet": speed_levels, "in_flight": 4, "fraction_evaluate": 0.0}
    with LocalGrid(frozen_app.having, num_nodes=6, workers=1) as grid:
        with pytest.raises(KeyboardInterrupt):
            AsyncFedAvg(net, **options, callbacks=[Stop()]).start(grid, arrays, 2)
        assert not grid._open
        AsyncFedAvg(net, **options).start(grid, arrays, 2)
        assert not grid._replies


def test_it_does_not_keep_workers_from_being_ended(monkeypatch):
    grid = LocalGrid(APP, num_nodes=1, workers=2)
    end_process, calls = pool_worker.end_process, []

    def end(*arguments):
        end_process(*arguments)
        calls.append(arguments)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pool_worker, "end_process", end)
    with pytest.raises(KeyboardInterrupt):
        grid.close()
    assert len(calls) == 2
    assert multiprocessing.active_children() == []


def test_held_signals_come_at_the_end():
    done = []

    def work():
        with held_signals():
            with held_signals():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_each_held_signal_comes_though_another_raises():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))

    def work():
        with held_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_what_is_not_handled_here_is_left_alone():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with held_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_grid_that_another_thread_closes_ends_the_wait_and_its_workers():
    grid = LocalGrid(APP, num_nodes=4, workers=2)
    ids = grid.push_messages(task(node, "kill") for node in grid.get_node_ids())
    ids += grid.push_messages([task(1000, "sleep", 3600)])
    said = []

    def wait():
        try:
            while True:
                grid.wait_any(ids[-1:])
        except RunError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    grid.close()
    thread.join(60)
    assert multiprocessing.active_children() == []
    assert said == ["The LocalGrid is closed; make a new one."]
