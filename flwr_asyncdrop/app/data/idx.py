"""Fashion-MNIST, and the IDX files that it comes in.

torchvision reads such files only when they are unpacked.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.app.data.files import Arrays, damaged, read_file
from flwr_asyncdrop.readable import one_line

FASHION_MNIST = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_fashion_mnist(folder: Path) -> Arrays:
    """Read the four files of Fashion-MNIST."""
    train_x, train_y, test_x, test_y = (read_idx(folder, n) for n in FASHION_MNIST)
    train_x, test_x = (np.expand_dims(images, 1) for images in (train_x, test_x))
    return Arrays(train_x, train_y.astype(np.int64), test_x, test_y.astype(np.int64))


def read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: two zeros, type, rank, big-endian sizes, data."""
    content = read_file(folder, name)
    if content[:3] != b"\0\0\x08":
        raise damaged(folder / name, "it does not begin as an IDX file of bytes")
    try:
        rank = content[3]
        shape = struct.unpack_from(f">{rank}I", content, 4)
        pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
        return pixels.reshape(shape).copy()
    except (IndexError, ValueError, struct.error) as error:
        raise damaged(folder / name, one_line(error)) from error
