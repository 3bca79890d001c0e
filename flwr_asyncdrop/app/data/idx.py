"""Fashion-MNIST, and the IDX files that it comes in."""

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flwr_asyncdrop.app.data.dataset import Arrays
from flwr_asyncdrop.app.data.files import Layout, damaged, read_file

FASHION_MNIST = Layout(
    folder="FashionMNIST/raw",
    files=(
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ),
    torchvision="FashionMNIST",
)

_UNSIGNED_BYTE = 0x08


def read_fashion_mnist(folder: Path) -> Arrays:
    """Read the four files of Fashion-MNIST.

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    train_x, train_y, test_x, test_y = (
        read_idx(folder, name) for name in FASHION_MNIST.files
    )
    return Arrays(
        train_x[:, np.newaxis],
        train_y.astype(np.int64),
        test_x[:, np.newaxis],
        test_y.astype(np.int64),
    )


def read_idx(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes: two zeros, type, rank, big-endian sizes, data.

    Returns
    -------
    ndarray of uint8
        An array of its own, of the shape that the header gives.

    Raises
    ------
    DataError
        The file is missing, no IDX file of bytes, or longer or shorter than its
        header says.
    """
    content = read_file(folder, name)
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise damaged(folder, name, "it does not begin as an IDX file of bytes")
    rank = content[3]
    start = 4 + 4 * rank
    if rank == 0 or len(content) < start:
        raise damaged(folder, name, "its header gives no sizes")
    shape = struct.unpack_from(f">{rank}I", content, 4)
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise damaged(folder, name, f"{len(content)} bytes instead of {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
