import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.speeds import draw_speeds, first_of_group
from tests.report.test_pictures import RUN, lost, tasks

LEFT_OUT = {
    "event": "left-out",
    "round": 9,
    "time": 90.0,
    "updates": 7,
    "bytes_down": 1,
    "bytes_up": 1,
    "staleness": 9,
    "most_staleness": 5,
    "queued": 0,
    "late": 0,
    "ranks": [[0, 4], [2, 3]],
    "failures": {},
    "wall": {"seconds": 0.0},
}


def updates(*pairs):
    """Return updates of these ranks and stalenesses."""
    record = tasks(1, 1)[0]
    return [{**record, "rank": rank, "staleness": stale} for rank, stale in pairs]


def bars(records):
    """Return the name, the length and the label of each bar, from the top."""
    axes = Figure().add_subplot()
    draw_speeds(axes, RunLog.from_records(records))
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    names = [label.get_text() for label in axes.get_yticklabels()]
    lengths = [bar.get_width() for bar in axes.patches]
    texts = [text.get_text() for text in axes.texts]
    return list(zip(names, lengths, texts, strict=True))


def test_a_bar_for_each_rank_by_hand():
    assert bars([RUN, *updates((0, 1), (1, 4), (0, 2))]) == [
        ("0", 2, "2 · staleness 1.5"),
        ("1", 1, "1 · staleness 4.0"),
    ]


def test_one_rank_is_one_bar():
    assert bars([RUN, *updates((0, 3))]) == [("0", 1, "1 · staleness 3.0")]


def test_ranks_whose_tasks_are_all_lost_are_shown():
    failure = {**lost(updates((2, 0))[0]), "rank": 2}
    assert bars([RUN, *updates((0, 1)), failure]) == [
        ("0", 1, "1 · staleness 1.0"),
        ("1", 0, "0"),
        ("2", 0, "0"),
    ]


def test_many_ranks_share_eight_bars():
    every = bars([RUN, *updates(*((rank, rank) for rank in range(128)))])
    assert len(every) == 8
    assert every[0] == ("0-15", 16, "16 · staleness 7.5")
    assert every[-1] == ("112-127", 16, "16 · staleness 119.5")
    assert [name for name, *_ in bars([RUN, *updates((8, 0))])][-2:] == ["6-7", "8"]


def test_updates_that_a_history_leaves_out_count():
    """And the label says of how few the staleness is."""
    kept = updates((0, 1), (1, 4), (0, 2))
    records = [{**RUN, "schema": 3, "every": 8}, *kept, LEFT_OUT]
    assert bars(records) == [
        ("0", 6, "6 · staleness 1.5 (of 2)"),
        ("1", 1, "1 · staleness 4.0"),
        ("2", 3, "3"),
    ]


@pytest.mark.parametrize("records", [[RUN], [RUN, *map(lost, tasks(8, 4))]])
def test_no_update_is_said(records):
    axes = Figure().add_subplot()
    draw_speeds(axes, RunLog.from_records(records))
    assert [text.get_text() for text in axes.texts] == ["No update was merged"]


@given(st.integers(1, 300), st.integers(1, 130))
def test_groups_are_of_neighbours_and_of_one_size(count, most):
    firsts = first_of_group(np.arange(count), most)
    names, sizes = np.unique(firsts, return_counts=True)
    assert len(names) <= most
    assert (np.diff(firsts) >= 0).all()
    assert len(set(sizes[:-1])) <= 1
    assert sizes[-1] <= sizes[0]
    assert count <= most or (sizes[0] - 1) * most < count
