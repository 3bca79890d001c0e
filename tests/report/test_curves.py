import pytest
from matplotlib.figure import Figure

from flwr_asyncdrop.report.curves import band, draw_against_bytes, draw_against_time
from flwr_asyncdrop.report.runlog import Curve, Metric, Point
from flwr_asyncdrop.report.target import Target
from tests.report.histories import series


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


HALF = Target(Metric("accuracy"), 0.5, "given")
SERIES = [
    series("fedavg", {0: [0.2] * 9}),
    series("fedbuff", {0: [0.2, 0.4, 0.6], 1: [0.4, 0.6, 0.8]}),
    series("asyncdrop", {0: [0.9]}, cut_off=[0]),
]


def test_the_slow_control_does_not_stretch_the_axis():
    axes = Figure().add_subplot()
    draw_against_time(axes, SERIES, HALF)
    assert axes.get_xlim() == (0, 30)
    assert axes.get_xlabel() == "virtual time (s)"


def test_lines_are_means_and_incomplete_runs_have_none():
    axes = Figure().add_subplot()
    draw_against_bytes(axes, SERIES, HALF)
    lines = {line.get_label(): line for line in axes.lines}
    assert "asyncdrop" not in lines
    x, y = lines["fedbuff"].get_data()
    assert x.tolist() == [10.0, 20.0, 30.0]
    assert y.tolist() == pytest.approx([0.3, 0.5, 0.7])
    assert axes.get_xlabel() == "sent and received (MB)"
    assert [text.get_text() for text in axes.texts] == ["target 50.0%"]
