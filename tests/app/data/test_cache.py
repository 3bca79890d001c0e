import os
import time
from pathlib import Path

import pytest
import torch

from flwr_asyncdrop.app.data.cache import cache_folder, cached

CONTENT = {
    "train_x": torch.arange(6, dtype=torch.int16).reshape(3, 2),
    "train_y": torch.tensor([1, 0, 1]),
    "test_x": torch.tensor([[7, 8]], dtype=torch.int16),
}


class Reader:
    """Counts how often it reads."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return CONTENT


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"reviews")
    return path


@pytest.fixture
def read() -> Reader:
    return Reader()


def check(tensors):
    assert tensors.keys() == CONTENT.keys()
    for name, expected in CONTENT.items():
        assert torch.equal(tensors[name], expected)
        assert tensors[name].dtype == expected.dtype


def entry() -> Path:
    (path,) = cache_folder().iterdir()
    return path


def test_read_once(source, read):
    check(cached("reader-1", [source], read))
    check(cached("reader-1", [source], read))
    assert read.calls == 1
    assert entry().name.startswith("reader-1-")


def test_whoever_writes_has_a_copy_of_its_own(source, read):
    cached("reader-1", [source], read)
    tensor = cached("reader-1", [source], read)["train_x"]
    tensor += 1
    check(cached("reader-1", [source], read))


def test_another_version_or_file_is_read_anew(source, read):
    cached("reader-1", [source], read)
    cached("reader-2", [source], read)
    other = source.with_name("other")
    other.write_bytes(source.read_bytes())
    cached("reader-1", [other], read)
    cached("reader-1", [source, other], read)
    assert read.calls == 4


def test_a_name_that_is_not_utf_8(source, read):
    """One file of such a name, as in an old archive, was a traceback."""
    odd = source.with_name(os.fsdecode(b"caf\xe9.txt"))
    odd.write_bytes(b"reviews")
    for _ in range(2):
        check(cached("v1", [source, odd], read))
    assert read.calls == 1


def test_what_was_left_half_written_is_deleted_an_hour_later(source, read):
    cached("reader-1", [source], read)
    for name, age in (("killed", 4000), ("writing", 10)):
        folder = cache_folder() / f".new-{name}"
        folder.mkdir()
        (folder / "part").write_bytes(b"x")
        os.utime(folder, (time.time() - age,) * 2)
    cached("reader-2", [source], read)
    assert [path.name for path in cache_folder().glob(".new-*")] == [".new-writing"]
    assert len(list(cache_folder().glob("*.safetensors"))) == 2


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_read_anew(source, read, change):
    cached("reader-1", [source], read)
    status = source.stat()
    source.write_bytes(b"reviews!" if change == "size" else b"REVIEWS")
    later = status.st_mtime_ns + (change == "time")
    os.utime(source, ns=(later, later))
    cached("reader-1", [source], read)
    assert read.calls == 2


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_entry_is_replaced(source, read, damage):
    cached("reader-1", [source], read)
    path = entry()
    path.unlink() if damage is None else path.write_bytes(damage)
    check(cached("reader-1", [source], read))
    check(cached("reader-1", [source], read))
    assert read.calls == 2


def test_what_fails_to_read_is_not_kept(source):
    def fail():
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cached("reader-1", [source], fail)
    assert not cache_folder().exists()


def test_a_cache_that_cannot_be_written_does_no_harm(source, read, monkeypatch):
    """A file in the place of the folder stops even root."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))
    check(cached("reader-1", [source], read))
    check(cached("reader-1", [source], read))
    assert read.calls == 2


def test_half_an_entry_is_never_seen(source, read, monkeypatch):
    def full_disk(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("flwr_asyncdrop.app.data.cache.save_file", full_disk)
    check(cached("reader-1", [source], read))
    assert list(cache_folder().iterdir()) == []


def test_another_process_may_have_been_faster(source, read):
    def read_slowly():
        check(cached("reader-1", [source], read))
        return CONTENT

    check(cached("reader-1", [source], read_slowly))
    check(cached("reader-1", [source], read))
    assert read.calls == 1


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "flwr-asyncdrop"
    monkeypatch.setenv("HOME", str(tmp_path))
    # What is relative is to be ignored: it would be a folder of wherever one stands.
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_folder() == tmp_path / ".cache" / "flwr-asyncdrop"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "flwr-asyncdrop"


def test_a_user_without_a_home(source, read, monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    check(cached("reader-1", [source], read))
