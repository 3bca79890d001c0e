import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.fleet.availability import Availability

NIGHTS = Availability(24.0, ((0.0, 6.0), (22.0, 24.0)))


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (0.0, 0.0),
        (5.9, 5.9),
        (6.0, 22.0),  # an end does not belong to its interval
        (10.0, 22.0),
        (22.0, 22.0),
        (23.0, 23.0),
        (24.0, 24.0),  # the next day
        (30.0, 46.0),
        (240.0 + 7.0, 240.0 + 22.0),
    ],
)
def test_nights_by_hand(time, expected):
    assert NIGHTS.earliest(time) == expected


def test_a_share_is_one_stretch_that_begins_at_the_phase():
    assert Availability.from_share(0.5, 8.0, 0.25).intervals == ((2.0, 6.0),)
    assert Availability.from_share(0.5, 8.0, 0.5).intervals == ((4.0, 8.0),)


def test_a_stretch_past_the_end_goes_on_at_the_beginning():
    wrapped = Availability.from_share(0.5, 8.0, 0.75)
    assert wrapped == Availability(8.0, ((0.0, 2.0), (6.0, 8.0)))
    assert wrapped.earliest(7.5) == 7.5
    assert wrapped.earliest(8.5) == 8.5
    assert wrapped.earliest(10.0) == 14.0


@st.composite
def patterns(draw):
    edges = draw(st.lists(st.integers(0, 1000), min_size=2, max_size=8, unique=True))
    edges = sorted(edges)[: len(edges) // 2 * 2]
    scale = draw(st.floats(1e-3, 1e3))
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return Availability(1000 * scale, tuple((a * scale, b * scale) for a, b in pairs))


@given(patterns(), st.floats(0, 1e7))
def test_the_earliest_moment_is_there_and_within_a_period(pattern, time):
    found = pattern.earliest(time)
    assert time <= found <= time + pattern.period * (1 + 1e-9)
    # Who waits until then is not sent away again: a clock that goes there goes on.
    assert pattern.earliest(found) == found


@given(patterns(), st.integers(0, 10**6))
def test_every_start_of_every_cycle_is_there(pattern, cycle):
    for start, _ in pattern.intervals:
        moment = cycle * pattern.period + start
        assert pattern.earliest(moment) == moment


@given(st.floats(0.01, 0.99), st.floats(0, 0.999), st.floats(0.1, 1e4))
def test_a_share_is_that_part_of_the_period(share, phase, period):
    intervals = Availability.from_share(share, period, phase).intervals
    assert sum(end - start for start, end in intervals) == pytest.approx(share * period)


@given(st.floats(0, 1 - 1e-9), st.floats(1e-3, 1e9), st.integers(0, 10**6))
def test_the_shortest_share_is_never_lost_in_the_rounding(phase, period, cycle):
    pattern = Availability.from_share(1e-9, period, phase)
    found = pattern.earliest(cycle * period + 0.5 * period)
    assert pattern.earliest(found) == found < math.inf


def test_a_share_of_almost_all_has_two_stretches_that_meet():
    almost = math.nextafter(1.0, 0.0)
    pattern = Availability.from_share(almost, 37557.591825172196, 0.0078125)
    assert all(pattern.earliest(time) == time for time in (0.0, 293.4, 37557.0))


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor])
def test_numbers_of_others_round_no_times(kind):
    """In single precision a day, after a year, ends when it likes."""
    pattern = Availability(kind(86400.0), [(kind(0.0), kind(25200.0))])
    assert pattern == Availability(86400.0, ((0.0, 25200.0),))
    assert repr(pattern) == repr(Availability(86400.0, ((0.0, 25200.0),)))
    moment = 400 * 86400.0 + 25199.3
    assert pattern.earliest(moment) == moment


def test_intervals_may_be_an_array_or_a_generator():
    expected = Availability(24.0, ((0.0, 6.0), (22.0, 24.0)))
    edges = np.array([[0.0, 6.0], [22.0, 24.0]])
    assert Availability(24.0, edges) == expected
    assert Availability(24.0, (tuple(row) for row in edges)) == expected
    assert hash(Availability(24.0, edges.tolist())) == hash(expected)


def test_many_intervals_of_which_one_is_wrong_are_one_short_line():
    hours = [(3600.0 * at, 3600.0 * at + 60) for at in range(1000)]
    with pytest.raises(ConfigError) as caught:
        Availability(3.6e6, (*hours, (60.0, 90.0)))
    assert "interval 60.0-90.0: " in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_time_that_has_no_place_for_a_period_is_refused():
    with pytest.raises(RunError, match=r"after 1e\+17 s .* period of 1 s") as caught:
        Availability(1.0, ((0.0, 0.5),)).earliest(1e17)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Availability(0.0, ((0.0, 1.0),)), "period=0.0"),
        (lambda: Availability(float("nan"), ((0.0, 1.0),)), "period=nan"),
        (lambda: Availability(1.0, ()), "never be there"),
        (lambda: Availability(1.0, ((0.0, 2.0),)), "within [0, 1.0]"),
        (lambda: Availability(9.0, ((3.0, 3.0),)), "must ascend"),
        (lambda: Availability(9.0, ((3.0, 5.0), (4.0, 6.0))), "without overlaps"),
        (lambda: Availability(9.0, ((-1.0, 5.0),)), "within [0, 9.0]"),
        (lambda: Availability(1e9, ((5, 5.0000001),)), "short for period=1000000000.0"),
        (lambda: Availability(1.0, ((0.0, 1e-300),)), "too short for period=1.0"),
        (lambda: Availability("9", ((3.0, 5.0),)), "period='9' must be positive"),
        (lambda: Availability(9.0, ((0.0, 6.0))), "intervals=(0.0, 6.0) must be pairs"),
        (lambda: Availability(9.0, (("0", "6"),)), "must be pairs of numbers"),
        (lambda: Availability(9.0, ((0.0, 3.0, 6.0),)), "must be pairs of numbers"),
        (lambda: Availability(9.0, None), "intervals=None must be pairs"),
        (lambda: Availability.from_share("0.5", 9.0, 0.0), "share='0.5' must be in"),
        (lambda: Availability.from_share(0.5, "9", 0.0), "period='9' must be"),
        (lambda: Availability.from_share(1.0, 9.0, 0.0), "share=1.0"),
        (lambda: Availability.from_share(1e-17, 9.0, 0.5), "share=1e-17 must be"),
        (lambda: Availability.from_share(0.5, 9.0, 1.0), "phase=1.0"),
    ],
)
def test_impossible_patterns_are_refused(build, says):
    with pytest.raises(ConfigError) as caught:
        build()
    assert says in str(caught.value)
