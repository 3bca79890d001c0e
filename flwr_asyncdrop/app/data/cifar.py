"""CIFAR-10 and CIFAR-100: the original pickles, or a compact archive."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flwr_asyncdrop.app.data.files import Arrays, damaged, read_file, unreadable
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.readable import one_line

CIFAR10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
CIFAR100 = ("train", "test", "meta")
_SHAPE = (32, 32, 3)


def read_cifar(folder: Path, name: str) -> Arrays:
    """Read ``CIFAR10`` or ``CIFAR100``, with its fine labels, from its folder.

    torchvision compares checksums before it unpickles: no other file runs code.
    """
    kind = getattr(require("torchvision.datasets", "data"), name)
    # The folder may have another name than torchvision gives it.
    kind = type(name, (kind,), {"base_folder": folder.name})
    try:
        parts = [kind(folder.parent, train=train) for train in (True, False)]
    except RuntimeError as error:
        raise damaged(_odd_file(kind, folder), one_line(error)) from error
    except OSError as error:
        raise unreadable(folder, error) from error
    images = (np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)) for part in parts)
    labels = (np.array(part.targets, np.int64) for part in parts)
    train, test = zip(images, labels, strict=True)
    return Arrays(*train, *test)


def _odd_file(kind: Any, folder: Path) -> Path:
    """Return the first file with another checksum, as torchvision does not say it."""
    fits = require("torchvision.datasets.utils", "data").check_integrity
    meta = kind.meta["filename"], kind.meta["md5"]
    files = [*kind.train_list, *kind.test_list, meta]
    odd = (name for name, checksum in files if not fits(folder / name, checksum))
    return folder / next(odd, "")


def read_compact(folder: Path, name: str) -> Arrays:
    """Read a compact archive, an ``.npz`` of JPEG images, a fifth of their pixels.

    Its arrays are ``header`` (the bytes that begin every JPEG), ``data`` (the rest of
    all of them, one after the other), ``offsets`` (where each begins, and the end),
    ``label`` and ``is_test``. JPEG is lossy: accuracies are close to those on the
    original pixels, and not the same.
    """
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
        raise damaged(folder / name, one_line(error)) from error
