import errno
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.exceptions import (
    CheckpointError,
    ConfigError,
    FolderError,
)
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.report import summarise
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import UnitGroup
from flwr_asyncdrop.wire import Reply
from tests.observers.orders import begin, order_of, resume
from tests.states import saved_and_read


def state():
    return RunState.start_from({"w": torch.zeros(10)}, seed=3)


def order(kept=None):
    cost = TaskCost(0.5, 100, 100)
    return order_of(2, device=4, dispatched_at=1.5, kept=kept, cost=cost)


def merge(writer, run, **metrics):
    run.updates += 1
    run.version += 1
    run.time += 1.0
    record = RecordDict({"metrics": MetricRecord({"num-examples": 7, **metrics})})
    reply = Reply({}, 7, record, num_bytes=120)
    writer.on_update(run, Merged(order(), reply, staleness=5, round=1))


def evaluation(number, metrics, source="server"):
    record = None if metrics is None else MetricRecord(metrics)
    return Evaluation(source, number, 8 * number, 2.0 * number, record)


def events(path):
    return [record["event"] for record in read_history(path)]


def writer_at(path):
    ticks = iter(range(1000))
    return HistoryWriter(path, {"algorithm": "x"}, {"cpu": "y"}, lambda: next(ticks))


def test_a_device_says_nothing_of_the_seconds_of_a_run(tmp_path):
    writer, run = writer_at(tmp_path / "history.jsonl"), state()
    begin(writer, run)
    merge(writer, run, **{"wall-seconds": 1e308, "wall-train-seconds": 0.5})
    writer.on_end(run)
    _, update, _ = read_history(tmp_path / "history.jsonl")
    assert update["wall"]["seconds"] < 10
    assert update["wall"]["train-seconds"] == 0.5
    assert update["metrics"]["wall-seconds"] == 1e308


def test_the_lines_of_a_small_run(tmp_path):
    path, run = tmp_path / "deep" / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    merge(writer, run, **{"train-loss": 0.25, "wall-train-seconds": 0.5})
    writer.on_failure(run, order(), "client-error", "it raised")
    writer.on_end(run)
    first, update, failure, end = read_history(path)
    assert without_wall(first) == {
        "event": "run",
        "schema": 2,
        "seed": 3,
        "devices": 0,
        "full_bytes": 168,
        "algorithm": "x",
    }
    assert first["wall"]["cpu"] == "y"
    assert without_wall(update) == {
        "event": "update",
        "update": 1,
        "round": 1,
        "time": 1.0,
        "device": 4,
        "rank": 2,
        "dispatched_at": 1.5,
        "staleness": 5,
        "version": 1,
        "bytes_down": 100,
        "bytes_up": 120,
        "compute": 0.5,
        "in_flight": 0,
        "metrics": {"num-examples": 7, "train-loss": 0.25},
    }
    assert update["wall"]["train-seconds"] == 0.5
    assert (failure["device"], failure["reason"]) == (4, "it raised")
    assert without_wall(end) == {
        "event": "end",
        "updates": 1,
        "time": 1.0,
        "bytes_down": 0,
        "bytes_up": 0,
        "failures": {},
    }


def test_what_went_wrong_is_only_there_if_it_did(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    run.updates = 1
    reply = Reply({}, 7, RecordDict(), num_bytes=120)
    writer.on_update(run, Merged(order(), reply, staleness=5, round=1, late=True))
    run.duplicates, run.ended = 2, "timeout"
    writer.on_end(run)
    _, update, end = read_history(path)
    assert update["late"] is True
    assert (end["duplicates"], end["ended"]) == (2, "timeout")


def test_a_run_that_raises_does_not_end_like_one_that_is_over(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    try:
        raise ValueError
    except ValueError:
        writer.on_end(run)
    _, end = read_history(path)
    assert end["ended"] == "error"
    assert not summarise(read_history(path)).complete


def test_joules_are_there_if_the_fleet_counts_them(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    run.joules = 2.5
    writer = writer_at(path)
    begin(writer, run)
    writer.on_evaluation_due(run, "server", 0)
    run.joules = 7.75
    writer.on_evaluation(run, evaluation(0, {"accuracy": 0.5}))
    writer.on_end(run)
    first, at_start, end = read_history(path)
    assert "joules" not in first
    assert (at_start["joules"], end["joules"]) == (2.5, 7.75)


def test_a_late_evaluation_stands_where_it_was_asked_for(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    writer.on_evaluation_due(run, "server", 0)
    merge(writer, run)
    writer.on_evaluation_due(run, "server", 1)
    merge(writer, run)
    assert events(path) == ["run"]
    writer.on_evaluation(run, evaluation(0, {"accuracy": 0.5}))
    assert events(path) == ["run", "evaluation", "update"]
    writer.on_evaluation(run, evaluation(1, {"accuracy": 0.6}))
    writer.on_end(run)
    assert events(path) == [
        "run",
        "evaluation",
        "update",
        "evaluation",
        "update",
        "end",
    ]


def test_an_evaluation_has_the_bytes_of_when_it_was_asked_for(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    run.bytes_down, run.bytes_up = 30, 20
    writer.on_evaluation_due(run, "server", 1)
    run.bytes_down, run.bytes_up = 70, 60
    metrics = {"accuracy": 0.5, "level-accuracy": [0.25, 0.75]}
    writer.on_evaluation(run, evaluation(1, metrics))
    writer.on_end(run)
    _, line, _ = read_history(path)
    assert without_wall(line) == {
        "event": "evaluation",
        "source": "server",
        "round": 1,
        "update": 8,
        "time": 2.0,
        "bytes_down": 30,
        "bytes_up": 20,
        "metrics": metrics,
    }


def test_the_units_that_were_trained_stand_before_the_end(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    kept = {UnitGroup("hidden", 3, "internal"): torch.tensor([0, 2])}
    reply = Reply({}, 7, RecordDict({"metrics": MetricRecord()}), num_bytes=120)
    writer.on_update(run, Merged(order(kept), reply, staleness=0, round=1))
    writer.on_end(run)
    assert events(path) == ["run", "update", "units", "end"]
    units = list(read_history(path))[2]
    assert without_wall(units) == {
        "event": "units",
        "ranks": [2],
        "updates": [1],
        "bin": 1,
        "groups": [{"name": "hidden", "size": 3, "counts": [[1, 0, 1]]}],
    }


def test_a_second_run_of_the_same_writer_has_nothing_of_the_first(tmp_path):
    path = tmp_path / "history.jsonl"
    kept = {UnitGroup("hidden", 3, "internal"): torch.tensor([0, 2])}
    reply = Reply({}, 7, RecordDict({"metrics": MetricRecord()}), num_bytes=120)

    def run_with(writer):
        run = state()
        begin(writer, run)
        for run.updates in range(1, 4):
            writer.on_update(run, Merged(order(kept), reply, staleness=0, round=1))
        writer.on_evaluation_due(run, "server", 1)
        writer.on_failure(run, order(), "late", "it came late")
        run.ended = "failures"
        writer.on_end(run)
        return [without_wall(line) for line in read_history(path)]

    writer = HistoryWriter(path, every=5, overwrite=True)
    first = run_with(writer)
    assert run_with(writer) == first
    begin(writer, state())
    assert not writer.ended_early
    writer.close()


def test_an_evaluation_that_measured_nothing_has_no_line(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    for source in ("server", "clients"):
        writer.on_evaluation_due(run, source, 0)
    writer.on_evaluation(run, evaluation(0, {"loss": 1.0}, "clients"))
    writer.on_evaluation(run, evaluation(0, None))
    writer.on_end(run)
    assert events(path) == ["run", "evaluation", "end"]


def test_the_end_does_not_wait_for_an_evaluation_that_never_came(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    writer.on_evaluation_due(run, "server", 0)
    merge(writer, run)
    writer.on_end(run)
    assert events(path) == ["run", "update", "end"]


def test_an_old_file_is_replaced_only_on_demand(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("old")
    writer = writer_at(path)
    with pytest.raises(ConfigError, match="has the history of another run"):
        begin(writer, state())
    writer.on_end(state())
    assert path.read_text() == "old"
    again = HistoryWriter(path, overwrite=True)
    begin(again, state())
    again.on_end(state())
    assert events(path) == ["run", "end"]


def test_two_cannot_write_one_file(tmp_path):
    path, other = tmp_path / "history.jsonl", tmp_path / "other.jsonl"
    writer = writer_at(path)
    begin(writer, state())

    def second(path):
        writer = HistoryWriter(path, overwrite=True)
        begin(writer, state())
        writer.on_end(state())

    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(FolderError, match="is in use by another thread"):
            thread.submit(second, path).result()
        thread.submit(second, other).result()
    writer.on_end(state())
    assert events(path) == ["run", "end"]
    assert [p.name for p in tmp_path.glob(".history*")] == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_null(tmp_path, number):
    path, run = tmp_path / "history.jsonl", state()
    writer = HistoryWriter(path, {"config": {"max-seconds": number}})
    begin(writer, run)
    merge(writer, run, **{"loss": number, "wall-seconds-of-it": number})
    writer.on_evaluation_due(run, "server", 1)
    writer.on_evaluation(run, evaluation(1, {"each": [0.5, number], "loss": number}))
    writer.on_end(run)

    def refuse(name):
        raise AssertionError(name)

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    first, update, line, _ = read_history(path)
    assert first["config"] == {"max-seconds": None}
    assert update["metrics"] == {"num-examples": 7, "loss": None}
    assert update["wall"]["seconds-of-it"] is None
    assert line["metrics"] == {"each": [0.5, None], "loss": None}


class Full:
    """A disk that takes so many bytes."""

    def __init__(self, file, room):
        self._file, self.room = file, room

    def write(self, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 150, 600])
def test_lines_that_a_full_disk_does_not_take_come_when_it_does(room, tmp_path, caplog):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    first = path.read_bytes()
    disk = writer._file._file._file = Full(writer._file._file._file, room)
    for _ in range(4):
        merge(writer, run)
        assert path.read_bytes().endswith(b"}\n")
    assert 1 <= len(events(path)) < 5
    assert path.read_bytes().startswith(first)
    assert len(caplog.messages) == 1
    assert "No space left on device; the run continues" in caplog.messages[0]
    saved = saved_and_read(writer.state_dict())
    assert saved["num_bytes"] == len(path.read_bytes())
    disk.room = 10_000
    merge(writer, run)
    writer.on_end(run)
    assert events(path) == ["run", *["update"] * 5, "end"]
    assert [line.get("update") for line in read_history(path)][1:6] == [1, 2, 3, 4, 5]

    again = writer_at(path)
    again.load_state_dict(saved)
    resume(again, run)
    run.updates = 4
    merge(again, run)
    again.on_end(run)
    assert [line.get("update") for line in read_history(path)][1:6] == [1, 2, 3, 4, 5]


def test_an_end_that_the_disk_does_not_take_can_be_written_later(tmp_path, caplog):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    disk = writer._file._file._file = Full(writer._file._file._file, 0)
    writer.on_end(run)
    assert "lacks its end, 1 line:" in caplog.text
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    disk.room = 10_000
    writer.flush()
    writer.close()
    assert events(path) == ["run", "end"]


def saved_run(path):
    """Return the state of a run after two updates, of which more were written."""
    writer, run = writer_at(path), state()
    begin(writer, run)
    merge(writer, run)
    merge(writer, run)
    saved = saved_and_read(writer.state_dict())
    merge(writer, run)
    writer.on_interrupt(run)
    return saved


@pytest.mark.parametrize("place", [0, 0.5, 0.999])
def test_a_bit_that_flipped_before_the_checkpoint_is_refused(place, tmp_path):
    path = tmp_path / "history.jsonl"
    saved = saved_run(path)
    data = bytearray(path.read_bytes())
    data[int(place * saved["num_bytes"])] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="was changed, or is of another run"):
        writer_at(path).load_state_dict(saved)
    assert path.read_bytes() == data


@pytest.mark.parametrize("text", ["", "of another run"])
def test_a_writer_that_is_new_joins_no_run_that_has_begun(text, tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="cannot begin in the middle of a run"):
        writer_at(path).on_resume(state())
    assert path.read_text() == text


def test_a_bit_that_flipped_behind_the_checkpoint_is_written_again(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    saved = saved_run(path)
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    writer = writer_at(path)
    writer.load_state_dict(saved)
    resume(writer, run)
    writer.on_end(run)
    assert events(path) == ["run", "update", "update", "end"]


def test_the_history_of_another_run_is_refused_even_if_it_says_the_same(tmp_path):
    saved = saved_run(tmp_path / "one.jsonl")
    saved_run(tmp_path / "two.jsonl")
    with pytest.raises(CheckpointError, match="was changed, or is of another run"):
        writer_at(tmp_path / "two.jsonl").load_state_dict(saved)


def test_it_resumes_where_it_was_saved_and_forgets_what_came_after(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    merge(writer, run)
    writer.on_evaluation_due(run, "server", 1)
    merge(writer, run)
    saved = saved_and_read(writer.state_dict())
    writer.on_evaluation(run, evaluation(1, {"accuracy": 0.5}))
    merge(writer, run)
    assert events(path) == ["run", "update", "evaluation", "update", "update"]
    writer.on_interrupt(run)
    again = writer_at(path)
    again.load_state_dict(saved)
    assert writer.files == again.files == (path,)
    resume(again, run)
    assert events(path) == ["run", "update"]
    assert again.state_dict()["lines"] == saved["lines"]
    again.on_evaluation(run, evaluation(1, {"accuracy": 0.5}))
    again.on_end(run)
    assert events(path) == ["run", "update", "evaluation", "update", "end"]
    *_, line, _, _ = read_history(path)
    assert (line["update"], line["time"]) == (8, 2.0)
    assert list(line)[:5] == ["event", "source", "round", "update", "time"]


def test_the_state_of_a_longer_history_is_refused(tmp_path):
    path, run = tmp_path / "history.jsonl", state()
    writer = writer_at(path)
    begin(writer, run)
    saved = writer.state_dict()
    writer.on_interrupt(run)
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="has 2 bytes, and the checkpoint knows"):
        writer_at(path).load_state_dict(saved)


def test_what_a_run_resumes_with_stands_in_its_history(tmp_path):
    path, run = tmp_path / "history.jsonl", state()

    def writer_with(seconds):
        return HistoryWriter(path, {"config": {"lr": 0.5, "max-seconds": seconds}})

    first = writer_with(5.0)
    begin(first, run)
    saved = saved_and_read(first.state_dict())
    first.on_interrupt(run)
    for seconds, changed in ((5.0, []), (9.0, [{"max-seconds": 9.0}])):
        again = writer_with(seconds)
        again.load_state_dict(saved)
        resume(again, run)
        saved = saved_and_read(again.state_dict())
        again.on_interrupt(run)
        said = [line["config"] for line in read_history(path) if "config" in line]
        assert said[1:] == changed
