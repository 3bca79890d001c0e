"""Bootstrap intervals by hand, and against all resamples one by one."""

from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.report.intervals import Interval, interval


def test_few_seeds_have_no_interval():
    assert interval([1.0, 2.0, 3.0, 6.0], fmean) == Interval(3.0)
    assert not interval([1.0, 1.0, 1.0, 1.0], fmean).is_clear


def test_equal_seeds_have_an_interval_of_no_width():
    found = interval(5 * [2.0], fmean)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.is_clear


def test_five_seeds_by_hand():
    """Of the 3,125 resamples of four zeros and a one, k ones have 5^-5 C(5,k) 4^(5-k).

    None has 0.328, one 0.41, two 0.205, three 0.051, four 0.0064: 2.5 % are at none,
    and 97.5 % (none to two are 94.2 %) at three.
    """
    found = interval([0.0, 0.0, 0.0, 0.0, 1.0], fmean)
    assert (found.value, found.low) == (0.2, 0.0)
    assert found.high == pytest.approx(0.6)
    assert not found.is_clear


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-9, 9), min_size=5, max_size=5))
def test_all_resamples_are_those_written_out(values):
    found = interval(values, fmean)
    means = np.sort([fmean(each) for each in product(values, repeat=5)])
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


def test_many_seeds_are_drawn_the_same_way_each_time():
    values = np.random.default_rng(0).normal(1.0, 1.0, 40).tolist()
    found = interval(values, fmean)
    assert found == interval(values, fmean)
    # As the normal interval of a mean, about.
    half = 1.96 * float(np.std(values)) / 40**0.5
    assert found.low == pytest.approx(found.value - half, abs=0.05)
    assert found.high == pytest.approx(found.value + half, abs=0.05)


def test_pairs_take_out_what_a_seed_does_to_both():
    seeds = [(10.0, 9.0), (20.0, 19.1), (30.0, 28.9), (40.0, 39.0), (50.0, 49.0)]
    found = interval(seeds, lambda pairs: fmean(a - b for a, b in pairs))
    assert found.value == pytest.approx(1.0)
    assert found.is_clear


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.1, False)],
)
def test_what_is_clear(low, high, clear):
    assert Interval(0.0, low, high).is_clear == clear


def test_rounding_makes_no_difference_clear():
    """In right answers the lower bound is 0; in shares of 4,000 it is rounded."""
    own = [2003, 1999, 2001, 1998, 2001]
    base = [2001, 1998, 1999, 1996, 2002]
    whole = interval([a - b for a, b in zip(own, base, strict=True)], fmean)
    assert whole.low == 0.0
    assert not whole.is_clear
    pairs = zip(own, base, strict=True)
    found = interval([a / 4000 - b / 4000 for a, b in pairs], fmean)
    assert found.low != 0.0
    assert not found.is_clear
