"""The pauses of Flower's loops: a tenth of the wait, and never longer than Flower's."""

import math
import time
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.flower_internals.pace import (
    NodePace,
    Pace,
    WokenPace,
    pace_node,
    pace_superexec,
)

FLOWERS_IDLE, FLOWERS_REPLY = 3.0, 0.5


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def pauses(pace, clock, longest, until):
    """Yield the pauses of a wait of so many seconds."""
    begun = clock()
    while clock() < begun + until:
        pause = pace.next(longest)
        clock.sleep(pause)
        yield pause


def test_a_pause_is_a_tenth_of_the_wait_between_its_bounds():
    clock = Clock()
    pace = Pace(0.1, clock)
    assert pace.next(3.0) == 0.1
    clock.now = 1.5
    assert pace.next(3.0) == pytest.approx(0.15)
    clock.now = 29.0
    assert pace.next(3.0) == pytest.approx(2.9)
    clock.now = 500.0
    assert pace.next(3.0) == 3.0
    pace.end()
    assert pace.next(3.0) == 0.1


@given(least=st.floats(0.01, 2.0), until=st.floats(0.01, 100.0))
def test_what_comes_is_found_a_tenth_or_the_least_pause_later_at_most(least, until):
    clock = Clock()
    for pause in pauses(Pace(least, clock), clock, FLOWERS_IDLE, until):
        before = clock.now - pause
        late_at_most = clock.now - before
        assert late_at_most <= max(least, before / 10) + 1e-9
        assert late_at_most <= max(least, FLOWERS_IDLE)


def test_a_wait_costs_a_few_dozen_looks_more_than_flowers():
    clock = Clock()
    looks = len(list(pauses(Pace(0.1, clock), clock, FLOWERS_IDLE, 30.0)))
    # 10 in the first second, then one for every 10 % more: ln 30 / ln 1.1 = 35.7
    assert looks == pytest.approx(10 + math.log(30) / math.log(1.1), abs=1)
    later = len(list(pauses(Pace(0.1, clock), clock, FLOWERS_IDLE, 330.0))) - looks
    assert later == pytest.approx(300 / FLOWERS_IDLE, abs=1)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def came():
    return []


@pytest.fixture
def loop(clock, came):
    """A module like Flower's, with a SuperNode's loop that goes at our pace."""
    module = ModuleType("loop")
    module.time = time
    module.inbox = []
    module._pull_and_store_message = lambda *_, **__: (
        module.inbox.pop(0) if module.inbox else None
    )
    pace = NodePace(0.1, lambda: came.append(clock.now), timer=clock, sleep=clock.sleep)
    assert pace_node(module, pace)
    return module


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


def test_a_module_that_pauses_otherwise_is_left_alone(came):
    module = ModuleType("loop")
    module.sleep = time.sleep
    pace = NodePace(0.1, lambda: None)
    assert not pace_node(module, pace)
    assert not pace_superexec(module, WokenPace(came.append))
    module.time = time
    assert not pace_node(module, pace), "it has no look for a task"
    assert module.time is time


def test_a_superexec_waits_for_the_bell_as_long_as_flower_says(came):
    module = ModuleType("superexec")
    module.time = time
    assert pace_superexec(module, WokenPace(came.append))
    module.time.sleep(1)
    assert came == [1]
    assert module.time.time is time.time
