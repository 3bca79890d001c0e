"""CIFAR as a compact archive: one ``.npz`` of JPEG images, a fifth of their pixels.

Its arrays are ``header`` (the bytes that begin every JPEG), ``data`` (the rest of all
of them, one after the other), ``offsets`` (where each begins, and the end), ``label``
and ``is_test``. JPEG is lossy: accuracies are close to those on the original pixels,
and not the same.
"""

import io
from itertools import pairwise
from pathlib import Path

import numpy as np

from flwr_asyncdrop.app.data.files import Arrays, damaged, describe, read_file
from flwr_asyncdrop.extras import require

_SHAPE = (32, 32, 3)


def read_compact(folder: Path, name: str) -> Arrays:
    """Read and decode a compact archive, in its order."""
    pillow = require("PIL.Image", "data")
    content = io.BytesIO(read_file(folder, name))
    try:
        with np.load(content, allow_pickle=False) as archive:
            header, data = (archive[key].tobytes() for key in ("header", "data"))
            offsets, labels = archive["offsets"], archive["label"].astype(np.int64)
            test = archive["is_test"].astype(bool)
        images = np.empty((len(offsets) - 1, *_SHAPE), np.uint8)
        for row, (start, end) in zip(images, pairwise(offsets.tolist()), strict=True):
            jpeg = io.BytesIO(header + data[start:end])
            image = np.asarray(pillow.open(jpeg, formats=["JPEG"]))
            if image.shape != _SHAPE:
                raise ValueError(f"an image has the shape {image.shape}")
            row[:] = image
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return Arrays(images[~test], labels[~test], images[test], labels[test])
    # A damaged archive may raise what zip files, numpy and Pillow do, or hold anything.
    except Exception as error:
        raise damaged(folder / name, describe(error)) from error
