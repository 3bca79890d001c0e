"""Counts of units to drop, against what rates and arithmetic say."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.submodel import DropCounts, UnitGroup

EVENLY = [(k + 0.5) / 4000 for k in range(4000)]


def groups_of(*sizes, least=1):
    return [UnitGroup(f"g{n}", size, "internal", least) for n, size in enumerate(sizes)]


def mean_dropped(counts, groups):
    drawn = [counts.of(draw) for draw in EVENLY]
    return [sum(column) / len(EVENLY) for column in zip(*drawn, strict=True)]


def test_a_quarter_of_two_heads_by_hand():
    # 2 * 0.25 = 0.5 heads of each layer: the sums are 0.5, 1.0 and 1.5, so a draw of
    # 0.2 passes 1 at the second layer, and one of 0.7 at the first and third.
    counts = DropCounts(groups_of(2, 2, 2), 0.25)
    assert counts.of(0.2) == (0, 1, 0)
    assert counts.of(0.7) == (1, 0, 1)
    assert not counts.are_whole


@pytest.mark.parametrize(("size", "rate"), [(8, 0.25), (100, 0.29), (10, 0.7), (7, 0)])
def test_whole_numbers_leave_nothing_to_chance(size, rate):
    counts = DropCounts(groups_of(size), rate)
    assert counts.are_whole
    # 100 * 0.29 is 28.999999999999996 in floating point.
    assert {counts.of(draw) for draw in EVENLY} == {(round(size * rate),)}


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)
RATES = st.fractions(0, Fraction(9, 10), max_denominator=60)


@given(SIZES, RATES)
def test_over_many_draws_the_rate_is_dropped_and_never_all(sizes, rate):
    groups = groups_of(*sizes)
    counts = DropCounts(groups, float(rate))
    for size, mean in zip(sizes, mean_dropped(counts, groups), strict=True):
        assert mean == pytest.approx(float(min(size * rate, size - 1)), abs=1e-3)
    for draw in (0.0, 0.3, 0.999999):
        exact = [min(size * rate, size - 1) for size in sizes]
        for drop, share, size in zip(counts.of(draw), exact, sizes, strict=True):
            assert abs(drop - share) < 1
            assert 0 <= drop < size


@given(SIZES, RATES)
def test_few_shapes_and_an_even_total(sizes, rate):
    counts = DropCounts(groups_of(*sizes), float(rate))
    drawn = {counts.of(draw) for draw in EVENLY}
    assert len(drawn) <= len(sizes) + 1
    expected = sum(min(size * rate, size - 1) for size in sizes)
    assert all(abs(sum(drops) - expected) < 1 + 1e-6 for drops in drawn)


def test_the_least_number_of_units_is_kept():
    # Of 4 experts two must stay: 0.75 * 4 = 3 would go.
    counts = DropCounts(groups_of(4, least=2), 0.75)
    assert {counts.of(draw) for draw in EVENLY} == {(2,)}


@pytest.mark.parametrize(
    ("rate", "size", "kept"),
    [
        (0.25, 64, {48: 1.0}),
        (0.25, 100, {64: 5 / 16, 80: 11 / 16}),  # 75 lies between 64 and 80
        (0.9, 64, {16: 1.0}),  # 6.4, but at least one multiple
        (0.25, 12, {9: 1.0}),  # a group without a multiple is left alone
        (0.1, 20, {16: 0.5, 20: 0.5}),  # 18
    ],
)
def test_multiples_by_hand(rate, size, kept):
    counts = DropCounts(groups_of(size), rate, 16)
    widths = [size - counts.of(draw)[0] for draw in EVENLY]
    found = {width: widths.count(width) / len(widths) for width in set(widths)}
    assert found == pytest.approx(kept, abs=1e-3)
