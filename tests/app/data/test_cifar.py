import os
import pickle
import shutil

import numpy as np
import pytest

from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.data.cifar import read_cifar, read_compact
from flwr_asyncdrop.exceptions import DataError
from tests.archives import compact_arrays, plain_images


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
    with pytest.raises(
        DataError, match=r"data_batch_3 is damaged .*corrupted"
    ) as caught:
        read_cifar(folder, "CIFAR10")
    assert not marker.exists()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 3000, -1])
@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_truncated(cifar100_root, name, keep):
    path = cifar100_root / "cifar-100-python" / name
    path.write_bytes(path.read_bytes()[: min(keep, 20) if name == "meta" else keep])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        read_cifar(path.parent, "CIFAR100")


NAME = "x.npz"


def test_pixels_and_labels(tmp_path):
    images = plain_images(5)
    np.savez(tmp_path / NAME, **compact_arrays(images, [7, 3, 9, 0, 4], tests=2))
    arrays = read_compact(tmp_path, NAME)
    assert arrays.train_x.shape == (3, 3, 32, 32)
    assert arrays.train_x.dtype == np.uint8
    assert arrays.train_y.tolist() == [7, 3, 9]
    assert arrays.test_y.tolist() == [0, 4]
    decoded = np.concatenate([arrays.train_x, arrays.test_x]).astype(int)
    # Colours survive but for JPEG's rounding, each in its channel.
    assert np.abs(decoded - images.transpose(0, 3, 1, 2)).max() <= 4


def test_train_and_test_may_be_mixed(tmp_path):
    arrays = compact_arrays(plain_images(4), [0, 1, 2, 3], tests=0)
    arrays["is_test"] = np.array([True, False, True, False])
    np.savez(tmp_path / NAME, **arrays)
    read = read_compact(tmp_path, NAME)
    assert (read.train_y.tolist(), read.test_y.tolist()) == ([1, 3], [0, 2])


def test_loads(compact_root):
    data = load_dataset("cifar10", compact_root)
    assert data.train_y.tolist() == [0, 1, 2, 3, 4]
    assert load_dataset("cifar10", compact_root / "cifar10") is not None


def test_the_original_goes_before_the_archive(compact_root, cifar10_root):
    assert compact_root == cifar10_root
    assert len(load_dataset("cifar10", cifar10_root).train_y) == 30


def arrays_without(key):
    arrays = compact_arrays(plain_images(3), [0, 1, 2], tests=1)
    del arrays[key]
    return arrays


def arrays_with(**changes):
    return {**compact_arrays(plain_images(3), [0, 1, 2], tests=1), **changes}


@pytest.mark.parametrize(
    "arrays",
    [
        *(arrays_without(key) for key in ("header", "data", "offsets", "label")),
        arrays_with(offsets=np.array([0, 3, 6, 9])),
        arrays_with(offsets=np.array(5)),
        arrays_with(header=np.zeros(600, np.uint8)),
        arrays_with(is_test=np.array([True, False])),
        arrays_with(label=np.array(["cat", "dog", "owl"])),
        arrays_with(label=np.array([{}, 1, 2], dtype=object)),
        compact_arrays(np.zeros((2, 16, 16, 3), np.uint8), [0, 1], tests=1),
        compact_arrays(np.zeros((2, 32, 32), np.uint8), [0, 1], tests=1),
    ],
)
def test_other_content(tmp_path, arrays):
    np.savez(tmp_path / NAME, **arrays)
    with pytest.raises(DataError, match=r"x\.npz is damaged") as caught:
        read_compact(tmp_path, NAME)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 50, 2000, -1])
def test_a_truncated_archive(tmp_path, keep):
    path = tmp_path / NAME
    np.savez(path, **arrays_with())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"x\.npz is damaged"):
        read_compact(tmp_path, NAME)
