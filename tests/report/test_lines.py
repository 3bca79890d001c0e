from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from flwr_asyncdrop.report.lines import bytes_axis, draw_lines, time_axis
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.pictures import comparison_figures
from flwr_asyncdrop.report.style import save
from flwr_asyncdrop.report.target import Target
from tests.report.histories import series

HALF = Target(Metric("accuracy"), 0.5, "given")
SERIES = [
    series("fedavg", {0: [0.2] * 9}),
    series("fedbuff", {0: [0.2, 0.4, 0.6], 1: [0.4, 0.6, 0.8]}),
    series("asyncdrop", {0: [0.9]}, cut_off=[0]),
]
MANY = [series(f"asyncdrop,alpha=0.{n}", {0: [0.2, 0.1 * n]}) for n in range(1, 10)]


def drawn(runs, axis=time_axis, width=3.3):
    figure = Figure(layout="constrained")
    draw_lines(figure, runs, HALF, axis(runs), width)
    figure.draw_without_rendering()
    return figure


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_slow_control_does_not_stretch_the_axis_but_its_end_is_told():
    (axes,) = drawn(SERIES).axes
    assert axes.get_xlim() == (0, 30)
    label, beyond = axes.get_xlabel().splitlines()
    assert label == "virtual time (s)"
    assert beyond == "→ fedavg ends at 20.0% at 90.0 s"
    assert "fedavg →" in texts(axes)


def test_the_end_that_is_told_is_a_mean_over_seeds():
    runs = [series("fedavg", {0: [0.25] * 9, 1: [0.75] * 9}), SERIES[1]]
    (axes,) = drawn(runs).axes
    assert axes.get_xlabel().endswith("→ fedavg ends at 50.0% at 90.0 s")


def test_what_lies_beyond_the_axis_is_not_rounded_into_it():
    runs = [
        series("fedavg", {0: [0.2] * 3}, megabytes_per_second=45),
        series("fedbuff", {0: [0.2]}, megabytes_per_second=115),
    ]
    (axes,) = drawn(runs, bytes_axis).axes
    assert axes.get_xlim() == (0, 1.15)
    assert axes.get_xlabel().endswith("fedavg ends at 20.0% at 1.35 GB")


def test_a_line_that_ends_with_its_shortest_seed_inside_has_no_arrow():
    runs = [series("fedavg", {0: [0.2] * 2, 1: [0.2] * 9}), *SERIES[1:]]
    (axes,) = drawn(runs).axes
    assert axes.get_xlim() == (0, 30)
    assert axes.get_xlabel() == "virtual time (s)"
    assert "fedavg" in texts(axes)


def test_no_variant_ends_behind_the_axis():
    # The last of the variants is not the slowest.
    runs = [
        series("fedbuff,buffer-size=2", {0: [0.1] * 5}),
        series("fedbuff,buffer-size=4", {0: [0.1] * 3}),
    ]
    for axes in drawn(runs).axes:
        assert axes.get_xlim() == (0, 50)
        assert not any("→" in text for text in texts(axes))


def test_lines_are_means_and_incomplete_runs_have_none():
    (axes,) = drawn(SERIES, bytes_axis).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert "asyncdrop" not in lines
    x, y = lines["fedbuff"].get_data()
    assert x.tolist() == [10.0, 20.0, 30.0]
    assert y.tolist() == pytest.approx([0.3, 0.5, 0.7])
    assert axes.get_xlabel().startswith("sent and received (MB)")
    assert texts(axes) == ["target 50.0%", "fedavg →", "fedbuff"]


@pytest.mark.parametrize("longest", ["asyncdrop", "asyncdrop,drop-rate=0.125"])
def test_a_line_of_one_evaluation_is_seen(longest):
    runs = [series("fedbuff", {0: [0.2] * 3}), series(longest, {0: [0.9]})]
    lines = [line for axes in drawn(runs).axes for line in axes.lines]
    markers = {line.get_label(): line.get_marker() for line in lines}
    assert (markers["fedbuff"], markers[longest]) == ("None", "o")


def test_labels_beside_the_ends_do_not_overlap_and_nothing_is_cut_off():
    names = ["fedavg", "fedbuff", "async-fedavg", "asyncdrop", "layerwise-asyncdrop"]
    figure = drawn([series(name, {0: [0.2, 0.5]}) for name in names])
    # Without the thin lines to the ends.
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts[1:]]
    assert len(boxes) == 5
    boxes.sort(key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert figure.get_figwidth() == 3.3


def test_many_lines_have_a_panel_each():
    figure = drawn(MANY)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == [one.label for one in MANY]
    for axes, one in zip(shown, MANY, strict=True):
        labels = [line.get_label() for line in axes.lines]
        assert labels.count(one.label) == 1
        assert len(axes.lines) == 2  # and the target
        # One object for all others: hundreds of rows took minutes.
        (others,) = axes.collections
        assert len(others.get_segments()) == len(MANY) - 1
    assert len({axes.get_xlim() for axes in shown}) == 1
    assert len({axes.get_ylim() for axes in shown}) == 1


def test_only_the_outer_panels_have_numbers_and_no_seed_is_cut():
    runs = [*MANY, series("fedbuff", {0: [0.2, 0.1], 1: [0.2, 0.99]})]
    panels = [axes for axes in drawn(runs).axes if axes.get_visible()]
    top, bottom = panels[0].get_ylim()[::-1]
    assert bottom < 0.1 < 0.99 < top
    left = [any(t.get_text() for t in p.get_yticklabels()) for p in panels]
    assert left == [place % 2 == 0 for place in range(10)]
    below = [any(t.get_text() for t in p.get_xticklabels()) for p in panels]
    assert below == [place >= 8 for place in range(10)]


def test_long_labels_have_panels_too_and_all_of_their_text():
    label = "hetero-asyncdrop,drop-rate=0.45,combine=trimmed-mean"
    runs = [series(label, {0: [0.2, 0.3]}), *MANY[:2]]
    figure = drawn(runs)
    title = figure.axes[0].title
    assert title.get_text().replace("\n", "") == label
    width = figure.axes[0].get_tightbbox().width
    assert title.get_window_extent().width <= width
    assert title.get_window_extent().y1 <= figure.bbox.y1


def test_the_axis_reaches_to_the_control_if_all_others_diverged_at_once():
    nan = float("nan")
    other = series("fedbuff", {0: [8.0, nan]}, metric="perplexity")
    log = other.runs[0]
    start = {**log.evaluations[0], "time": 0.0, "bytes_down": 0, "bytes_up": 0}
    at_once = replace(log, evaluations=(start, log.evaluations[1]))
    runs = [
        series("fedavg", {0: [8.0, 7.0]}, metric="perplexity"),
        replace(other, runs={0: at_once}),
    ]
    (axes,) = drawn(runs).axes
    assert axes.get_xlim() == (0, 20)


@pytest.mark.parametrize("number", [1, 9])
def test_a_label_is_shown_as_it_is_or_by_its_escapes(number, tmp_path):
    labels = [f"a$\\nothing$日本{n}" for n in range(number)]
    runs = [series(label, {0: [0.2, 0.6]}) for label in labels]
    figures = comparison_figures(runs, HALF, 5.0)
    svg = save(figures["time"], tmp_path / "a.svg", dpi=72, svg_fonttype="none")
    assert "a$\\nothing$\\u65e5\\u672c0" in svg.read_text()
