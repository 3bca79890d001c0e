"""A checkpoint on disk is whole, or it is refused with the reason."""

import json
import logging
import shutil

import pytest
import torch

from flwr_asyncdrop.checkpoint import files
from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint, newest, run_folder
from flwr_asyncdrop.checkpoint.files import all_checkpoints, write
from flwr_asyncdrop.exceptions import CheckpointError

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
        "last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    body = {**BODY, "parts": {name: {"$": name} for name in tensors}}
    back = Checkpoint.read(save(tmp_path, body, **tensors)).parts
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_what_is_read_does_not_depend_on_the_file_any_more(tmp_path):
    path = save(tmp_path)
    w = Checkpoint.read(path).parts["state"]["w"]
    shutil.rmtree(path)
    w += 1
    assert torch.equal(w, W + 1)


def test_the_last_ones_are_kept_and_numbers_go_on(tmp_path):
    for _ in range(4):
        last = save(tmp_path, keep=2)
    names = [path.name for path in all_checkpoints(tmp_path / "checkpoints")]
    assert names == ["000004", "000003"]
    assert newest(tmp_path).path == last


def test_half_a_checkpoint_is_none_and_goes_away_with_the_next(tmp_path):
    draft = tmp_path / "checkpoints" / "000001.tmp"
    draft.mkdir(parents=True)
    (draft / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        newest(tmp_path)
    assert save(tmp_path).name == "000001"
    assert not draft.exists()


@pytest.mark.parametrize("step", ["save_file", "_sync", "_digest"])
def test_a_write_that_fails_leaves_the_one_before(tmp_path, monkeypatch, step):
    before = save(tmp_path, keep=1)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, step, no_space)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, {**BODY, "updates": 130}, keep=1)
    monkeypatch.undo()
    assert newest(tmp_path).path == before
    assert newest(tmp_path).updates == 120


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


def test_json_that_was_changed_is_damage(tmp_path):
    path = save(tmp_path)
    change(path, updates=121)
    with pytest.raises(CheckpointError, match=r"damaged .its digest is another"):
        Checkpoint.read(path)


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


def test_the_folder_of_a_run_is_known_from_its_checkpoints(tmp_path):
    assert run_folder(save(tmp_path)) == run_folder(tmp_path) == tmp_path
