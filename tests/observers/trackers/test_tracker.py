"""What all trackers do: the points by hand, and failures that end no run."""

import json
import logging
import math
import os
import threading
import time
from importlib.util import find_spec

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from flwr_asyncdrop import AsyncStrategy, speed_levels
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers import TensorBoardTracker, WandbTracker
from flwr_asyncdrop.observers.trackers.mlflow import Names
from flwr_asyncdrop.observers.trackers.round_means import RoundMeans
from flwr_asyncdrop.observers.trackers.tracker import Tracker
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from tests.grids import HandlerGrid
from tests.observers.orders import begin, resume
from tests.runs import answer, mlp, plus_one


class Notes(Tracker):
    """Keeps in lists what it is given, and fails where it is told to."""

    tool = "Notes"

    def __init__(self, fails_at=()):
        super().__init__({"lr": 0.5})
        self.fails_at, self.calls = fails_at, []

    def _note(self, what, *values):
        self.calls.append((what, *values))
        if what in self.fails_at:
            raise OSError(28, "No space left on device")

    def begin(self, settings, began):
        self._note("begin", settings)
        return {"run": "a"}

    def resume(self, place, update, began):
        self._note("resume", place, update)
        return place

    def write(self, values, update, at):
        self._note("write", dict(values), update, round(at - self._began, 3))

    def finish(self, summary, update, at, outcome):
        self._note("finish", dict(summary), outcome)

    def release(self):
        self._note("release")

    def of(self, what):
        return [call[1:] for call in self.calls if call[0] == what]


def state_of(**values):
    state = RunState.start_from({}, seed=3)
    for name, value in values.items():
        setattr(state, name, value)
    return state


def merged(message, staleness, late=False, **metrics):
    reply = Reply.__new__(Reply)
    object.__setattr__(reply, "metrics", answer(message, {}, **metrics).content)
    return Merged(None, reply, staleness, round=1, late=late)


@pytest.fixture
def message():
    return Message(RecordDict(), dst_node_id=1, message_type="train")


@pytest.mark.parametrize("resumes", [False, True])
def test_a_second_run_of_the_same_tracker_has_its_points(message, resumes):
    notes = Notes()
    begin(notes, state_of())
    notes.on_update(state_of(), merged(message, 1, loss=3.0))
    saved = notes.state_dict()
    notes.on_interrupt(state_of(updates=1))
    if resumes:
        notes.load_state_dict(saved)
        resume(notes, state_of(updates=1))
    else:
        begin(notes, state_of())
    notes.on_update(state_of(), merged(message, 1, loss=5.0))
    notes.on_round(state_of(updates=2), 1)
    (((values, *_)),) = notes.of("write")
    assert values["train/loss"] == (4.0 if resumes else 5.0)
    notes.on_end(state_of(updates=2))
    assert [outcome for _, outcome in notes.of("finish")] == ["interrupted", "finished"]


def test_the_points_of_a_round_by_hand(message):
    notes = Notes()
    begin(notes, state_of())
    ((settings,),) = notes.of("begin")
    assert (settings["lr"], settings["seed"]) == (0.5, 3)
    assert {"flwr-asyncdrop", "flwr", "torch", "python"} <= settings.keys()
    notes.on_update(state_of(), merged(message, 1, loss=3.0))
    notes.on_update(state_of(), merged(message, 4, late=True, loss=1.0, other=7))
    notes.on_failure(state_of(), None, "dropout", "lost")
    counts = {"bytes_down": 10, "bytes_up": 20, "failures": {"dropout": 1}}
    notes.on_round(state_of(updates=2, time=12.5, **counts), 1)
    # The sums begin again with each round.
    notes.on_update(state_of(), merged(message, 2, loss=5.0))
    notes.on_round(state_of(updates=3, time=20.0, **counts), 2)
    first, second = notes.of("write")
    assert first == (
        {
            "round/staleness": 2.5,
            "round/late": 1,
            "round/failures": 1,
            "train/num-examples": 1.0,
            "train/loss": 2.0,
            "train/other": 7.0,
            "total/seconds": 12.5,
            "total/bytes_down": 10.0,
            "total/bytes_up": 20.0,
            "total/failures": 1.0,
            "total/rounds": 1,
        },
        2,
        12.5,
    )
    assert second[1:] == (3, 20.0)
    assert (second[0]["train/loss"], second[0]["round/failures"]) == (5.0, 0)
    assert "train/other" not in second[0]


def test_an_evaluation_stands_where_its_model_was():
    notes = Notes()
    begin(notes, state_of())
    metrics = MetricRecord({"accuracy": 0.5, "by-level": [0.1, 0.2], "count": 3})
    notes.on_evaluation(
        state_of(updates=9, time=90.0), Evaluation("server", 1, 4, 40.0, metrics)
    )
    assert notes.of("write") == [
        ({"server/accuracy": 0.5, "server/count": 3.0}, 4, 40.0)
    ]


def test_what_the_aggregator_says_is_the_mean_of_a_rounds_steps():
    notes = Notes()
    begin(notes, state_of())
    for staleness in (1.0, math.nan, 4.0):
        notes.on_step(state_of(), {"staleness": staleness, "never": math.inf})
    saved = json.loads(json.dumps(notes.state_dict()["round"]))
    assert str(RoundMeans.from_state(saved).values()) == str(notes._round.values())
    notes.on_round(state_of(), 1)
    notes.on_round(state_of(), 2)
    (first, *_), (second, *_) = notes.of("write")
    assert first["aggregator/staleness"] == 2.5
    assert math.isnan(first["aggregator/never"])
    assert "aggregator/staleness" not in second


def test_a_round_of_a_version_that_knew_no_steps():
    state = RoundMeans(updates=2).state_dict()
    old = {name: each for name, each in state.items() if not name.startswith("step_")}
    assert RoundMeans.from_state(old) == RoundMeans(updates=2)


def test_names_that_clients_choose_are_bounded(message):
    means = RoundMeans()
    means.add(merged(message, 0, **{f"m{n}": n for n in range(100)}))
    assert len([name for name in means.values() if name.startswith("train/")]) == 32


def test_one_clients_nan_is_no_nan_of_its_round(message):
    means = RoundMeans()
    for loss, accuracy in ((2.0, math.nan), (math.nan, math.inf), (4.0, -math.inf)):
        means.add(merged(message, 0, loss=loss, accuracy=accuracy))
    again = RoundMeans.from_state(json.loads(json.dumps(means.state_dict())))
    for each in (means.values(), again.values()):
        assert each["train/loss"] == 3.0
        assert math.isnan(each["train/accuracy"])  # that of all is shown


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("server/accuracy", "server/accuracy"),
        ("server/f1 (macro)", "server/f1 _macro_"),
        ("server/准确率", "server/准确率"),
        ("train/loss/", "train/loss/_"),
        ("train//loss", "train/_/loss"),
        ("train/../loss/./x..", "train/_/loss/_/x.."),
        ("train/" + "a" * 243 + "/b", "train/" + "a" * 243),
    ],
)
def test_mlflow_takes_every_name(name, taken):
    assert Names().of({name: 0.5}) == {taken: 0.5}


def test_long_names_that_mlflow_cuts_stay_apart():
    names = [f"{'x' * 300}{number}" for number in range(3)]
    found = Names().of(dict.fromkeys(names, 0.0))
    assert len(found) == 3
    assert max(map(len, found)) <= 250


def test_a_round_that_is_half_full_is_in_the_checkpoint(message):
    notes, again = Notes(), Notes()
    begin(notes, state_of())
    notes.on_update(state_of(), merged(message, 3, loss=3.0))
    again.load_state_dict(json.loads(json.dumps(notes.state_dict())))
    resume(again, state_of(updates=1))
    assert again.of("resume") == [({"run": "a"}, 1)]
    again.on_update(state_of(), merged(message, 0, loss=1.0))
    again.on_round(state_of(updates=2), 1)
    ((values, *_),) = again.of("write")
    assert (values["train/loss"], values["round/staleness"]) == (2.0, 1.5)


def test_a_run_that_was_not_tracked_before_begins_when_it_resumes():
    notes = Notes()
    resume(notes, state_of(updates=8, time=50.0))
    assert len(notes.of("begin")) == 1
    notes.on_round(state_of(updates=8, time=60.0), 4)
    assert notes.of("write")[0][2] == 60.0


def run_with(callbacks):
    strategy = AsyncStrategy(
        mlp(),
        torch.zeros(1, 4),
        aggregator=Mixing(0.5),
        in_flight=2,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=callbacks,
    )
    return strategy.start(
        grid=HandlerGrid(plus_one),
        initial_arrays=ArrayRecord(mlp().state_dict()),
        num_rounds=3,
        evaluate_fn=lambda number, arrays: MetricRecord({"loss": 1.0 / (number + 1)}),
    )


@pytest.mark.parametrize("fails_at", ["begin", "write", "finish"])
def test_a_tool_that_fails_is_named_once_and_ends_no_run(fails_at, caplog):
    notes = Notes([fails_at, "release"])
    with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
        result = run_with([notes])
    assert max(result.evaluate_metrics_serverapp) == 3
    said = [r.getMessage() for r in caplog.records if "Notes" in r.getMessage()]
    assert len(said) == 1
    assert "Notes gets no more points" in said[0]
    assert "No space left on device" in said[0]
    assert len(notes.of(fails_at)) == 1
    # It is let go at once, and that may fail, too.
    assert [call[0] for call in notes.calls[-2:]] == [fails_at, "release"]


class Hangs(Notes):
    """Never answers where it is told to."""

    patience = 0.1

    def __init__(self, hangs_at):
        super().__init__()
        self.hangs_at, self.is_let_go = hangs_at, threading.Event()

    def _note(self, what, *values):
        super()._note(what, *values)
        if what == self.hangs_at:
            self.is_let_go.wait(timeout=60)


@pytest.mark.parametrize("hangs_at", ["begin", "write", "finish"])
def test_a_tool_that_never_answers_is_given_up_and_ends_no_run(hangs_at, caplog):
    tool = Hangs(hangs_at)
    with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
        result = run_with([tool])
    tool.is_let_go.set()
    assert max(result.evaluate_metrics_serverapp) == 3
    said = [r.getMessage() for r in caplog.records if "Notes" in r.getMessage()]
    assert said == [
        "Notes gets no more points (TimeoutError: it has not returned for 0.1 s), and "
        "the run continues"
    ]
    assert len(tool.of(hangs_at)) == 1
    assert tool.calls[-1][0] == hangs_at


def test_a_tool_that_answers_too_late_leaves_nothing_in_the_checkpoint():
    tool = Hangs("begin")
    begin(tool, state_of())
    tool.is_let_go.set()
    time.sleep(0.05)
    assert tool.state_dict()["place"] == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_second_signal_waits_for_no_tool_at_the_end(error):
    class Ends(Notes):
        def _note(self, what, *values):
            super()._note(what, *values)
            if what == "write":
                raise error

    notes = Ends()
    with pytest.raises(error):
        run_with([notes])
    assert notes.calls[-1][0] == "write"


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "finished"), (RuntimeError("bad"), "failed")]
)
def test_how_it_ended(error, outcome):
    class Breaks(Notes):
        def on_round(self, state, number):
            if error is not None and number == 2:
                raise error
            super().on_round(state, number)

    notes = Breaks()
    if error is None:
        run_with([notes])
    else:
        with pytest.raises(RuntimeError, match="bad"):
            run_with([notes])
    ((summary, ended),) = notes.of("finish")
    assert ended == outcome
    assert summary["updates"] == (6 if error is None else 4)


def test_a_run_in_weights_and_biases_that_broke_resumes_in_the_same_process(
    tmp_path, caplog, monkeypatch
):
    pytest.importorskip("wandb", reason="needs wandb")

    def fail(*_):
        raise OSError(28, "No space left on device")

    tracker = WandbTracker(mode="offline", folder=tmp_path)
    begin(tracker, state_of())
    tracker.on_round(state_of(updates=1, time=1.0), 1)
    with monkeypatch.context() as patch:
        patch.setattr(tracker._run, "log", fail)
        tracker.on_round(state_of(updates=2, time=2.0), 2)
    saved = tracker.state_dict()
    tracker.on_interrupt(state_of(updates=3))
    again = WandbTracker(mode="offline", folder=tmp_path)
    again.load_state_dict(saved)
    caplog.clear()
    resume(again, state_of(updates=3, time=3.0))
    again.on_round(state_of(updates=4, time=4.0), 4)
    again.on_end(state_of(updates=4, time=4.0))
    # The library says itself where its files are.
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []
    (written,) = tmp_path.glob("wandb/written-*.json")
    assert json.loads(written.read_text())["total/rounds"] == 4


class TestTensorBoard:
    """What needs the library, and no run."""

    @pytest.fixture(autouse=True)
    def installed(self):
        if find_spec("tensorboard") is None:
            pytest.skip("tensorboard is not installed")

    def test_the_points_of_another_run_stay(self, tmp_path):
        begin(TensorBoardTracker(tmp_path), state_of())
        (before,) = tmp_path.iterdir()
        with pytest.raises(ConfigError, match="has the points of another run"):
            begin(TensorBoardTracker(tmp_path), state_of())
        assert list(tmp_path.iterdir()) == [before]

    def test_a_folder_by_a_relative_path_stays_where_it_was(
        self, tmp_path, monkeypatch
    ):
        """Somebody's evaluate_fn may change the current folder."""
        monkeypatch.chdir(tmp_path)
        tracker = TensorBoardTracker("run")
        begin(tracker, state_of())
        (file,) = (tmp_path / "run").iterdir()
        length = file.stat().st_size
        monkeypatch.chdir("/")
        tracker.on_round(state_of(updates=2, time=5.0), 1)
        assert file.stat().st_size > length

    def test_a_folder_that_cannot_be_written(self, tmp_path, caplog):
        (tmp_path / "file").write_text("in the way")
        tracker = TensorBoardTracker(tmp_path / "file")
        with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
            begin(tracker, state_of())
            tracker.on_round(state_of(), 1)
            tracker.on_end(state_of())
        (line,) = [r.getMessage() for r in caplog.records]
        assert line.startswith("TensorBoard gets no more points")
        assert "exists" in line

    def test_points_that_were_lost_are_told(self, tmp_path, caplog):
        tracker = TensorBoardTracker(tmp_path)
        begin(tracker, state_of())
        saved = tracker.state_dict()
        for path in tmp_path.iterdir():
            path.unlink()
        again = TensorBoardTracker(tmp_path)
        again.load_state_dict(saved)
        with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
            resume(again, state_of(updates=1))
        assert "has lost points of this run" in caplog.text

    def test_a_clock_that_was_set_back_leaves_the_order_of_files(
        self, tmp_path, monkeypatch
    ):
        """TensorBoard reads on in a file with a greater name alone."""
        from tensorboard.backend.event_processing import event_accumulator

        tracker = TensorBoardTracker(tmp_path)
        begin(tracker, state_of())
        reader = event_accumulator.EventAccumulator(str(tmp_path))
        for update in (1, 2):
            tracker.on_round(state_of(updates=update, time=float(update)), update)
            saved = tracker.state_dict()
            reader.Reload()
            now = time.time() - 3600 * update
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda now=now: now)
                tracker = TensorBoardTracker(tmp_path)
                tracker.load_state_dict(saved)
                resume(tracker, state_of(updates=update, time=float(update)))
        tracker.on_round(state_of(updates=3, time=3.0), 3)
        reader.Reload()
        assert [e.step for e in reader.Scalars("total/rounds")] == [1, 2, 3]

    def test_a_checkpoint_after_the_end_has_all_points_but_the_end(self, tmp_path):
        """Whichever of two callbacks hears first that a run ends early."""
        tracker = TensorBoardTracker(tmp_path)
        begin(tracker, state_of())
        tracker.on_round(state_of(updates=2, time=5.0), 1)
        (file,) = tmp_path.iterdir()
        length = file.stat().st_size
        tracker.on_end(state_of(updates=3, time=6.0, ended="timeout"))
        assert file.stat().st_size > length
        assert tracker.state_dict()["place"]["files"] == {file.name: length}

    @pytest.fixture
    def fails(self, monkeypatch):
        """Return what makes a write stop half-way, or all of them go well again."""
        add = TensorBoardTracker._record

        def half(tracker, event):
            add(tracker, event)
            with tracker._file.open("rb+") as file:
                file.truncate(file.seek(0, os.SEEK_END) - 3)
            raise OSError(28, "No space left on device")

        def fails(now):
            record = half if now else add
            monkeypatch.setattr(TensorBoardTracker, "_record", record)

        return fails

    def test_a_run_that_resumes_after_the_disk_was_full_has_all_points_before(
        self, tmp_path, fails
    ):
        from tensorboard.backend.event_processing import event_accumulator

        def add_round(tracker, number):
            tracker.on_round(state_of(updates=number, time=float(number)), number)

        tracker = TensorBoardTracker(tmp_path)
        begin(tracker, state_of())
        add_round(tracker, 1)
        tracker.state_dict()
        add_round(tracker, 2)
        fails(True)
        add_round(tracker, 3)
        fails(False)
        add_round(tracker, 4)
        saved = tracker.state_dict()
        again = TensorBoardTracker(tmp_path)
        again.load_state_dict(saved)
        resume(again, state_of(updates=4, time=4.0))
        add_round(again, 5)
        reader = event_accumulator.EventAccumulator(str(tmp_path))
        reader.Reload()
        assert [e.step for e in reader.Scalars("total/rounds")] == [1, 2, 5]

    def test_a_run_that_could_not_begin_here_can_resume_here(self, tmp_path, fails):
        tracker = TensorBoardTracker(tmp_path)
        fails(True)
        begin(tracker, state_of())
        fails(False)
        again = TensorBoardTracker(tmp_path)
        again.load_state_dict(tracker.state_dict())
        resume(again, state_of(updates=4, time=4.0))
        (file,) = tmp_path.iterdir()
        length = file.stat().st_size
        again.on_round(state_of(updates=5, time=5.0), 1)
        assert file.stat().st_size > length

    def test_files_of_others_stay_when_a_run_resumes(self, tmp_path):
        tracker = TensorBoardTracker(tmp_path)
        begin(tracker, state_of())
        saved = tracker.state_dict()
        tracker.on_round(state_of(updates=2, time=5.0), 1)
        other = tmp_path / "events.out.tfevents.1.host.other"
        other.write_bytes(b"mine")
        again = TensorBoardTracker(tmp_path)
        again.load_state_dict(saved)
        resume(again, state_of(updates=1))
        (name,) = saved["place"]["files"]
        assert (tmp_path / name).stat().st_size == saved["place"]["files"][name]
        assert other.read_bytes() == b"mine"
