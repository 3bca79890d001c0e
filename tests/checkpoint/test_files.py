"""A checkpoint on disk is whole, or it is refused with the reason."""

import errno
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from flwr_asyncdrop.checkpoint import Checkpointer, files
from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint, newest, run_folder
from flwr_asyncdrop.checkpoint.files import all_checkpoints, write
from flwr_asyncdrop.exceptions import CheckpointError, DamagedError

BODY = {
    "run": "a",
    "settings": {"algo": "asyncdrop", "lr": 0.1},
    "updates": 120,
    "devices": 8,
    "parts": {"state": {"w": {"$": "state/w"}}},
}
W = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def save(run, body=BODY, **tensors):
    return write(run / "checkpoints", body, tensors or {"state/w": W})


def change(path, **values):
    """Change what a checkpoint says, as somebody with an editor would."""
    file = path / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_what_was_written_is_read(tmp_path):
    checkpoint = Checkpoint.read(save(tmp_path))
    assert (checkpoint.settings, checkpoint.updates) == (BODY["settings"], 120)
    assert checkpoint.devices == 8
    w = checkpoint.parts["state"]["w"]
    assert torch.equal(w, W)
    assert w.dtype == W.dtype


def test_tensors_of_any_kind_come_back_as_they_were(tmp_path):
    tensors = {
        "half": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7),
        "truth": torch.tensor([True, False]),
        "none": torch.zeros(0, 4),
        "column": W.T,
        "view": W[0],
        "another": W[0],
        "third": W[0],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    body = {**BODY, "parts": {name: {"$": name} for name in tensors}}
    back = Checkpoint.read(save(tmp_path, body, **tensors)).parts
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_both_files_have_the_rights_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = save(tmp_path)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o666 & ~umask}


def test_what_is_read_does_not_depend_on_the_file_any_more(tmp_path):
    path = save(tmp_path)
    w = Checkpoint.read(path).parts["state"]["w"]
    shutil.rmtree(path)
    w += 1
    assert torch.equal(w, W + 1)


@pytest.mark.skipif(sys.platform == "darwin", reason="all its names are UTF-8")
def test_a_folder_whose_name_is_not_utf_8_can_be_resumed_from(tmp_path):
    """Its checkpoints were written, and said to be damaged when they were read."""
    run = tmp_path / os.fsdecode(b"\xe9t\xe9")
    written = save(run)
    checkpoint = newest(run)
    assert checkpoint.path == written
    assert torch.equal(checkpoint.parts["state"]["w"], W)
    (written / "state.safetensors").unlink()
    with pytest.raises(DamagedError):
        newest(run)


def test_numbers_go_on(tmp_path):
    for _ in range(3):
        last = save(tmp_path)
    names = [path.name for path in all_checkpoints(tmp_path / "checkpoints")]
    assert names == ["000003", "000002", "000001"]
    assert newest(tmp_path).path == last


def test_half_a_checkpoint_is_none_and_can_be_deleted(tmp_path):
    draft = tmp_path / "checkpoints" / f"draft-{'0' * 32}"
    draft.mkdir(parents=True)
    (draft / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        newest(tmp_path)
    assert save(tmp_path).name == "000001"
    files.delete_drafts(tmp_path / "checkpoints")
    assert not draft.exists()


def write_large(folder):
    write(folder, BODY, {"state/w": torch.zeros(50_000_000)})


def test_what_a_process_leaves_that_is_killed_while_it_writes_tensors_is_deleted(
    tmp_path,
):
    """safetensors writes a file of another name first, as large as the tensors."""
    folder = tmp_path / "checkpoints"
    process = multiprocessing.get_context("spawn").Process(
        target=write_large, args=(folder,)
    )
    process.start()
    while not list(folder.glob("draft-*/*")):
        assert process.is_alive()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert all_checkpoints(folder) == []
    files.delete_drafts(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("step", ["save_file", "sync", "_digest"])
def test_a_write_that_fails_leaves_the_one_before(tmp_path, monkeypatch, step):
    before = save(tmp_path)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, step, no_space)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, {**BODY, "updates": 130})
    monkeypatch.undo()
    assert newest(tmp_path).path == before
    assert newest(tmp_path).updates == 120
    assert [path.name for path in before.parent.iterdir()] == [before.name]


def strays(folder):
    """Put into a folder of checkpoints what does not belong there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "000007").write_text("a file")
    (folder / "000008").mkdir()
    (folder / "\u0661\u0662\u0663\u0664\u0665\u0666").mkdir()
    (folder / "\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2").mkdir()
    (folder / "9").mkdir()
    (folder / "9" / "state.json").write_text("{}")
    (folder / "notes.tmp").write_text("mine")
    (folder / "kept.tmp").mkdir()
    (folder / "draft-of-a-paper").mkdir()
    odd = folder / f"draft-{'a' * 32}"
    odd.mkdir()
    (odd / "thesis.txt").write_text("mine")
    (folder / "gone").symlink_to(folder / "nowhere")
    return {path.name for path in folder.iterdir()}


def test_what_does_not_belong_there_is_neither_read_nor_deleted(tmp_path):
    folder = tmp_path / "checkpoints"
    found = strays(folder)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        newest(tmp_path)
    first, second = save(tmp_path), save(tmp_path)
    assert (first.name, second.name) == ("000009", "000010")
    assert all_checkpoints(folder) == [second, first]
    assert newest(tmp_path).path == second
    files.delete_drafts(folder)
    files.delete([first])
    files.discard(folder)
    assert {path.name for path in folder.iterdir()} == found
    assert files.all_of_ours(folder) == []


def test_what_somebody_puts_into_a_checkpoint_stays(tmp_path):
    first, second = save(tmp_path), save(tmp_path)
    (first / "notes.txt").write_text("mine")
    files.delete([first, second])
    assert [path.name for path in first.parent.rglob("*")] == ["000001", "notes.txt"]
    assert all_checkpoints(first.parent) == []
    assert save(tmp_path).name == "000002"


def test_of_a_checkpoint_that_is_a_link_the_link_goes(tmp_path):
    """As of one that was moved to a larger disk: no run in the folder could resume."""
    first, second = save(tmp_path), save(tmp_path)
    elsewhere = tmp_path / "large"
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    draft = first.with_name(f"draft-{'0' * 32}")
    draft.symlink_to(elsewhere)
    assert newest(tmp_path).path == second
    assert torch.equal(newest(first).parts["state"]["w"], W)
    files.delete([first])
    files.delete_drafts(first.parent)
    assert {path.name for path in first.parent.iterdir()} == {second.name, draft.name}
    assert len(list(elsewhere.iterdir())) == 2


def test_a_number_of_any_length_is_that_of_a_checkpoint(tmp_path):
    """One was written behind a folder of 18 nines, and never found again."""
    (tmp_path / "checkpoints" / ("9" * 18)).mkdir(parents=True)
    written = save(tmp_path)
    assert newest(tmp_path).path == written


def test_checkpoints_of_two_runs_in_one_folder_are_refused(tmp_path):
    own = save(tmp_path)
    other = save(tmp_path / "other", {**BODY, "run": "b"})
    shutil.copytree(other, own.with_name("000005"))
    with pytest.raises(CheckpointError, match=r"000005 and .*000001 are of different"):
        newest(tmp_path)
    files.discard(own.parent)
    assert len(all_checkpoints(own.parent)) == 2
    assert files.checkpoints_of(own.parent, "a") == [own]


def test_json_that_is_nested_too_deeply_is_damage(tmp_path):
    path = save(tmp_path)
    (path / "state.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="is damaged"):
        newest(path)
    assert files.all_of_ours(path.parent) == []


@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_bit_that_flipped_in_the_tensors_is_damage(tmp_path, place):
    path = save(tmp_path)
    flip(path / "state.safetensors", place)
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        newest(path)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_file_that_is_cut_off_or_gone_is_refused(tmp_path, name):
    path = save(tmp_path)
    file = path / name
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="is damaged"):
        newest(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"cannot read|is damaged"):
        newest(path)


def refuse_to_open(monkeypatch, is_closed):
    opened = Path.open

    def refuse(file, *args, **kwargs):
        if is_closed(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(file, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_file_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch, name):
    """It may be another user's: who is told of damage deletes the run, or begins it."""
    path = save(tmp_path)
    refuse_to_open(monkeypatch, lambda file: file.name == name)
    with pytest.raises(CheckpointError, match=r"cannot read.*Permission") as caught:
        newest(path)
    assert not isinstance(caught.value, DamagedError)


def test_one_that_may_not_be_read_is_not_damaged_since_the_others_are(
    tmp_path, monkeypatch
):
    """Who is told of damage begins the run again, and the newest one is lost."""
    first, second = save(tmp_path), save(tmp_path)
    flip(first / "state.json", -3)
    refuse_to_open(monkeypatch, lambda file: file.parent == second)
    with pytest.raises(CheckpointError, match=f"cannot read.*{second}") as caught:
        newest(tmp_path)
    assert not isinstance(caught.value, DamagedError)


def test_json_that_was_changed_is_damage(tmp_path):
    path = save(tmp_path)
    change(path, updates=121)
    with pytest.raises(CheckpointError, match=r"damaged .its digest is another"):
        Checkpoint.read(path)


def test_a_checkpoint_that_cannot_be_read_or_was_not_looked_through_is_of_no_update(
    tmp_path,
):
    complete, older = save(tmp_path, {**BODY, "complete": True}), save(tmp_path)
    assert (files.updates_of(complete), files.updates_of(older)) == (120, 0)
    flip(complete / "state.json", -3)
    assert files.updates_of(complete) == 0


@pytest.mark.parametrize(("number", "by"), [(1, "1.9"), (99, "9.1")])
def test_another_format_is_refused_with_the_version_to_go_on_with(number, by, tmp_path):
    path = save(tmp_path)
    change(path, format_version=number, written_by=by)
    says = f"by flwr-asyncdrop {by} in format {number}.* resume with that version"
    with pytest.raises(CheckpointError, match=says):
        newest(path)


@pytest.mark.parametrize("text", ["[]", '{"epoch": 3}', '{"format": "safetensors"}'])
def test_something_else_is_not_taken_for_a_checkpoint(tmp_path, text):
    path = save(tmp_path)
    (path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        Checkpoint.read(path)


def test_a_damaged_newest_one_costs_only_what_came_after_the_one_before(
    tmp_path, caplog
):
    first = save(tmp_path)
    second = save(tmp_path, {**BODY, "updates": 130})
    flip(second / "state.safetensors", -1)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path).path == first
    assert f"{second}" in caplog.text
    flip(first / "state.json", -3)
    with pytest.raises(CheckpointError, match=f"{first}"):
        newest(tmp_path)


def test_one_checkpoint_by_name_is_taken_or_refused_but_not_replaced(tmp_path):
    first, second = save(tmp_path), save(tmp_path)
    assert newest(first).path == first
    flip(second / "state.safetensors", -1)
    with pytest.raises(CheckpointError, match=f"{second}"):
        newest(second)


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", "\0", "[" * 9999])
def test_a_damaged_reason_why_a_run_cannot_resume_is_none(tmp_path, text):
    written = save(tmp_path)
    (written.parent / "unresumable.json").write_text(text)
    assert newest(tmp_path).path == written


def test_the_folder_of_checkpoints_is_no_run(tmp_path):
    folder = save(tmp_path).parent
    with pytest.raises(CheckpointError, match=f"resume takes {tmp_path}, the folder"):
        newest(folder)


def test_a_resume_from_what_is_no_run_is_told_what_it_is(tmp_path):
    run = save(tmp_path / "run").parent.parent
    copy = shutil.copytree(run / "checkpoints" / "000001", tmp_path / "best")
    with pytest.raises(CheckpointError, match="best is a checkpoint away from its run"):
        newest(copy)
    (tmp_path / "file").touch()
    for name in ("nowhere", "file"):
        with pytest.raises(CheckpointError, match=f"{name} is no folder: resume takes"):
            newest(tmp_path / name)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("run", "cannot read the checkpoints in .*run/checkpoints: Permission"),
        ("run/checkpoints", "cannot read the checkpoints in .*: Permission denied"),
        ("run/checkpoints/000001", "cannot read the checkpoint .*000001.*: Permission"),
    ],
)
def test_what_another_user_may_not_read_is_refused_in_one_line(place, says):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = save(Path(name) / "run")
        run = path.parent.parent
        (Path(name) / place).chmod(0o700)
        os.seteuid(65534)
        try:
            if not os.access(name, os.R_OK | os.X_OK, effective_ids=True):
                pytest.skip("another user cannot reach the folder for temporary files")
            for find in (newest, lambda run: Checkpointer(run).load({})):
                with pytest.raises(CheckpointError, match=says):
                    find(run)
            with pytest.raises(CheckpointError, match="cannot read the checkpoint "):
                newest(path)
        finally:
            os.seteuid(0)


def test_a_checkpoint_is_known_from_within_its_folder(tmp_path, monkeypatch):
    path = save(tmp_path)
    monkeypatch.chdir(path.parent)
    checkpointer = Checkpointer(tmp_path, resume=path.name)
    assert checkpointer.load(BODY["settings"]).path == path


def test_the_folder_of_a_run_is_known_from_its_checkpoints(tmp_path):
    assert run_folder(save(tmp_path)) == run_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["mine", "000001"])
def test_a_run_may_lie_in_a_folder_that_is_called_checkpoints(tmp_path, name):
    run = tmp_path / "checkpoints" / name
    path = save(run)
    assert newest(run).path == newest(path).path == path
    assert run_folder(path) == run_folder(run) == run


@pytest.mark.parametrize("name", ["checkpoints/mine", "runs/000001"])
def test_a_run_that_is_over_is_not_taken_for_a_checkpoint_by_its_name(tmp_path, name):
    run = tmp_path / name
    run.mkdir(parents=True)
    assert run_folder(run) == run
    with pytest.raises(CheckpointError, match="has no checkpoint to resume from"):
        newest(run)
