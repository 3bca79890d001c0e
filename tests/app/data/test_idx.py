import gzip

import numpy as np
import pytest

from flwr_asyncdrop.app.data.idx import read_idx
from flwr_asyncdrop.exceptions import DataError

# Type 8 (bytes), rank 2, two rows of three.
CONTENT = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22])


def test_by_hand(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    array = read_idx(tmp_path, "x")
    assert array.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert array.dtype == np.uint8
    assert array.flags.writeable


def test_gzip(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT))
    assert read_idx(tmp_path, "x").tolist() == [[10, 11, 12], [20, 21, 22]]


def test_plain_is_preferred(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    (tmp_path / "x.gz").write_bytes(b"not looked at")
    assert read_idx(tmp_path, "x").shape == (2, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not begin as an IDX file"),
        (b"<html>", "does not begin as an IDX file"),
        (bytes([0, 0, 13]) + CONTENT[3:], "does not begin as an IDX file"),
        (bytes([0, 0, 8, 0]), "cannot reshape|must be"),
        (CONTENT[:9], "requires a buffer of at least 12 bytes"),
        (CONTENT[:-1], "cannot reshape array of size 5"),
        (CONTENT + b"!", "cannot reshape array of size 7"),
    ],
)
def test_damaged(tmp_path, content, reason):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=f"x is damaged .*{reason}.*fetch it again$"):
        read_idx(tmp_path, "x")


@pytest.mark.parametrize("keep", [0, 5, 20, -9, -1])
def test_truncated_gzip(tmp_path, keep):
    (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT)[:keep])
    with pytest.raises(DataError, match=r"x\.gz is damaged") as caught:
        read_idx(tmp_path, "x")
    assert "\n" not in str(caught.value)


def test_damaged_gzip(tmp_path):
    content = bytearray(gzip.compress(CONTENT * 50))
    content[15] ^= 0xFF
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        read_idx(tmp_path, "x")


def test_absent(tmp_path):
    with pytest.raises(DataError, match=r"no x\[\.gz\] in .*; put it back"):
        read_idx(tmp_path, "x")
