"""A run is saved when it is time, as it was then, off the loop's path."""

import copy
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from flwr_asyncdrop.checkpoint import (
    Checkpointer,
    checkpointer,
    files,
    newest,
    series,
)
from flwr_asyncdrop.checkpoint.files import all_checkpoints, discard
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from tests.checkpoint.small_runs import run

SETTINGS = {"algo": "asyncdrop", "lr": 0.1}


class Part(Callback):
    """Something with a state that is changed in place, and copied when it is saved."""

    def __init__(self):
        self.tensor = torch.zeros(2)
        self.files = ()

    def state_dict(self):
        return {"tensor": self.tensor.clone()}

    def load_state_dict(self, state):
        self.tensor = state["tensor"]


class Played:
    """A run of five updates a round that the test plays by hand."""

    def __init__(self, folder, **options):
        self.part, self.state = Part(), RunState.start_from({}, seed=0)
        self.state.num_devices = 7
        self.saver = Checkpointer(folder, **options)
        self.checkpoint = self.saver.load(SETTINGS)
        self.saver.attach({"part": self.part}, updates_per_round=5)
        self.folder = folder

    def go_to(self, updates):
        while self.state.updates < updates:
            self.saver.on_pause(self.state)
            self.part.tensor += 1
            self.state.updates += 1

    def updates(self):
        found = all_checkpoints(self.folder / "checkpoints")
        return [newest(path).updates for path in found]


def test_checkpoints_come_as_often_as_asked(tmp_path):
    played = Played(tmp_path, every=2, keep=2)
    played.go_to(27)
    played.saver.on_end(played.state)
    assert played.updates() == [20, 10]
    checkpoint = newest(tmp_path)
    assert (checkpoint.settings, checkpoint.devices) == (SETTINGS, 7)
    assert checkpoint.parts["part"]["tensor"].tolist() == [20.0, 20.0]


def test_one_that_resumes_within_a_round_has_them_when_the_others_have(tmp_path):
    played = Played(tmp_path)
    played.saver.on_begin(played.state)
    played.go_to(3)
    played.saver.on_interrupt(played.state)
    resumed = Played(tmp_path, resume=tmp_path, every=2, keep=9)
    resumed.state.updates = resumed.checkpoint.updates
    resumed.saver.on_resume(resumed.state)
    resumed.go_to(21)
    resumed.saver.on_end(resumed.state)
    assert resumed.updates() == [20, 10, 3, 0]


def test_a_run_that_resumes_says_how_far_it_had_come(tmp_path, caplog):
    played = Played(tmp_path)
    played.saver.on_begin(played.state)
    played.go_to(3)
    played.saver._series.wait()  # killed: the next one would be after ten rounds
    resumed = Played(tmp_path, resume=tmp_path)
    with caplog.at_level("INFO", logger="flwr"):
        resumed.saver.on_resume(resumed.state)
    assert caplog.messages == [f"resumes from {tmp_path}, where it had 0 updates"]


def test_no_checkpoint_goes_to_another_folder_in_place_of_the_runs(tmp_path, caplog):
    folder = tmp_path / "run"
    played = Played(folder, every=1)
    with played.saver:
        played.go_to(3)
        played.saver._series.wait()
        folder.rename(tmp_path / "before")
        folder.mkdir()
        played.go_to(6)
        played.saver.on_end(played.state)
    assert not list(folder.iterdir())
    (message,) = caplog.messages
    assert "it was replaced by another folder" in message


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("command", ["make 7", "make {}".format])
def test_an_interrupted_run_is_saved_as_it_is_and_says_how_it_resumes(
    updates, command, tmp_path, caplog
):
    played = Played(tmp_path, command=command)
    played.saver.on_begin(played.state)
    played.go_to(updates)
    played.saver.on_interrupt(played.state)
    assert newest(tmp_path).updates == updates
    assert caplog.messages == ["interrupted; to resume: make 7"]


def test_a_run_that_cannot_be_resumed_says_why_in_a_folder_that_is_new(
    tmp_path, caplog
):
    folder = tmp_path / "run"
    saver = Checkpointer(folder)
    assert saver.load({}, unresumable="the clients keep something") is None
    saver.attach({"part": Part()}, updates_per_round=5)
    saver.on_begin(RunState.start_from({}, seed=0))
    assert caplog.messages == []
    with pytest.raises(CheckpointError, match="keep something: start it again"):
        newest(folder)


def test_one_that_was_interrupted_before_it_began_leaves_the_other_alone(
    tmp_path, caplog
):
    other = Played(tmp_path)
    other.go_to(3)
    other.saver.on_end(other.state)
    played = Played(tmp_path, overwrite=True)
    played.saver.on_interrupt(played.state)
    assert newest(tmp_path).run == other.saver._run
    assert caplog.messages == ["interrupted before the run began: nothing was changed"]


def test_a_run_that_ended_early_is_saved_and_one_that_is_over_is_not(tmp_path, caplog):
    played = Played(tmp_path)
    played.go_to(3)
    played.saver.on_end(played.state)
    assert (played.updates(), caplog.messages) == ([0], [])
    played.saver.attach({"part": played.part}, updates_per_round=5)
    played.saver.on_begin(played.state)
    played.state.ended = "timeout"
    played.saver.on_end(played.state)
    assert played.updates() == [3, 0]
    assert caplog.messages[0].startswith("to resume: do the same with Checkpointer(")


def test_one_that_ended_early_and_could_not_be_saved_says_not_how_it_resumes(
    tmp_path, caplog
):
    played = Played(tmp_path)
    played.saver.on_begin(played.state)
    (tmp_path / "checkpoints").write_text("in the way")
    played.state.ended = "timeout"
    played.saver.on_end(played.state)
    assert caplog.messages[0].startswith("no checkpoint at update 0")
    assert caplog.messages[1:] == ["no checkpoint could be written"]


def test_a_run_that_resumes_forgets_later_ones_once_it_begins(tmp_path):
    played = Played(tmp_path, every=1, keep=9)
    played.go_to(12)
    played.saver.on_end(played.state)
    assert played.updates() == [10, 5, 0]
    resume = all_checkpoints(tmp_path / "checkpoints")[1]
    again = Played(tmp_path, resume=resume, every=1, keep=9)
    again.checkpoint.restore({"part": again.part})
    assert again.part.tensor.tolist() == [5.0, 5.0]
    assert again.updates() == [10, 5, 0]
    again.state.updates = 5
    again.saver.on_resume(again.state)
    assert again.updates() == [10, 5, 0]
    again.saver.on_begin(again.state)
    assert again.updates() == [5, 0]
    again.go_to(11)
    again.saver.on_end(again.state)
    assert again.updates() == [10, 5, 0]


def test_the_loop_waits_for_the_disk_only_before_the_next_checkpoint(
    tmp_path, monkeypatch
):
    """And what is saved is what was there then, though it is written later."""
    write, later = series.write, threading.Event()

    def patient(*arguments):
        assert later.wait(300)
        later.clear()
        return write(*arguments)

    monkeypatch.setattr(series, "write", patient)
    played = Played(tmp_path, every=1, keep=9)
    for updates in (5, 10):
        # The one of the round before is still being written.
        played.go_to(updates)
        later.set()
    played.go_to(12)
    later.set()
    played.saver.on_end(played.state)
    saved = [newest(path) for path in all_checkpoints(tmp_path / "checkpoints")]
    assert [checkpoint.updates for checkpoint in saved] == [10, 5, 0]
    for checkpoint in saved:
        count = float(checkpoint.updates)
        assert checkpoint.parts["part"]["tensor"].tolist() == [count, count]


def test_files_that_a_part_counts_on_are_on_the_disk_first(tmp_path, monkeypatch):
    """Then what the checkpoint is made of; its name, once it has it, comes last."""
    synced, sync, played = [], files.sync, Played(tmp_path)

    def noted(path):
        synced.append((path.name.partition("-")[0], played.updates()))
        sync(path)

    monkeypatch.setattr(files, "sync", noted)
    history = tmp_path / "history"
    history.write_text("line")
    played.part.files = (history,)
    played.go_to(1)
    played.saver.on_end(played.state)
    before = ["history", "state.safetensors", "state.json", "draft"]
    assert synced == [*((name, []) for name in before), ("checkpoints", [0])]


def test_a_disk_that_is_full_costs_a_warning(tmp_path, caplog):
    (tmp_path / "checkpoints").write_text("in the way")
    played = Played(tmp_path)
    played.go_to(3)
    played.saver.on_end(played.state)
    (message,) = caplog.messages
    assert message.startswith("no checkpoint at update 0, and the run continues: ")


def test_a_type_that_safetensors_lacks_costs_a_warning_a_checkpoint(tmp_path, caplog):
    played = Played(tmp_path, every=1)
    played.part.tensor = torch.zeros(2, dtype=torch.complex128)
    played.go_to(6)
    played.saver.on_end(played.state)
    assert caplog.messages == [
        f"no checkpoint at update {number}, and the run continues: safetensors has no "
        "torch.complex128"
        for number in (0, 5)
    ]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_folder_by_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    """Somebody's evaluate_fn may change the current folder."""

    class Elsewhere(Callback):
        def on_round(self, state, number):
            monkeypatch.chdir("/")

        def on_end(self, state):
            monkeypatch.chdir(tmp_path)

    monkeypatch.chdir(tmp_path)
    run(Path("run"), "fedbuff", rounds=2, callbacks=[Elsewhere()])
    assert len(all_checkpoints(tmp_path / "run" / "checkpoints")) == 2


def test_whatever_stops_a_checkpoint_costs_a_warning(tmp_path, monkeypatch, caplog):
    def short_of_memory(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr(series, "write", short_of_memory)
    played = Played(tmp_path, every=1)
    played.go_to(6)
    played.saver.on_end(played.state)
    assert caplog.messages == [
        f"no checkpoint at update {number}, and the run continues: no memory"
        for number in (0, 5)
    ]


def test_what_cannot_be_saved_is_an_error_before_the_first_update(tmp_path):
    played = Played(tmp_path)
    played.part.state_dict = lambda: {"odd": {1, 2}}
    with pytest.raises(
        CheckpointError, match=r"^\w+.state_dict\(\)\['odd'\]: \{1, 2\} cannot be"
    ):
        played.go_to(1)
    played.saver.on_end(played.state)


class TestSettings:
    @pytest.fixture(autouse=True)
    def saved(self, tmp_path):
        played = Played(tmp_path)
        played.go_to(1)
        played.saver.on_end(played.state)

    def loaded(self, folder, changes=None, **options):
        settings = SETTINGS if changes is None else {**SETTINGS, **changes}
        return Checkpointer(folder, resume=folder, **options).load(settings)

    def test_a_run_resumes_only_as_it_began(self, tmp_path):
        assert self.loaded(tmp_path).updates == 0
        elsewhere = {"out-dir": "elsewhere"}
        assert self.loaded(tmp_path, elsewhere, incidental={"out-dir"}).updates == 0
        says = r"\(lr 0.1, now 0.2; seed None, now 3\): resume with the same"
        with pytest.raises(CheckpointError, match=says):
            self.loaded(tmp_path, {"lr": 0.2, "seed": 3})
        with pytest.raises(CheckpointError, match="algo 'asyncdrop', now None"):
            Checkpointer(tmp_path, resume=tmp_path).load({})

    def test_a_file_that_is_known_by_its_digest_may_lie_elsewhere(self, tmp_path):
        begun = {"trace": "a.csv", "trace-sha256": "1"}
        played = Played(tmp_path / "new", settings=begun)
        played.go_to(1)
        played.saver.on_end(played.state)
        digests = {"trace": "trace-sha256"}

        def resumed(**now):
            settings = {**begun, **now}
            return self.loaded(tmp_path / "new", settings=settings, digests=digests)

        assert resumed(trace="/other/a.csv").updates == 0
        with pytest.raises(CheckpointError, match=r"\(trace-sha256 '1', now '2'\)"):
            resumed(trace="/other/a.csv", **{"trace-sha256": "2"})
        # A checkpoint that is too old to have the digest.
        known = {"trace-sha256": "1"}
        with pytest.raises(CheckpointError, match=r"trace None, now .a"):
            self.loaded(tmp_path, settings=begun, defaults=known, digests=digests)

    def test_those_given_to_the_checkpointer_take_precedence(self, tmp_path):
        assert self.loaded(tmp_path, {"lr": 9.0}, settings={"lr": 0.1}).updates == 0
        with pytest.raises(CheckpointError, match=r"\(lr 0.1, now 0.2\)"):
            self.loaded(tmp_path, settings={"lr": 0.2})

    @pytest.mark.parametrize("odd", [np.float32(0.5), Path("there"), {1, 2}])
    def test_one_that_json_lacks_is_refused_before_the_run(self, odd, tmp_path):
        with pytest.raises(ConfigError, match=r"the setting 'odd' cannot be saved"):
            Checkpointer(tmp_path / "new", settings={"odd": odd}).load({})

    def test_they_are_compared_as_json_has_them(self, tmp_path):
        settings = {"pair": (1, 2), "names": {3: "three"}, 4: "four", True: "yes"}
        played = Played(tmp_path / "new", settings=settings)
        played.go_to(1)
        played.saver.on_end(played.state)
        assert self.loaded(tmp_path / "new", settings=settings).updates == 0

    def test_nan_is_the_same_as_it_was(self, tmp_path):
        settings = {"floor": float("nan"), "all": [float("nan")]}
        played = Played(tmp_path / "new", settings=settings)
        played.go_to(1)
        played.saver.on_end(played.state)
        assert self.loaded(tmp_path / "new", settings=settings).updates == 0

    def test_one_younger_than_the_checkpoint_had_its_default(self, tmp_path):
        defaults = {"queue-ahead": 0}
        assert self.loaded(tmp_path, {"queue-ahead": 0}, defaults=defaults).updates == 0
        with pytest.raises(CheckpointError, match=r"\(queue-ahead 0, now 1\)"):
            self.loaded(tmp_path, {"queue-ahead": 1}, defaults=defaults)

    def test_a_run_that_begins_replaces_no_other_unless_told(self, tmp_path):
        says = "has a run that can be resumed: make 0; to replace it"
        with pytest.raises(ConfigError, match=says):
            Checkpointer(tmp_path, command="make {}".format).load({})
        assert Checkpointer(tmp_path, overwrite=True).load({}) is None


def test_a_run_does_not_resume_over_another_one_unless_told(tmp_path):
    for name in ("mine", "others"):
        played = Played(tmp_path / name, every=1)
        played.go_to(7)
        played.saver.on_end(played.state)
    resume = tmp_path / "mine"
    with pytest.raises(ConfigError, match="others/checkpoints has another run than "):
        Played(tmp_path / "others", resume=resume)
    assert newest(tmp_path / "others").updates == 5
    played = Played(tmp_path / "others", every=1, resume=resume, overwrite=True)
    played.saver.on_begin(played.state)
    played.go_to(1)
    played.saver.on_end(played.state)
    assert newest(tmp_path / "others").run == newest(resume).run


def test_a_run_that_went_on_in_another_folder_is_not_replaced_unless_told(tmp_path):
    """As by the same command again, when the first one was interrupted there."""
    first, second = tmp_path / "first", tmp_path / "second"
    played = Played(first, every=1, keep=9)
    played.go_to(12)
    played.saver.on_end(played.state)

    def go_on(updates, **options):
        played = Played(second, resume=first, every=1, keep=9, **options)
        played.saver.on_begin(played.state)
        played.state.updates = played.checkpoint.updates
        played.saver.on_resume(played.state)
        played.go_to(updates)
        played.saver.on_end(played.state)
        return played.updates()

    assert go_on(32) == [30, 25, 20, 15]
    says = f"second/checkpoints has checkpoints of this run .*: resume {second}; to"
    with pytest.raises(ConfigError, match=says):
        go_on(32)
    assert newest(second).updates == 30
    assert go_on(21, overwrite=True) == [20, 15]


def test_a_run_resumes_in_its_folder_by_whatever_path(tmp_path):
    played = Played(tmp_path / "run", every=1)
    played.go_to(7)
    played.saver.on_end(played.state)
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    again = Played(tmp_path / "run", resume=tmp_path / "latest")
    assert [path.name for path in again.saver._series.paths] == ["000001", "000002"]


def test_a_run_that_is_over_leaves_no_checkpoint(tmp_path):
    played = Played(tmp_path)
    played.go_to(1)
    played.saver.on_end(played.state)
    for _ in range(2):
        discard(played.saver.path)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["every", "keep"])
def test_numbers_out_of_range_are_refused(tmp_path, name):
    for wrong in (0, 1.5):
        with pytest.raises(ConfigError, match=f"{name}={wrong} must be at least 1"):
            Checkpointer(tmp_path, **{name: wrong})


@pytest.mark.usefixtures("no_settling")
def test_what_is_saved_of_a_run_is_what_was_there_when_it_was_saved(
    tmp_path, monkeypatch
):
    """The thread that writes comes late, when the model is another already."""
    weights, write, later = {}, series.write, threading.Event()

    class Weights(Callback):
        def on_pause(self, state):
            weights[state.updates] = copy.deepcopy(state.arrays)
            if state.updates % 4 == 3 or state.updates == 15:
                later.set()

    def patient(*arguments):
        assert later.wait(300)
        later.clear()
        return write(*arguments)

    monkeypatch.setattr(series, "write", patient)
    run(tmp_path, "async-fedavg", callbacks=[Weights()])
    saved = [newest(path) for path in all_checkpoints(tmp_path / "checkpoints")]
    assert [checkpoint.updates for checkpoint in saved] == [12, 8, 4, 0]
    for checkpoint in saved:
        arrays = checkpoint.parts["run"]["state"]["arrays"]
        assert arrays.keys() == weights[checkpoint.updates].keys()
        for name, expected in weights[checkpoint.updates].items():
            assert torch.equal(arrays[name], expected)


def no_rights(*_):
    raise PermissionError(13, "Permission denied")


def test_an_old_one_that_cannot_be_deleted_is_named(tmp_path, monkeypatch, caplog):
    played = Played(tmp_path, every=1, keep=1)
    monkeypatch.setattr(series, "delete", no_rights)
    played.go_to(11)
    played.saver.on_end(played.state)
    assert played.updates() == [10, 5, 0]
    oldest = tmp_path / "checkpoints" / "000001"
    says = f"cannot delete the checkpoint {oldest}, and the run continues: [Errno 13] "
    assert caplog.messages == [f"{says}Permission denied"] * 2


def test_a_run_that_has_no_checkpoints_any_more_goes_on_if_those_there_must_stay(
    tmp_path, monkeypatch, caplog
):
    played = Played(tmp_path, every=1)
    played.saver.on_begin(played.state)
    played.go_to(5)
    monkeypatch.setattr(checkpointer, "refuse", no_rights)
    monkeypatch.setattr(series, "delete", no_rights)
    played.part.state_dict = lambda: {"odd": {1, 2}}
    played.go_to(6)
    played.saver.on_interrupt(played.state)
    first, *others, last = caplog.messages
    assert "from here on it has no checkpoints" in first
    says = f"{tmp_path / 'checkpoints'} cannot be changed: [Errno 13] Permission denied"
    assert others == [says] * 2
    assert last.endswith("so the run cannot be resumed: start it again")
