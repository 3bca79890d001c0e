import pytest
from matplotlib.figure import Figure

from flwr_asyncdrop.report.curves import band, name_metric
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.runlog import Curve, Point


def curve(*points):
    placed = tuple(Point(value, time, 0, 0) for time, value in points)
    return Curve(Metric("accuracy"), "server", placed)


def test_band_by_hand():
    # The second seed was evaluated at other times, and ended earlier.
    seeds = [curve((0, 0.0), (10, 0.5), (20, 0.5)), curve((0, 0.2), (15, 0.5))]
    line = band(seeds, lambda point: point.time)
    assert line.x.tolist() == [0, 10, 15]
    assert line.low.tolist() == pytest.approx([0.0, 0.4, 0.5])
    assert line.high.tolist() == pytest.approx([0.2, 0.5, 0.5])
    assert line.mean.tolist() == pytest.approx([0.1, 0.45, 0.5])


def test_band_of_one_seed_is_its_curve():
    line = band([curve((0, 0.1), (10, 0.3))], lambda point: point.time)
    assert line.mean.tolist() == line.low.tolist() == line.high.tolist() == [0.1, 0.3]


def test_seeds_that_have_no_moment_in_common_are_drawn_where_they_are():
    seeds = [curve((0, 0.1), (10, 0.3)), curve((20, 0.5), (30, 0.7))]
    line = band([*seeds, curve((25, 0.9), (30, 0.9))], lambda point: point.time)
    assert line.x.tolist() == [0, 10, 20, 25, 30]
    assert line.mean.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.75, 0.8])
    assert line.low.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.6, 0.7])


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([0.0, 0.5, 1.0], ["0%", "50%", "100%"]),
        ([0.9, 0.925, 0.95], ["90.0%", "92.5%", "95.0%"]),
        ([0.9512, 0.9516, 0.952], ["95.12%", "95.16%", "95.20%"]),
        ([0.1 + 0.2, 0.6], ["30%", "60%"]),
        ([], []),
    ],
)
def test_a_tick_says_where_it_is(ticks, texts):
    axes = Figure().add_subplot()
    name_metric(axes, Metric("accuracy"))
    assert axes.yaxis.get_major_formatter().format_ticks(ticks) == texts
