"""A file that grows by whole pieces: what the disk refuses leaves nothing behind."""

import errno
import hashlib
import os

import pytest

from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.storage.appended import AppendedFile, Prefix


class Full:
    """A file on a disk with room for so many bytes, which may refuse to be cut."""

    def __init__(self, file, room, *, cuts=True):
        self._file, self._room, self._cuts = file, room, cuts

    def write(self, data):
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(data[: self._room])
        self._room -= taken
        return taken

    def truncate(self, size):
        if not self._cuts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.truncate(size)

    def seek(self, place):
        return self._file.seek(place)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def opened(path, resumes):
    """Return a file with the piece "one", written before or by a run that resumes."""
    path.write_bytes(b"one, and of a run that goes no further")
    if resumes:
        return AppendedFile(path, Prefix.verified(path, 3, sha256(b"one")))
    file = AppendedFile(path)
    file.append(b"one")
    return file


RESUMES = pytest.mark.parametrize("resumes", [False, True])


@RESUMES
def test_it_knows_the_bytes_and_the_digest_of_all_pieces(tmp_path, resumes):
    file = opened(tmp_path / "f", resumes)
    assert (file.num_bytes, file.sha256) == (3, sha256(b"one"))
    for piece in (b"two", b"", b"three"):
        file.append(piece)
    file.close()
    whole = (tmp_path / "f").read_bytes()
    assert whole == b"onetwothree"
    assert (file.num_bytes, file.sha256) == (len(whole), sha256(whole))


@RESUMES
@pytest.mark.parametrize("cuts", [True, False])
def test_a_piece_that_does_not_fit_is_not_there_and_the_next_one_is(
    tmp_path, monkeypatch, resumes, cuts
):
    path = tmp_path / "f"
    file = opened(path, resumes)
    file.cut()
    monkeypatch.setattr(file, "_file", Full(file._file, 2, cuts=cuts))
    with pytest.raises(OSError, match="No space"):
        file.append(b"a piece")
    monkeypatch.undo()
    assert path.read_bytes() == (b"one" if cuts else b"onea ")
    assert (file.num_bytes, file.sha256) == (3, sha256(b"one"))
    file.append(b"two")
    file.close()
    assert path.read_bytes() == b"onetwo"


def test_a_file_that_is_open_keeps_what_it_had_until_it_is_cut(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"of another run")
    file = AppendedFile(path)
    assert path.read_bytes() == b"of another run"
    file.cut()
    file.close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_the_beginning_of_a_large_file_is_verified(tmp_path, size):
    data = os.urandom(3 * 2**20 + 5)
    (tmp_path / "f").write_bytes(data)
    prefix = Prefix.verified(tmp_path / "f", size, sha256(data[:size]))
    assert (prefix.num_bytes, prefix.sha256) == (size, sha256(data[:size]))
    with pytest.raises(CheckpointError, match="was changed, or is of another run"):
        Prefix.verified(tmp_path / "f", size, sha256(data[: size + 1]))


@pytest.mark.parametrize("found", [None, b"", b"abc"])
def test_a_file_that_is_too_short_or_gone_is_refused(tmp_path, found):
    path = tmp_path / "f"
    if found is not None:
        path.write_bytes(found)
    says = f"has {len(found or b'')} bytes, and the checkpoint knows of 4: put"
    with pytest.raises(CheckpointError, match=says):
        Prefix.verified(path, 4, sha256(b"abcd"))
