"""The pauses of Flower's loops: a tenth of the wait, and never longer than Flower's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.flower_internals.pace import Pace
from tests.flower_internals.clocks import Clock

FLOWERS_IDLE = 3.0


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
