"""The loops of Flower's SuperNode and SuperExec, at our pace."""

import importlib
import sys
import time
from types import ModuleType

import pytest

from flwr_asyncdrop.flower_internals.loops import (
    NODE,
    SUPEREXEC,
    pace_node,
    pace_superexec,
)
from flwr_asyncdrop.flower_internals.pace import NodePace, WokenPace
from tests.flower_internals.clocks import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def came():
    return []


def pull_objects(object_ids, pull_object_fn, *, initial_backoff=1.0):
    return initial_backoff


@pytest.fixture
def module_named(monkeypatch):
    def make(name):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


@pytest.fixture
def loop_with(module_named, clock, came):
    """A module like Flower's, with a SuperNode's loop that goes at our pace."""

    def make(longest=None):
        module = module_named("loop")
        module.time = time
        module.pull_objects = pull_objects
        module.inbox = []
        module._pull_and_store_message = lambda *_, **__: (
            module.inbox.pop(0) if module.inbox else None
        )
        pace = NodePace(
            0.1,
            lambda: came.append(clock.now),
            longest=longest,
            timer=clock,
            sleep=clock.sleep,
        )
        assert pace_node(pace, "loop")
        return module

    return make


@pytest.fixture
def loop(loop_with):
    return loop_with()


def test_a_node_looks_soon_after_a_reply_and_ever_later_while_idle(loop, clock):
    assert loop._pull_and_store_message() is None
    loop.time.sleep(3)
    assert clock.now == pytest.approx(0.1)
    clock.now = 20.0
    loop.time.sleep(3)
    assert clock.now == pytest.approx(22.0)
    loop.inbox.append(7)
    assert loop._pull_and_store_message(state=None) == 7
    loop.time.sleep(0.5)
    assert clock.now == pytest.approx(22.02)
    assert loop._pull_and_store_message() is None
    loop.time.sleep(3)
    assert clock.now == pytest.approx(22.12)


def test_a_node_that_has_waited_long_looks_seldom_if_it_may(loop_with, clock):
    loop = loop_with(longest=30)
    for until, pause in [(0, 0.1), (100, 10), (1000, 30)]:
        clock.now = until
        assert loop._pull_and_store_message() is None
        loop.time.sleep(3)
        assert clock.now == pytest.approx(until + pause)
    loop.inbox.append(7)
    assert loop._pull_and_store_message() == 7
    loop.time.sleep(0.5)
    clock.now = 3000.0
    loop.time.sleep(0.5)
    assert clock.now == pytest.approx(3000.5), "the wait for a reply is Flower's"
    assert loop._pull_and_store_message() is None
    loop.time.sleep(3)
    assert clock.now == pytest.approx(3000.6)


def test_every_task_rings_also_one_that_was_queued(loop, clock, came):
    loop.inbox += [1, 2]
    loop._pull_and_store_message()
    clock.sleep(100)
    loop.time.sleep(0.5)
    assert clock.now == pytest.approx(100.02)
    loop._pull_and_store_message()
    assert came == pytest.approx([0.0, 100.02])
    loop.time.sleep(0.5)
    assert clock.now == pytest.approx(100.04), "the second task's wait is a new one"


def test_the_rest_of_time_is_as_it_was(loop):
    assert loop.time.monotonic is time.monotonic
    assert time.sleep is not loop.time.sleep


def test_parts_of_a_task_are_looked_for_sooner(loop):
    assert loop.pull_objects([], None) == 0.03


def test_a_module_that_pauses_otherwise_is_left_alone(module_named, came, caplog):
    module = module_named("loop")
    module.sleep = time.sleep
    pace = NodePace(0.1, lambda: None)
    before = dict(vars(module))
    assert not pace_node(pace, "loop")
    assert not pace_superexec(WokenPace(came.append), "loop")
    assert vars(module) == before
    assert "loop of this Flower is not as expected" in caplog.text


@pytest.mark.parametrize("missing", ["_pull_and_store_message", "pull_objects", "time"])
def test_a_loop_that_lacks_something_keeps_flowers_pace(module_named, missing):
    module = module_named("loop")
    module.time = time
    module._pull_and_store_message = lambda: None
    module.pull_objects = pull_objects
    delattr(module, missing)
    before = dict(vars(module))
    assert not pace_node(NodePace(0.1, lambda: None), "loop")
    assert vars(module) == before


def test_a_superexec_waits_for_the_bell_as_long_as_flower_says(module_named, came):
    module = module_named("superexec")
    module.time = time
    assert pace_superexec(WokenPace(came.append), "superexec")
    module.time.sleep(1)
    assert came == [1]
    assert module.time.time is time.time


def test_flowers_own_loops_are_as_expected(monkeypatch, came):
    """In every version that this is run with."""
    for name, names in (
        (NODE, ("time", "_pull_and_store_message", "pull_objects")),
        (SUPEREXEC, ("time",)),
    ):
        module = importlib.import_module(name)
        for each in names:
            monkeypatch.setattr(module, each, getattr(module, each))
    assert pace_node(NodePace(0.1, lambda: None))
    assert pace_superexec(WokenPace(came.append))
