import os
import pickle
import shutil

import numpy as np
import pytest

from flwr_asyncdrop.app.data.cifar import read_cifar
from flwr_asyncdrop.exceptions import DataError


def test_batches_in_order(cifar10_root):
    folder = cifar10_root / "cifar-10-batches-py"
    arrays = read_cifar(folder, "CIFAR10")
    assert arrays.train_x.shape == (30, 3, 32, 32)
    assert arrays.train_y[:8].tolist() == [0, 1, 2, 3, 4, 5, 1, 2]
    assert arrays.test_y.tolist() == [5, 6, 7, 8, 9, 0]
    assert (arrays.train_x.dtype, arrays.train_y.dtype) == (np.uint8, np.int64)
    # Planes of red, green and blue, each row by row.
    batch = (folder / "data_batch_2").read_bytes()
    rows = pickle.loads(batch, encoding="bytes")[b"data"]  # noqa: S301  # our own
    assert arrays.train_x[7, 2, 5, 9] == rows[1, 2 * 1024 + 5 * 32 + 9]
    assert arrays.train_x.flags.c_contiguous


def test_fine_labels(cifar100_root):
    arrays = read_cifar(cifar100_root / "cifar-100-python", "CIFAR100")
    assert arrays.train_y.tolist() == list(range(100))
    assert arrays.test_x.shape == (5, 3, 32, 32)


def test_a_folder_of_another_name(cifar10_root):
    folder = cifar10_root / "mine"
    shutil.move(cifar10_root / "cifar-10-batches-py", folder)
    assert len(read_cifar(folder, "CIFAR10").test_y) == 6


class _RunsACommand:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_file_that_is_not_cifars_is_refused_and_runs_no_code(cifar10_root):
    folder, marker = cifar10_root / "cifar-10-batches-py", cifar10_root / "ran"
    (folder / "data_batch_3").write_bytes(pickle.dumps(_RunsACommand(marker)))
    with pytest.raises(DataError, match=r"batches-py is damaged .*corrupted") as caught:
        read_cifar(folder, "CIFAR10")
    assert not marker.exists()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 3000, -1])
def test_truncated(cifar100_root, keep):
    path = cifar100_root / "cifar-100-python" / "test"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="is damaged"):
        read_cifar(path.parent, "CIFAR100")
