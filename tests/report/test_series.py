import errno
import os
from pathlib import Path

import pytest

from flwr_asyncdrop.app.fleets import FLEET_KEYS
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report import draw_run, write_report
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.files import histories
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import check_together, ground_differs_in, read_series
from flwr_asyncdrop.report.tables import notes
from flwr_asyncdrop.storage.done import mark_done
from tests.report.histories import history, write

OLD = '{"event": "run", "schema": 1, "wall": {"seconds": 0.0}}\n'


def run(out, label, seed=0, accuracies=(0.5,), **kwargs):
    write(out / label / f"seed-{seed}", history(label, seed, accuracies, **kwargs))


def test_runs_are_put_together_by_label_in_the_order_of_the_algorithms(tmp_path):
    for label in ("my-own", "hetero-asyncdrop", "asyncdrop,drop-rate=0.5", "fedavg"):
        run(tmp_path, label)
    run(tmp_path, "fedavg", seed=2, accuracies=[0.25])
    series = read_series([tmp_path])
    assert [(one.label, one.algorithm) for one in series] == [
        ("fedavg", "fedavg"),
        ("asyncdrop,drop-rate=0.5", "asyncdrop"),
        ("hetero-asyncdrop", "hetero-asyncdrop"),
        ("my-own", "my-own"),
    ]
    finals = {seed: curve.final.value for seed, curve in series[0].curves.items()}
    assert finals == {0: 0.5, 2: 0.25}


def test_numbers_in_labels_are_in_their_own_order(tmp_path):
    values = ["-2", "-1", "1e-05", "0.5", "2", "10"]
    labels = [f"fedavg,lr={value},codec=q4" for value in values]
    labels += ["fedavg,milestones=25,milestones=100", "fedavg,milestones=25s"]
    for label in sorted(labels):
        write(tmp_path / label / "seed-0", history("fedavg", 0, [0.5]))
    assert [one.label for one in read_series([tmp_path])] == labels


def test_runs_without_an_end_or_without_an_accuracy_are_incomplete(tmp_path):
    run(tmp_path, "fedavg", seed=0)
    run(tmp_path, "fedavg", seed=1, ended=False)
    run(tmp_path, "fedavg", seed=2, accuracies=())
    (series,) = read_series([tmp_path])
    assert list(series.runs) == [0]
    assert list(series.incomplete) == [1, 2]


@pytest.mark.parametrize("begun", ["", '{"event": "run", "schema'])
def test_a_run_without_its_first_line_is_incomplete(tmp_path, begun):
    run(tmp_path, "fedavg")
    for folder in ("fedavg/seed-1", "fedbuff/seed-0", "fedbuff,lr=1/20260101-mine"):
        write(tmp_path / folder, [])
        (tmp_path / folder / "history.jsonl").write_text(begun)
    series = read_series([tmp_path])
    found = {one.label: (list(one.runs), one.unwritten) for one in series}
    assert found == {
        "fedavg": ([0], (1,)),
        "fedbuff": ([], (0,)),
        "20260101-mine": ([], (None,)),
    }
    table = compare(series, 0.5)
    assert [row.incomplete for row in table.rows] == [(1,), (0,), (None,)]
    says = "3 runs are incomplete (+) and left out: fedavg seed 1, fedbuff seed 0"
    assert f"{says}, 20260101-mine." in notes(table)
    page = write_report([tmp_path], tmp_path / "report", paper=True).read_text()
    assert f"{says}, 20260101-mine." in page


def test_a_comparison_is_not_refused_for_a_run_beside_it_without_a_line(tmp_path):
    write(tmp_path / "fedavg" / "seed-0", [])
    planned = RunLog.planned(history("fedbuff", 0, [])[0])
    check_together(tmp_path, {tmp_path / "fedbuff/seed-0/history.jsonl": planned})


def test_a_history_that_was_emptied_after_its_run_is_refused(tmp_path):
    run(tmp_path, "fedavg")
    write(tmp_path / "fedavg" / "seed-1", history("fedavg", 1, [0.5]))
    mark_done(tmp_path / "fedavg" / "seed-1", ["history.jsonl"])
    (tmp_path / "fedavg" / "seed-1" / "history.jsonl").write_text("")
    with pytest.raises(DataError, match=r"seed-1/history\.jsonl was changed after"):
        read_series([tmp_path])


def test_a_run_that_an_error_ended_is_incomplete(tmp_path):
    rounds = {"num-rounds": 3, "in-flight": 8}
    for seed, updates in enumerate([24, 23]):
        *lines, end = history("fedavg", seed, [0.5], **rounds)
        folder = tmp_path / "fedavg" / f"seed-{seed}"
        write(folder, [*lines, {**end, "updates": updates}])
    (series,) = read_series([tmp_path])
    assert (list(series.runs), list(series.incomplete)) == ([0], [1])


def test_a_folder_of_another_name_goes_by_its_algorithm(tmp_path):
    write(tmp_path / "20260101-fedbuff", history("fedbuff", 0, [0.5]))
    (series,) = read_series([tmp_path])
    assert series.label == "fedbuff"


def test_a_folder_that_is_named_twice_is_read_once(tmp_path):
    run(tmp_path, "fedavg")
    assert len(read_series([tmp_path, tmp_path / "fedavg"])) == 1


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path, monkeypatch):
    write(tmp_path / "fedbuff" / "seed-0", history("fedbuff", 0, [0.2]))
    closed = tmp_path / "fedbuff" / "seed-1"
    write(closed, history("fedbuff", 1, [0.9]))
    scandir = os.scandir

    def look(place):
        if Path(place) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", look)
    with pytest.raises(DataError, match=r"in \S+/seed-1 \(Permission denied\): make"):
        read_series([tmp_path])
    # `watch` takes the newest that there is.
    assert histories(tmp_path, of_others=True) == [
        tmp_path / "fedbuff" / "seed-0" / "history.jsonl"
    ]


def test_links_to_folders_are_followed(tmp_path):
    for label in ("fedavg", "fedbuff"):
        run(tmp_path / "elsewhere", label)
    out = tmp_path / "out"
    run(out, "asyncdrop")
    (out / "fedavg").symlink_to(tmp_path / "elsewhere" / "fedavg")
    (out / "mine").symlink_to(tmp_path / "elsewhere" / "fedbuff")
    (out / "round").symlink_to(out)
    (out / "asyncdrop-too").symlink_to(out / "asyncdrop")
    assert [one.label for one in read_series([out])] == ["fedavg", "asyncdrop", "mine"]
    # What was named by two paths is read once.
    assert len(read_series([out, tmp_path / "elsewhere", out / ".." / "out"])) == 3


@pytest.mark.parametrize("seed", ["absent", None, "1", 1.5, [0]])
def test_a_history_without_a_seed_is_refused_by_name(tmp_path, seed):
    first, *rest = history("fedavg", 0, (0.5,))
    first = {**first, "seed": seed}
    if seed == "absent":
        del first["seed"]
    write(tmp_path / "fedavg" / "seed-0", [first, *rest])
    with pytest.raises(DataError, match=r"history\.jsonl is damaged \(its seed"):
        read_series([tmp_path])


@pytest.mark.parametrize("key", ["time", "update", "bytes_down"])
@pytest.mark.parametrize("value", [float("inf"), 2**63, -(10**9)])
def test_an_evaluation_at_no_possible_moment_is_refused_by_name(tmp_path, key, value):
    lines = history("fedavg", 0, (0.5, 0.6))
    last = max(n for n, line in enumerate(lines) if line["event"] == "evaluation")
    lines[last] = {**lines[last], key: value}
    write(tmp_path / "fedavg" / "seed-0", lines)
    if (key, value) == ("time", 2**63):
        read_series([tmp_path])
        return
    with pytest.raises(DataError, match=r"history\.jsonl is damaged"):
        read_series([tmp_path])


@pytest.mark.parametrize("key", ["time", "update", "bytes_down"])
def test_an_evaluation_before_the_one_before_is_refused_by_name(tmp_path, key):
    lines = history("fedavg", 0, (0.5, 0.6))
    last = max(n for n, line in enumerate(lines) if line["event"] == "evaluation")
    no_bytes = {"bytes_up": 0} if key == "bytes_down" else {}
    lines[last] = {**lines[last], key: 0, **no_bytes}
    write(tmp_path / "fedavg" / "seed-0", lines)
    says = r"history\.jsonl is damaged .*comes after one of"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_a_file_is_no_folder_of_runs(tmp_path):
    path = write(tmp_path / "a" / "seed-0", history("a", 0, [0.5]))
    with pytest.raises(DataError, match=f"{path} is no folder: name that of a run"):
        read_series([path])


def test_no_history_is_said(tmp_path):
    with pytest.raises(DataError, match=r"there is no history\.jsonl in .*none"):
        read_series([tmp_path / "none"])


def test_two_runs_of_one_seed_are_refused(tmp_path):
    for out in (tmp_path / "a", tmp_path / "b"):
        run(out, "fedavg")
    with pytest.raises(DataError, match="a second run of fedavg with seed 0"):
        read_series([tmp_path])


def test_different_data_sets_are_refused(tmp_path):
    run(tmp_path, "fedavg", dataset="cifar10")
    run(tmp_path, "fedbuff", dataset="imdb")
    says = r"different data sets, cifar10 \(fedavg seed 0\), imdb \(fedbuff seed 0\):"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_different_metrics_are_refused(tmp_path):
    records = history("fedavg", 0, [0.5])
    records[1]["metrics"] = {"loss": 1.0}
    write(tmp_path / "fedavg" / "seed-0", records)
    run(tmp_path, "fedbuff")
    says = r"different metrics, accuracy \(fedbuff seed 0\), loss \(fedavg seed 0\):"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_the_run_is_named_whose_accuracy_was_never_a_number(tmp_path):
    for seed in range(4):
        accuracy = None if seed == 2 else 0.5
        run(tmp_path, "fedavg", seed=seed, accuracies=[accuracy])
    says = (
        r"different metrics, accuracy \(fedavg seed 0 and 2 others\), other_loss "
        r"\(fedavg seed 2, which has no finite accuracy\): report"
    )
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_who_evaluated_must_be_the_same(tmp_path):
    records = history("fedavg", 0, [0.5])
    records[1]["source"] = "clients"
    write(tmp_path / "fedavg" / "seed-0", records)
    run(tmp_path, "fedbuff")
    says = (
        r"evaluations, by clients \(fedavg seed 0\), on the server \(fedbuff seed 0\)"
    )
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_the_clock_must_be_the_same(tmp_path):
    write(tmp_path / "a" / "seed-0", history("a", 0, [0.5], clock="wall"))
    run(tmp_path, "fedbuff")
    says = (
        r"different clocks, time \(s\) \(a seed 0\), virtual time \(s\) \(fedbuff seed"
    )
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_a_clock_that_a_history_does_not_say_may_be_another(tmp_path):
    """Those of projects of one's own did not."""
    for label in ("a", "b"):
        records = history(label, 0, [0.5])
        del records[0]["config"]["clock"]
        write(tmp_path / label / "seed-0", records)
    assert [one.label for one in read_series([tmp_path])] == ["a", "b"]
    run(tmp_path, "fedbuff")
    says = r"different clocks, not said \(a seed 0 and 1 other\), virtual time \(s\)"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_a_label_is_of_one_algorithm(tmp_path):
    for seed, algorithm in enumerate(["fedavg", "fedbuff"]):
        write(tmp_path / "runs" / f"seed-{seed}", history(algorithm, seed, [0.5]))
    says = "the folder runs are of different algorithms, fedavg, fedbuff"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


@pytest.mark.parametrize(
    ("folder", "algorithm", "other"),
    [
        ("asyncdrop", "fedbuff", "fedavg"),
        ("asyncdrop,lr=0.1", "fedbuff", "fedavg"),
        ("Mine", "Own", "Mine"),
    ],
)
def test_runs_in_a_folder_of_another_algorithms_name_are_refused(
    folder, algorithm, other, tmp_path
):
    """Where folders were renamed, a row had the name of one and the runs of another."""
    write(tmp_path / folder / "seed-0", history(algorithm, 0, [0.5]))
    write(tmp_path / "x" / "seed-0", history(other, 0, [0.5]))
    with pytest.raises(DataError, match=f"the folder {folder} has runs of {algorithm}"):
        read_series([tmp_path])


def test_a_folder_has_any_name_that_says_nothing_wrong(tmp_path):
    names = {"mine": "fedbuff", "fedavg": "AsyncStrategy", "asyncdrop,x": "asyncdrop"}
    names |= {"Own": "package.module:Own", "Own,x": "Own"}
    for folder, algorithm in names.items():
        write(tmp_path / folder / "seed-0", history(algorithm, 0, [0.5]))
    found = {one.label: one.algorithm for one in read_series([tmp_path])}
    assert found == names


def test_settings_that_differ_in_the_runs_of_a_label_are_known(tmp_path):
    run(tmp_path, "fedavg", seed=0, lr=0.1, momentum=0.9)
    run(tmp_path, "fedavg", seed=1, lr=0.2, momentum=0.9, seen=1)
    run(tmp_path, "fedavg", seed=2, momentum=0.8, ended=False)
    run(tmp_path, "fedbuff", lr=0.2)
    assert [one.differing for one in read_series([tmp_path])] == [("lr",), ()]


def test_so_are_defaults_of_an_algorithm_of_ones_own(tmp_path):
    for seed, boost in enumerate((2.0, 2.0, 3.0)):
        own = {"algorithm": "package.module:Own", "defaults": {"boost": boost}}
        first, *lines = history("Own", seed, [0.5])
        write(tmp_path / "Own" / f"seed-{seed}", [{**first, **own}, *lines])
    (series,) = read_series([tmp_path])
    assert series.differing == ("boost by default",)


def test_what_differs_beside_the_algorithms_is_known_if_no_label_says_it(tmp_path):
    run(tmp_path, "fedavg", levels=8, width=1, lr=0.1)
    run(tmp_path, "fedavg,levels=4", levels=4, width=1, lr=0.2)
    assert ground_differs_in(read_series([tmp_path])) == ()
    run(tmp_path, "fedbuff", levels=8, width=2)
    assert ground_differs_in(read_series([tmp_path])) == ("width",)
    first, *rest = history("asyncdrop", 0, [0.5], levels=4)
    write(tmp_path / "asyncdrop" / "seed-0", [{**first, "devices": 9}, *rest])
    differing = ("devices", "width", "levels")
    assert ground_differs_in(read_series([tmp_path])) == differing


@pytest.mark.parametrize(
    "name", [*sorted(FLEET_KEYS), "trace-sha256", "dirichlet-alpha", "evaluate-every"]
)
def test_another_fleet_other_shares_of_the_data_and_other_evaluations_are_known(
    tmp_path, name
):
    for value, label in enumerate(["fedavg", "fedbuff"]):
        records = history(label, 0, [0.5])
        records[0]["config"][name] = value
        write(tmp_path / label / "seed-0", records)
    assert ground_differs_in(read_series([tmp_path])) == (name,)


def test_a_label_with_a_trace_says_its_content_too(tmp_path):
    for number, trace in enumerate(["", ",trace=a.csv", ",trace=b.csv"]):
        digest = {"trace-sha256": number} if trace else {}
        run(tmp_path, f"fedbuff{trace}", trace=trace[7:], **digest)
    assert ground_differs_in(read_series([tmp_path])) == ()


def test_a_damaged_history_is_refused_by_name_or_read(tmp_path):
    """One bit of it is another, anywhere: a line that names the file, at worst."""
    path = write(tmp_path / "a" / "seed-0", history("a", 0, [0.5, 0.75, 0.8]))
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            read_series([tmp_path])
        except DataError as error:
            refused += str(error).isprintable() and str(path) in str(error)
    assert refused > 50


END = '{"event": "end", "wall": {"seconds": 0.0}}\n'


@pytest.mark.parametrize("lines", [END, OLD])
def test_a_history_without_a_readable_first_line_is_refused_by_name(tmp_path, lines):
    write(tmp_path / "a" / "seed-0", history("a", 0, [0.5]))
    path = write(tmp_path / "a" / "seed-1", [])
    path.write_text(lines)
    with pytest.raises(DataError, match=f"the history {path} has "):
        read_series([tmp_path])
    with pytest.raises(DataError, match=f"the history {path} has "):
        draw_run(path, tmp_path / "run.png")


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[0].pop("wall"),
        lambda lines: lines[0].update(config=3),
        lambda lines: lines[1].pop("time"),
        lambda lines: lines.insert(1, {"event": "update", **lines[1]["wall"]}),
        lambda lines: lines.append(lines[0]),
    ],
)
def test_a_damaged_history_is_not_drawn_and_named(tmp_path, change):
    lines = [dict(line) for line in history("a", 0, [0.5, 0.75])]
    change(lines)
    path = write(tmp_path / "a" / "seed-0", lines)
    with pytest.raises(DataError, match=f"the history {path} is damaged"):
        draw_run(path, tmp_path / "run.png")
    assert not (tmp_path / "run.png").exists()


UNITS = {
    "event": "units",
    "ranks": [0, 2],
    "updates": [3, 1],
    "bin": 2,
    "groups": [{"name": "hidden", "size": 3, "counts": [[2, 1], [1, 0]]}],
    "wall": {"seconds": 0.0},
}


@pytest.mark.parametrize(
    "change",
    [
        {"groups": []},
        {"groups": [{"name": "hidden", "size": 9, "counts": [[2, 1], [1, 0]]}]},
        {"groups": [{"name": "hidden", "size": 3, "counts": [[2, 1], [1, "a"]]}]},
        {"ranks": None},
        {"ranks": [0]},
        {"updates": [3]},
        {"updates": [3, 0]},
        {"bin": 0},
    ],
    ids=str,
)
def test_damaged_counts_of_units_are_told(tmp_path, change):
    *lines, end = history("a", 0, [0.5, 0.75])
    write(tmp_path / "whole" / "a" / "seed-0", [*lines, UNITS, end])
    assert read_series([tmp_path])[0].runs[0].units is not None
    path = write(tmp_path / "a" / "seed-1", [*lines, {**UNITS, **change}, end])
    with pytest.raises(DataError, match=f"the history {path} is damaged"):
        read_series([tmp_path])


@pytest.mark.parametrize("levels", [0.5, "x", [], ["x"], [[0.5]], [0.5, 0.25, 0.5]])
def test_what_is_no_accuracy_of_each_level_is_not_drawn_as_one(levels):
    lines = history("a", 0, [0.5, 0.75, 0.8])
    for line, value in zip(lines[1:], ([0.5, None], [0.5, 0.25], levels), strict=False):
        line["metrics"]["level-accuracy"] = value
    assert RunLog.from_records(lines[:3]).level_evaluations
    assert RunLog.from_records(lines).level_evaluations == []


def with_updates(numbers):
    first, *rest = history("fedavg", 0, (0.5,))
    updates = [
        {
            "wall": {"seconds": 1.0},
            **dict.fromkeys(("time", "dispatched_at", "compute"), 1.0),
            **dict.fromkeys(("round", "device", "rank", "staleness", "version"), 0),
            **dict.fromkeys(("bytes_down", "bytes_up", "in_flight"), 1),
            "event": "update",
            "update": number,
            "metrics": {},
        }
        for number in numbers
    ]
    return [first, *updates, *rest]


@pytest.mark.parametrize("numbers", [(1, 2, 2), (1, 3), (2,)])
def test_an_update_that_is_there_twice_or_lacks_is_refused_by_name(tmp_path, numbers):
    write(tmp_path / "whole" / "fedavg" / "seed-0", with_updates((1, 2)))
    assert read_series([tmp_path])
    write(tmp_path / "fedavg" / "seed-1", with_updates(numbers))
    says = rf"history\.jsonl is damaged .*update {numbers[-1]} is number {len(numbers)}"
    with pytest.raises(DataError, match=says):
        read_series([tmp_path])


def test_two_runs_in_one_history_are_refused_by_name(tmp_path):
    lines = history("fedavg", 0, (0.5,))
    write(tmp_path / "fedavg" / "seed-0", [*lines, *lines])
    with pytest.raises(DataError, match=r"damaged .*behind its end: another run's"):
        read_series([tmp_path])


def test_runs_that_nobody_evaluated_are_said_to_be_so(tmp_path):
    write(tmp_path / "fedavg" / "seed-0", history("fedavg", 0, ()))
    says = "no run was ever evaluated, so there is nothing to compare: fedavg seed 0 "
    with pytest.raises(DataError, match=says):
        write_report([tmp_path], tmp_path / "report")


def test_a_history_that_was_changed_after_its_end_is_refused(tmp_path):
    path = write(tmp_path / "a" / "seed-0", history("a", 0, [0.5, 0.75, 0.8]))
    mark_done(path.parent, [path.name])
    assert read_series([tmp_path])
    path.write_text(path.read_text().replace("0.75", "0.85"))
    with pytest.raises(DataError, match=f"{path} was changed after its run had ended"):
        read_series([tmp_path])
    (path.parent / "done.json").write_text("{}")  # it says nothing
    assert read_series([tmp_path])
