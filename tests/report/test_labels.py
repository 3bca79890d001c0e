from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.report.labels import folded, spread_out


def test_folded_by_hand():
    label = "fedbuff,buffer-size=2,server-lr=0.05"
    assert folded(label, 40) == label
    assert folded(label, 22) == "fedbuff,buffer-size=2,\nserver-lr=0.05"
    assert folded(label, 8) == "fedbuff,\nbuffer-s\nize=2,\nserver-l\nr=0.05"


@given(st.text(max_size=40), st.integers(1, 12))
def test_folding_loses_nothing_and_fits(label, room):
    lines = folded(label.replace("\n", ""), room).split("\n")
    assert "".join(lines) == label.replace("\n", "")
    assert all(len(line) <= room for line in lines)


def test_spread_out_by_hand():
    assert spread_out([5, 1, 9], 2, 0, 10) == [5, 1, 9]
    # Two that want the same place move apart by as much.
    assert spread_out([5, 5], 2, 0, 10) == [4, 6]
    assert spread_out([0, 0], 2, 0, 10) == [0, 2]
    assert spread_out([10, 10, 1], 2, 0, 10) == [8, 10, 1]


@given(st.lists(st.floats(-5, 15), min_size=1, max_size=8))
def test_spread_out_keeps_gaps_bounds_and_order(wanted):
    placed = spread_out(wanted, 1, 0, 10)
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    heights = [placed[place] for place in order]
    assert all(later - earlier >= 1 - 1e-9 for earlier, later in pairwise(heights))
    assert heights[0] >= 0
    assert heights[-1] <= 10 + 1e-9
