"""Runs whose metric is no accuracy: of regressions, and of language models."""

import csv
import json

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.report import summarise, write_report
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.pagedata import page_data
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import read_series
from flwr_asyncdrop.report.table_files import csv_text, json_values
from flwr_asyncdrop.report.tables import columns, notes
from flwr_asyncdrop.report.target import choose_target
from tests.report.histories import history, series, write


@pytest.mark.parametrize(
    ("name", "falls", "best", "text"),
    [
        ("accuracy", False, "max", "25.00%"),
        ("loss", True, "min", "0.25"),
        ("perplexity", True, "min", "0.25"),
        ("r2", False, "max", "0.25"),
    ],
)
def test_a_metric_by_its_name(name, falls, best, text):
    metric = Metric(name)
    assert (metric.falls, metric.extreme, metric.text(0.25)) == (falls, best, text)


@pytest.mark.parametrize("last", ["loss", "mse", "accuracy"])
def test_the_end_of_a_long_name_says_what_it_is(last):
    metric = Metric.of(f"of the {'very ' * 20}last words, {last}", [0.5])
    assert (metric.falls, metric.is_share) == (last != "accuracy", last == "accuracy")
    assert len(metric.name) < 70


@pytest.mark.parametrize("name", ["difference", "difference_low", "rule"])
def test_a_metric_called_as_a_column_of_ours_has_another_one(name):
    both = [
        series(each, {0: [3.0, 2.0]}, metric=name) for each in ("fedavg", "fedbuff")
    ]
    table = compare(both, 1.5)
    values, (_, row) = json_values(table), csv.DictReader(csv_text(table).splitlines())
    assert values["target"] == {f"metric_{name}": 1.5, "rule": "given"}
    assert values["rows"][0][f"final_metric_{name}"]["mean"] == 2
    assert row[f"max_metric_{name}"] == "3.0"
    assert row[f"final_metric_{name}"] == "2.0"
    assert row["final_difference"] == "0.0"
    assert row["final_difference_low"] == ""


# Perplexity after 10, 20, 30 s.
FJORD = series("async-fjord", {0: [90, 80, 85]}, metric="perplexity")
BUFFER = series("fedbuff", {0: [60, 40, 50], 1: [60, 60, 70]}, metric="perplexity")
HETERO = series("hetero-asyncdrop", {0: [50, 45, 20]}, metric="perplexity")
ALL = [FJORD, BUFFER, HETERO]


def test_a_value_that_no_sum_can_hold_is_that_of_a_run_that_diverged():
    """A perplexity is an exponential: that of a loss of 708 is 1e307."""
    rising = series("fedbuff", {0: [90, 1e307], 1: [90, 1.7e308]}, metric="perplexity")
    (row,) = compare([rising], 100).rows
    assert (row.diverged, row.best.mean) == ([0, 1], 90)
    page = json.loads(page_data([rising], compare([rising], 100)))
    assert page["rows"][0]["bands"]["time"]["high"] == [90]
    never = history("fedbuff", 0, [-1e307, 1e308], metric="loss")
    assert "not evaluated" in summarise(never).text()


@pytest.mark.parametrize("first", [0.0, -123_456.0, 1e9])
def test_a_line_on_the_page_moves_however_far_it_is_from_zero(first):
    values = [first + step / 7 for step in range(8)]
    rising = series("fedbuff", {0: values}, metric="score")
    page = json.loads(page_data([rising], compare([rising], values[-1])))
    drawn = page["rows"][0]["bands"]["time"]["mean"]
    assert drawn == pytest.approx(values, rel=0, abs=1e-4)
    assert len(set(drawn)) == 8


def test_the_best_perplexity_is_the_least_and_the_target_is_below():
    table = compare(ALL, 45)
    _, buffer, hetero = table.rows
    assert buffer.best.mean == 50
    assert buffer.seconds.count == 1
    assert buffer.arrivals[0].time == 20.0
    assert hetero.arrivals[0].time == 20.0
    assert [column.title for column in columns(table)[2:7]] == [
        "min. perplexity",
        "final perplexity",
        "beside the reference",
        "s to 45",
        "MB to 45",
    ]
    assert columns(table)[2].texts == ("80", "50 ± 14.14", "20")
    assert notes(table)[0].startswith("Target: 45 (given).")


def test_the_rules_of_the_target_are_turned_round():
    prox = series("async-fedprox", {0: [90, 70, 85]}, metric="perplexity")
    auto = choose_target([*ALL, prox])
    assert auto.value == 70
    assert auto.rule == "the second-highest minimum of the baselines, async-fedprox's"
    assert choose_target(ALL).value == pytest.approx(60 / 0.95)
    near = choose_target(ALL, "0.8best")
    assert near.value == pytest.approx(60 / 0.8)
    assert near.rule == "the best baseline's final perplexity over 0.8, fedbuff's"


@pytest.mark.parametrize("wish", ["low", "nan", "2best", "inf"])
def test_a_target_that_makes_no_sense_is_refused(wish):
    with pytest.raises(ConfigError, match="must be 'auto', a perplexity"):
        choose_target(ALL, wish)


@pytest.mark.parametrize("metric", ["loss", "perplexity", "r2"])
def test_a_report_has_the_metric_that_there_is(tmp_path, metric):
    for label in ("fedbuff", "hetero-asyncdrop"):
        lines = history(label, 0, [3.0, 1.5], metric=metric, dataset="housing")
        write(tmp_path / label / "seed-0", lines)
    page = write_report([tmp_path], tmp_path / "report")
    best = "max" if metric == "r2" else "min"
    assert (tmp_path / "report" / f"{metric}-time.png").exists()
    assert f"<h2>{metric.capitalize()}</h2>" in page.read_text()
    assert f"{best}. {metric}" in page.read_text()
    (row, _) = json.loads((tmp_path / "report" / "table.json").read_text())["rows"]
    assert row[f"{best}_{metric}"]["mean"] == (3.0 if metric == "r2" else 1.5)
    text = "".join(path.read_text() for path in page.parent.glob("table.*"))
    assert "accuracy" not in text + page.read_text().partition("<script>")[0].replace(
        "labels that each level has", ""
    )


@pytest.mark.parametrize("first", [{"loss": 2.3}, {"accuracy": None, "loss": 2.3}])
def test_an_accuracy_that_comes_late_is_the_metric(first):
    lines = history("fedbuff", 0, [0.0, 0.5, 0.6])
    lines[1]["metrics"] = first
    curve = RunLog.from_records(lines).curve
    assert curve.metric == Metric("accuracy")
    assert [point.value for point in curve.points] == [0.5, 0.6]
    assert not curve.diverged


def test_an_accuracy_in_per_cent_is_no_share():
    own = series("fedbuff", {0: [0.9, 60.0, 71.5]})
    late = series("asyncdrop", {0: [0.5, 0.8, 0.9]})  # below one per cent
    table = compare([late, own], "60")
    assert columns(table)[3].texts == ("0.9", "71.5")
    assert columns(table)[5].title == "s to 60"
    assert columns(table)[5].texts == ("N/A", "20.0")
    assert choose_target([late, own]).value == pytest.approx(0.95 * 71.5)
    ours = compare([series("fedbuff", {0: [0.2]}), series("asyncdrop", {0: [9.0]})])
    assert columns(ours)[3].texts == ("0.2", "9")
    assert columns(compare([late], "0.8"))[3].texts == ("90.00",)


def test_an_accuracy_that_rounding_puts_above_one_is_a_share():
    mean = 1.0000000000000002  # Flower's, of nine clients that are always right
    table = compare([series("fedbuff", {0: [0.5, mean]})], "0.9")
    assert columns(table)[3].texts == ("100.00",)
    assert columns(table)[5].title == "s to 90.00%"
    with pytest.raises(ConfigError, match=r"an accuracy in \(0, 1\]"):
        compare([series("fedbuff", {0: [0.5, mean]})], "90")


def test_a_summary_says_which_metric(tmp_path):
    text = summarise(history("fedbuff", 0, [3.0, 1.5, 2.0], metric="loss")).text()
    assert "final loss" in text
    assert "best loss" in text
    assert "1.5 at update 16" in text


def test_series_of_a_falling_metric_are_read(tmp_path):
    write(tmp_path / "fedbuff" / "seed-0", history("fedbuff", 0, [3.0], metric="loss"))
    (one,) = read_series([tmp_path])
    assert one.curves[0].metric == Metric("loss")


@pytest.mark.parametrize(
    ("name", "heading"),
    [("accuracy", "Accuracy"), ("AUC", "AUC"), ("top-1_F1", "Top 1 F1")],
)
def test_a_heading_keeps_the_capitals_of_a_name(name, heading):
    assert Metric.of(name, [0.5]).heading == heading
