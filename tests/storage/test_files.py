"""Files that are whole or absent, marks, and patience with a disk."""

import errno
import os
import stat

import pytest

from flwr_asyncdrop.exceptions import FolderError
from flwr_asyncdrop.storage import whole
from flwr_asyncdrop.storage.done import FileDigest, is_as_marked, mark_done, read_mark
from flwr_asyncdrop.storage.patience import Patience
from flwr_asyncdrop.storage.whole import changing, drafts_of, write_whole


@pytest.mark.parametrize("step", ["write_bytes", "replace", "sync"])
def test_a_file_that_cannot_be_replaced_is_what_it_was(step, tmp_path, monkeypatch):
    path = write_whole(tmp_path / "file", b"old")

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole if step == "sync" else whole.Path, step, no_space)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_synced_keeps_its_files(tmp_path, monkeypatch):
    """As in a shared folder of a virtual machine, and in /proc."""
    fsync = os.fsync

    def of_files_alone(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    assert write_whole(tmp_path / "file", b"new").read_bytes() == b"new"


def whole_block(folder, stops=()):
    """Write three files in one block, the last of them after the others."""
    with drafts_of(folder, "last") as drafts:
        for name in ("a", "below/b", "last"):
            (drafts / name).parent.mkdir(exist_ok=True)
            (drafts / name).write_text("new")
        for error in stops:
            raise error


def there(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_files_of_a_block_come_together_and_in_folders(tmp_path):
    (tmp_path / ".drafts.tmp").mkdir()
    (tmp_path / ".drafts.tmp" / "of one that was killed").touch()
    (tmp_path / "mine").write_text("old")
    for _ in range(2):
        whole_block(tmp_path)
        expected = dict.fromkeys(("a", "below/b", "last"), "new")
        assert there(tmp_path) == {**expected, "mine": "old"}
        assert not (tmp_path / ".drafts.tmp").exists()


def test_of_a_block_that_is_stopped_nothing_comes(tmp_path):
    (tmp_path / "last").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        whole_block(tmp_path, [KeyboardInterrupt()])
    assert there(tmp_path) == {"last": "old"}


@pytest.mark.parametrize("fails", ["a", "last"])
def test_the_last_file_of_a_block_says_that_the_others_are_its_own(
    tmp_path, monkeypatch, fails
):
    for name in ("a", "last"):
        (tmp_path / name).write_text("old")
    replace = whole.Path.replace

    def refuse(path, target):
        if path.name == fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(path, target)

    monkeypatch.setattr(whole.Path, "replace", refuse)
    with pytest.raises(OSError, match="Input/output"):
        whole_block(tmp_path)
    assert "last" not in there(tmp_path)


def test_an_error_of_the_disk_becomes_a_line_with_the_path(tmp_path):
    says = f"cannot write {tmp_path}: File exists; "
    with pytest.raises(FolderError, match=says), changing(tmp_path):
        tmp_path.mkdir()


def test_a_mark_knows_the_files_as_they_were(tmp_path):
    write_whole(tmp_path / "a", b"one")
    assert read_mark(tmp_path) is None
    assert is_as_marked(tmp_path, "a")
    mark_done(tmp_path, ["a"])
    assert read_mark(tmp_path) == {"a": FileDigest.of(tmp_path / "a")}
    assert is_as_marked(tmp_path, "a")
    assert is_as_marked(tmp_path, "b")
    write_whole(tmp_path / "a", b"two")
    assert not is_as_marked(tmp_path, "a")
    (tmp_path / "a").unlink()
    assert not is_as_marked(tmp_path, "a")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": 1}', '{"files": {"a": 1}}', "\0", "[" * 9999],
)
def test_what_is_no_mark_marks_nothing(text, tmp_path):
    (tmp_path / "done.json").write_text(text)
    assert read_mark(tmp_path) is None


class TestPatience:
    def test_it_tries_until_the_file_is_written_and_says_why_once(self, tmp_path):
        said, waits, errors = [], [], [errno.ENOSPC] * 3 + [errno.EIO] * 2

        def write():
            if errors:
                raise OSError(errors[0], os.strerror(errors.pop(0)))

        patience = Patience(sleep=waits.append)
        patience.until_written(tmp_path / "f", write, said.append, lambda: "or: so")
        assert [line.split(";")[0] for line in said] == [
            f"cannot write {tmp_path / 'f'}: No space left on device",
            f"cannot write {tmp_path / 'f'}: Input/output error",
        ]
        assert all("or: so" in line for line in said)
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6]

    def test_it_has_an_end(self, tmp_path):
        waits = []

        def write():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        patience = Patience(seconds=60, sleep=waits.append)
        with pytest.raises(FolderError, match="Read-only file system; or: so"):
            patience.until_written(tmp_path, write, [].append, lambda: "or: so")
        assert 60 <= sum(waits) < 66
        assert max(waits) == 5.0
