"""Equal virtual time, by hand: how long, and how good."""

import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.lr_schedule import updates_per_second
from flwr_asyncdrop.cli import equal_time
from flwr_asyncdrop.cli.equal_time import (
    MOST_ROUNDS,
    EqualTime,
    default_seconds,
    read_runs,
)
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from tests.report.histories import history, series, write

FULL = TaskCost(1.0, 100, 100)


@pytest.mark.parametrize(
    ("milestones", "division", "expected"),
    [
        ("0.5,0.75", 1, "450s,675s"),
        ("0.5,0.75", 9, "50s,75s"),
        ("450s,675s", 9, "50s,75s"),
        ("", 3, ""),
    ],
)
def test_milestones_are_where_they_are_in_a_whole_run(milestones, division, expected):
    config = RunConfig(lr_milestones=milestones)
    assert EqualTime(900.0, 0.8).length(config, division) == {
        "max-seconds": 900 / division,
        "num-rounds": MOST_ROUNDS,
        "lr-milestones": expected,
    }


def test_odd_lengths_are_settings_that_a_run_config_takes():
    length = EqualTime(1234.5678, 0.8).length(RunConfig(), 9)
    config = RunConfig.parse(length)
    assert config.max_seconds == pytest.approx(1234.5678 / 9, rel=1e-5)
    assert config.milestones == pytest.approx((68.5871, 102.881))


def test_another_length_has_another_folder():
    measure = EqualTime(900.0, 0.8)
    assert {measure.folder(number, 9) for number in (1, 2)} == {"search-100s"}
    assert measure.folder(1, 3) == "search-300s"
    assert measure.last_folder == "final-900s"
    assert EqualTime(901.0, 0.8).last_folder == "final-901s"


def runs_of(tmp_path, label, seeds=(0,)):
    settings = {"algo": label.partition(",")[0], "max-seconds": 60.0}
    return [
        RunSpec(label, tmp_path / label / f"seed-{n}", {**settings, "seed": n}, 4)
        for n in seeds
    ]


def test_scores_by_hand(tmp_path, monkeypatch):
    found = [
        series("fedavg", {0: [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]}),
        series("fedbuff", {0: [0.1, 0.9, 0.9, 0.9, 0.9, 0.9]}),
        series("asyncdrop", {0: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}),
    ]
    monkeypatch.setattr(equal_time, "read_runs", lambda runs: found)
    runs = [
        run
        for label in ("fedbuff", "fedavg", "async-fedavg", "asyncdrop")
        for run in runs_of(tmp_path, label)
    ]
    # The first point is after 10 s of 60, and the best one ends with 1.0.
    scores = EqualTime(60.0, "0.8best").scores(runs)
    assert scores == [
        pytest.approx(40 / 60),
        pytest.approx(10 / 60),
        None,
        pytest.approx(-0.2),
    ]
    assert EqualTime(60.0, 0.9).scores(runs)[1] == 0.0
    monkeypatch.setattr(equal_time, "read_runs", lambda runs: [])
    assert EqualTime(60.0, 0.9).scores(runs) == [None] * 4


def test_runs_that_are_cut_off_are_left_out(tmp_path):
    runs = runs_of(tmp_path, "fedavg")
    write(runs[0].folder, history("fedavg", 0, [0.1, 0.9], ended=False))
    (found,) = read_runs(runs)
    assert (found.label, found.runs) == ("fedavg", {})


def test_runs_are_put_together_by_candidate_in_any_order(tmp_path):
    labels = ("fedavg,lr=0.1", "fedavg,lr=0.2")
    first, second = (runs_of(tmp_path, label, seeds=(0, 1)) for label in labels)
    found = read_runs([second[0], first[0], second[1], first[1]])
    assert tuple(one.label for one in found) == labels


def test_of_a_loss_what_is_far_above_the_target_is_the_worse(tmp_path, monkeypatch):
    nan = float("nan")
    found = [
        series("fedavg", {0: [0.9, 0.5]}, metric="loss"),
        series("fedbuff", {0: [0.9, 0.7]}, metric="loss"),
        series("asyncdrop", {0: [0.3, 0.2]}, metric="loss"),
        series("async-fedavg", {0: [0.3, nan]}, metric="loss"),
    ]
    monkeypatch.setattr(equal_time, "read_runs", lambda runs: found)
    runs = [run for one in found for run in runs_of(tmp_path, one.label)]
    scores = EqualTime(60.0, 0.4).scores(runs)
    assert scores == [*map(pytest.approx, (-0.1, -0.3, 50 / 60)), None]


def test_where_all_have_diverged_all_are_out(tmp_path, monkeypatch):
    found = [series("fedavg", {0: [0.9, float("nan")]}, metric="loss")]
    monkeypatch.setattr(equal_time, "read_runs", lambda runs: found)
    runs = runs_of(tmp_path, "fedavg")
    assert EqualTime(20.0, "0.95best").scores(runs) == [None]


def test_updates_a_second_by_hand():
    fast, slow = DeviceProfile(2.0), DeviceProfile(8.0)
    # One of each rank is in flight.
    assert updates_per_second([fast, fast, slow, slow], [FULL] * 2) == 1 / 2 + 1 / 8
    # Any of them: two slots, and 2.5 s, as two of each take 20 s.
    uniform = updates_per_second([fast, fast, slow, slow], [FULL] * 2, uniform=True)
    assert uniform == 2 * 4 / 20
    # More slots than devices leave some of them empty.
    assert updates_per_second([fast], [FULL] * 2) == 1 / 2
    lossy = DeviceProfile(2.0, dropout=0.5)
    assert updates_per_second([lossy], [FULL], deadline=3.0) == 0.5 / (1 + 3)


def test_a_fleet_of_one_speed_takes_a_task_a_round():
    small = {"model": "mlp", "num-rounds": 15, "local-steps": 5, "levels": 1}
    assert default_seconds(RunConfig.parse(small), 104) == 75
    slower = RunConfig.parse({**small, "step-seconds": 3.0, "in-flight": 2})
    assert default_seconds(slower, 104) == 225


@pytest.mark.parametrize("selection", ["stratified", "uniform"])
def test_of_fewer_devices_than_may_be_in_flight_all_train(selection, tmp_path):
    """As if eight were in flight, they took 45.71 s, or 60."""
    trace = tmp_path / "fleet.csv"
    trace.write_text("seconds_per_step\n1\n4\n4\n")
    small = {"model": "mlp", "num-rounds": 4, "local-steps": 5, "trace": str(trace)}
    config = RunConfig.parse({**small, "selection": selection})
    # 12 updates: while the fastest does four, the others do one each.
    seconds = 12 / (1 / 5 + 2 / 20)
    assert default_seconds(config, 3) == pytest.approx(seconds)


def test_bytes_take_their_time():
    small = {"model": "mlp", "width": 0.25, "num-rounds": 10, "local-steps": 5}
    slow = {**small, "levels": 1, "bandwidth-mbps": 0.008}
    size = 4 * (64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10)
    expected = 10 * (5 + 2 * size / 1000)
    assert default_seconds(RunConfig.parse(slow), 104) == pytest.approx(
        expected, rel=1e-3
    )
