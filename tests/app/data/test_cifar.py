import os
import pickle

import numpy as np
import pytest

from flwr_asyncdrop.app.data.cifar import read_batch, read_cifar10, read_cifar100
from flwr_asyncdrop.exceptions import DataError

ROWS = (np.arange(2 * 3072) % 251).astype(np.uint8).reshape(2, 3072)


def test_python2_pickle(tmp_path, to_python2_pickle):
    (tmp_path / "x").write_bytes(to_python2_pickle(ROWS, [7, 3], "labels"))
    images, labels = read_batch(tmp_path, "x", b"labels")
    assert images.shape == (2, 3, 32, 32)
    assert images.dtype == np.uint8
    assert labels.tolist() == [7, 3]
    assert labels.dtype == np.int64
    # Planes of red, green and blue, each row by row.
    assert images[1, 2, 5, 9] == ROWS[1, 2 * 1024 + 5 * 32 + 9]


def test_pickle_of_this_numpy(tmp_path):
    batch = {b"data": ROWS, b"fine_labels": [7, 3]}
    (tmp_path / "x").write_bytes(pickle.dumps(batch, protocol=4))
    images, labels = read_batch(tmp_path, "x", b"fine_labels")
    assert np.array_equal(images.reshape(2, 3072), ROWS)
    assert labels.tolist() == [7, 3]


def test_cifar10_batches_in_order(cifar10_root):
    arrays = read_cifar10(cifar10_root / "cifar-10-batches-py")
    assert arrays.train_x.shape == (30, 3, 32, 32)
    assert arrays.train_y[:8].tolist() == [0, 1, 2, 3, 4, 5, 1, 2]
    assert arrays.test_y.tolist() == [5, 6, 7, 8, 9, 0]


def test_cifar100_fine_labels(cifar100_root):
    arrays = read_cifar100(cifar100_root / "cifar-100-python")
    assert arrays.train_y.tolist() == list(range(100))
    assert arrays.test_x.shape == (5, 3, 32, 32)


class _RunsACommand:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_code_is_refused_and_not_run(tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "x").write_bytes(pickle.dumps(_RunsACommand(marker)))
    with pytest.raises(DataError, match=r"x is damaged .*asks for \w+\.system"):
        read_batch(tmp_path, "x", b"labels")
    assert not marker.exists()


@pytest.mark.parametrize(
    "batch",
    [
        [],
        {b"labels": [0, 1]},
        {b"data": ROWS},
        {b"data": ROWS[:, :-1], b"labels": [0, 1]},
        {b"data": ROWS.astype(np.float32), b"labels": [0, 1]},
        {b"data": ROWS, b"labels": ["cat", "dog"]},
        {b"data": ROWS, b"labels": [[0], [1, 2]]},
    ],
)
def test_other_content(tmp_path, batch):
    (tmp_path / "x").write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(DataError, match="x is damaged") as caught:
        read_batch(tmp_path, "x", b"labels")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 40, 3000, -1])
def test_truncated(tmp_path, to_python2_pickle, keep):
    content = to_python2_pickle(ROWS, [7, 3], "labels")[:keep]
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match="x is damaged"):
        read_batch(tmp_path, "x", b"labels")
