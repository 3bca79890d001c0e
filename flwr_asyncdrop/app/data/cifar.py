"""CIFAR-10 and CIFAR-100, and the pickles that they come in."""

import io
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flwr_asyncdrop.app.data.dataset import Arrays
from flwr_asyncdrop.app.data.files import Layout, damaged, describe, read_file

CIFAR10 = Layout(
    folder="cifar-10-batches-py",
    files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    torchvision="CIFAR10",
)
CIFAR100 = Layout(
    folder="cifar-100-python", files=("train", "test"), torchvision="CIFAR100"
)

_SHAPE = (3, 32, 32)

# All that a pickled uint8 array refers to. numpy's private function is taken from
# an array, because the module that holds it was renamed in numpy 2.
_RECONSTRUCT: Final[Any] = np.empty(0).__reduce__()[0]
_ALLOWED: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            msg = f"it asks for {module}.{name}, which no CIFAR file does"
            raise pickle.UnpicklingError(msg) from None


def read_cifar10(folder: Path) -> Arrays:
    """Read the five training batches and the test batch of CIFAR-10.

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    *train, test = (read_batch(folder, name, b"labels") for name in CIFAR10.files)
    train_x = np.concatenate([images for images, _ in train])
    train_y = np.concatenate([labels for _, labels in train])
    return Arrays(train_x, train_y, *test)


def read_cifar100(folder: Path) -> Arrays:
    """Read CIFAR-100 with its 100 fine labels.

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    train, test = (read_batch(folder, name, b"fine_labels") for name in CIFAR100.files)
    return Arrays(*train, *test)


def read_batch(
    folder: Path, name: str, label_key: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read one pickle of rows of 3072 bytes (red, green, blue) and their labels.

    Only numpy arrays and plain containers are unpickled: a file cannot run code.

    Returns
    -------
    tuple of ndarray
        ``uint8`` images of shape (n, 3, 32, 32) and ``int64`` labels of shape (n,).

    Raises
    ------
    DataError
        The file is missing, damaged, or holds something else.
    """
    content = read_file(folder, name)
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        rows = batch[b"data"]
        images = rows.reshape(len(rows), *_SHAPE)
        labels = np.asarray(batch[label_key], np.int64)
    # A damaged pickle may raise nearly anything, or hold it.
    except Exception as error:
        raise damaged(folder, name, describe(error)) from error
    if images.dtype != np.uint8:
        raise damaged(folder, name, f"{images.dtype} pixels instead of uint8")
    return images, labels
