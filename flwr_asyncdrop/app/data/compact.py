"""CIFAR as a compact archive: one ``.npz`` of JPEG images, a fifth of their pixels.

Its arrays are ``header`` (the bytes that begin every JPEG), ``data`` (the rest of all
of them, one after the other), ``offsets`` (where each begins, and the end), ``label``
and ``is_test``. JPEG is lossy: accuracies are close to those on the original pixels,
and not the same.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from flwr_asyncdrop.app.data.dataset import Arrays
from flwr_asyncdrop.app.data.files import Layout, damaged, describe, read_file

CIFAR10 = Layout(folder="cifar10", files=("cifar10_jpeg90.npz",))
CIFAR100 = Layout(folder="cifar100", files=("cifar100_jpeg90.npz",))

_SIZE = (32, 32)
_KEYS = ("header", "data", "offsets", "label", "is_test")


def read_compact(folder: Path, name: str) -> Arrays:
    """Read and decode a compact archive; 60,000 images take some ten seconds.

    Returns
    -------
    Arrays
        Images of shape (N, 3, 32, 32) and labels, in the archive's order.

    Raises
    ------
    DataError
        The file is missing, damaged, or holds something else.
    """
    content = io.BytesIO(read_file(folder, name))
    try:
        with np.load(content, allow_pickle=False) as archive:
            header, data, offsets, labels, is_test = (archive[key] for key in _KEYS)
        images = _decode(header.tobytes(), data.tobytes(), offsets)
        test = is_test.astype(bool)
        labels = labels.astype(np.int64)
        return Arrays(images[~test], labels[~test], images[test], labels[test])
    # A damaged archive may raise what zip files, numpy and Pillow do, or hold anything.
    except Exception as error:
        raise damaged(folder, name, describe(error)) from error


def _decode(
    header: bytes, data: bytes, offsets: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    images = np.empty((len(offsets) - 1, *_SIZE, 3), np.uint8)
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    for number, (start, end) in enumerate(bounds):
        with Image.open(
            io.BytesIO(header + data[start:end]), formats=["JPEG"]
        ) as image:
            if image.size != _SIZE or image.mode != "RGB":
                msg = f"image {number} is {image.mode} of {image.size}"
                raise ValueError(msg)
            images[number] = np.asarray(image)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
