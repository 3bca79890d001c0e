"""The largest numbers, and where they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.wire.codec import Blocks, Rotated, TopK
from flwr_asyncdrop.wire.codec.positions import (
    positions_sizes,
    read_positions,
    write_positions,
)
from flwr_asyncdrop.wire.codec.top_k import largest
from tests.wire.codec.samples import heavy, normal, relative_error


def test_the_largest_by_hand_and_the_first_of_those_as_large():
    values = np.array([1, -3, 2, 3, -3, 0, 3], np.float32)
    assert largest(values, 0).tolist() == []
    assert largest(values, 1).tolist() == [1]
    assert largest(values, 3).tolist() == [1, 3, 4]
    assert largest(values, 5).tolist() == [1, 2, 3, 4, 6]
    assert largest(values, 7).tolist() == list(range(7))


@given(
    values=st.lists(st.sampled_from([0, -0.0, 1, -1, 2.5, -2.5, 1e-40]), max_size=60),
    share=st.floats(0, 1),
)
@settings(deadline=None)
def test_the_largest_are_those_of_a_stable_sort(values, share):
    values = np.array(values, np.float32)
    count = round(share * values.size)
    order = np.argsort(-np.abs(values), kind="stable")
    assert largest(values, count).tolist() == sorted(order[:count])


def test_what_is_kept_comes_back_and_the_rest_is_zero():
    values = np.float32([0.1, 127, -5, 0.2, -127, 3, 1, 2, 0, 0.3])
    scheme = TopK(0.3, Blocks(8))
    data = scheme.encode(values, 0, unbiased=False)
    assert scheme.decode(data, 10, 0).tolist() == [0, 127, -5, 0, -127, 0, 0, 0, 0, 0]


def test_the_bytes_by_hand():
    values = np.zeros(40, np.float32)
    values[[3, 39]] = 7, -7
    payload = TopK(0.05, Blocks(4, 8)).pack(values, 0, unbiased=False)
    # Gaps of 3 and 35 numbers; the scale 1 and the codes 15 and 1.
    assert payload == bytes([1, 3, 35, 0x7F, 0x00, 0x1F])


@pytest.mark.parametrize("count", [1, 5, 14, 15, 16, 1000])
def test_a_tenth_is_kept_and_one_at_least(count):
    found = TopK(0.1).kept(count)
    assert found == max(1, round(count / 10))
    assert TopK(0.1).kept(0) == 0


def test_the_error_on_normal_numbers_is_that_of_theory():
    # Above t = 1.645 are 10 %: they have 2 (t f(t) + 0.05) = 0.439 of the mean square.
    values = normal(2**17)
    scheme = TopK(0.1, Blocks(8))
    data = scheme.encode(values, 0, unbiased=False)
    error = relative_error(scheme.decode(data, values.size, 0), values)
    assert error == pytest.approx(0.561, abs=0.005)


@pytest.mark.parametrize("inner", [Blocks(8), Blocks(4), Rotated(2), Rotated(1)])
def test_what_is_kept_is_what_the_inner_scheme_makes_of_it(inner):
    values, scheme = heavy(5000), TopK(0.2, inner)
    data = scheme.encode(values, 4, unbiased=True)
    kept = largest(values, 1000)
    expected = np.zeros_like(values)
    expected[kept] = inner.decode(inner.encode(values[kept], 4, unbiased=True), 1000, 4)
    np.testing.assert_array_equal(scheme.decode(data, 5000, 4), expected)


@pytest.mark.parametrize("share", [0, 1e-7, 1, 1.5, -0.1, float("nan"), "0.1"])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=r"share=.* must be in \[1e-06, 1\)"):
        TopK(share)


@pytest.mark.parametrize("inner", [TopK(), "q4", None])
def test_what_cannot_be_inside_is_refused(inner):
    with pytest.raises(ConfigError, match=r"inner=.* must be Blocks or Rotated"):
        TopK(0.1, inner)


class TestPositions:
    def test_by_hand(self):
        few = np.array([0, 1, 300, 900])
        # Gaps of 0, 0, 298 = 255 + 43, 599 = 255 + 255 + 89.
        data = bytes([1, 0, 0, 255, 43, 255, 255, 89])
        assert write_positions(few, 1000) == data
        assert read_positions(data, 1000, 4).tolist() == few.tolist()
        many = np.array([0, 2, 3, 9])
        assert write_positions(many, 10) == bytes([0, 0b1101, 0b10])
        assert read_positions(bytes([0, 0b1101, 0b10]), 10, 4).tolist() == [0, 2, 3, 9]

    @given(st.data())
    @settings(deadline=None)
    def test_all_come_back_in_the_shorter_form(self, draw):
        count = draw.draw(st.integers(0, 3000))
        kept = draw.draw(st.integers(0, count) | st.integers(0, min(count, 9)))
        seed = draw.draw(st.integers(0, 99))
        chosen = np.random.default_rng(seed).choice(count, kept, replace=False)
        positions = np.sort(chosen).astype(np.int64)
        data = write_positions(positions, count)
        gaps = np.diff(positions, prepend=-1) - 1
        shorter = min(sum(int(g) // 255 + 1 for g in gaps), -(-count // 8))
        assert len(data) == 1 + shorter
        assert len(data) in positions_sizes(count, kept)
        assert read_positions(data, count, kept).tolist() == positions.tolist()

    def test_the_most_bytes_are_reached(self):
        # All but one are at the end.
        positions = np.append(0, np.arange(99_000, 100_000))
        sizes = positions_sizes(100_000, positions.size)
        assert len(write_positions(positions, 100_000)) == sizes[-1]
        assert len(write_positions(np.arange(1001), 100_000)) == sizes[0]

    @pytest.mark.parametrize(
        ("data", "count", "kept"),
        [
            ([], 10, 1),
            ([2, 5], 100, 1),  # no form
            ([1, 5, 255], 100, 1),  # a gap that does not end
            ([1, 5, 5], 100, 1),  # too many
            ([1, 5], 100, 2),  # too few
            ([1, 99, 0], 100, 2),  # behind the last number
            ([1, 255], 300, 1),
            ([1, 1, 1], 16, 2),  # as long as the bitmap
            ([0, 0b111, 0b1], 9, 3),  # too many
            ([0, 0b111, 0b10], 9, 4),  # behind the last number
            ([0, 0b1, 0b0], 9, 2),  # too few
            ([0, 0b11], 9, 2),  # too short
            ([0, 0b11, 0, 0], 9, 2),  # too long
            ([0, 0b1] + 12 * [0], 100, 1),  # gaps are shorter
        ],
    )
    def test_what_was_not_written_is_refused(self, data, count, kept):
        with pytest.raises(ValueError, match="positions"):
            read_positions(bytes(data), count, kept)
