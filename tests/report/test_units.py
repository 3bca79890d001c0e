import numpy as np
import pytest
from matplotlib.figure import Figure

from flwr_asyncdrop.report.panels import draw_levels
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.units import (
    by_who_leaves_out,
    draw_units,
    pooled,
    unit_shares,
)
from tests.report.histories import history


def units(groups, updates, width=1):
    return {
        "event": "units",
        "ranks": list(range(len(updates))),
        "updates": updates,
        "bin": width,
        "groups": [
            {"name": name, "size": size, "counts": counts}
            for name, size, counts in groups
        ],
        "wall": {"seconds": 0.0},
    }


def test_shares_by_hand():
    record = units([("hidden", 3, [[4, 0, 2], [1, 2, 2]])], updates=[4, 2])
    (shares,) = unit_shares(record).values()
    assert shares.tolist() == [[1.0, 0.0, 0.5], [0.5, 1.0, 1.0]]


def test_shares_of_pooled_units_are_means():
    # 5 units in bins of 2, 2 and 1; every update trained all, or every second one.
    record = units([("hidden", 5, [[8, 8, 4], [4, 4, 2]])], [4, 4], width=2)
    (shares,) = unit_shares(record).values()
    assert shares.tolist() == [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]


def test_units_stand_in_the_order_of_who_leaves_them_out():
    # Left out by: rank 2 only, nobody, ranks 0 and 1 alike, rank 0 only.
    shares = np.array([[1, 1, 0.5, 0], [1, 1, 0.5, 1], [0, 1, 1, 1]])
    assert by_who_leaves_out(shares).tolist() == [3, 2, 0, 1]


def test_pooling_keeps_the_mean_and_leaves_few_columns_alone():
    shares = np.array([[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]])
    assert pooled(shares, 2).tolist() == [[0.5, 1.0], [0.0, 0.5]]
    assert pooled(shares, 4) is shares


def panel(draw, records):
    axes = Figure().add_subplot()
    draw(axes, RunLog.from_records(records))
    return axes


def test_a_block_a_group_and_a_row_a_rank():
    groups = [("first", 2, [[1, 0], [0, 1]]), ("second", 3, [[1, 1, 0], [1, 0, 1]])]
    records = [*history("asyncdrop", 0, [0.5]), units(groups, [1, 1])]
    axes = panel(draw_units, records)
    first, second = (mesh.get_array() for mesh in axes.collections)
    assert first.tolist() == [[0, 1], [1, 0]]
    assert second.tolist() == [[0, 1, 1], [1, 0, 1]]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["first (2)", "second (3)"]
    # Each block is one wide, with a gap behind it.
    edges = [mesh.get_coordinates()[0, :, 0] for mesh in axes.collections]
    assert edges[0].tolist() == pytest.approx([0, 0.485, 0.97])
    assert edges[1][[0, -1]].tolist() == pytest.approx([1, 1.97])


def with_levels(accuracies, levels):
    records = history("asyncdrop", 0, accuracies)
    evaluations = [line for line in records if line["event"] == "evaluation"]
    for line, values in zip(evaluations, levels, strict=True):
        line["metrics"]["level-accuracy"] = values
    return records


def test_a_row_a_level_and_a_column_an_evaluation():
    records = with_levels([0.3, 0.5], [[0.2, 0.4], [0.4, 0.6]])
    axes = panel(draw_levels, records)
    (mesh,) = axes.collections
    assert mesh.get_array().tolist() == [[0.2, 0.4], [0.4, 0.6]]
    assert axes.yaxis_inverted()


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (draw_units, "Every device trained the full model"),
        (draw_levels, "Labels were not tied to speed levels"),
    ],
)
def test_an_empty_panel_says_why(draw, says):
    axes = panel(draw, history("async-fedavg", 0, [0.3, 0.5]))
    assert [text.get_text() for text in axes.texts] == [says]
