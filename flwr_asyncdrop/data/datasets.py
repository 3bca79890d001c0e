"""The data sets by name, each loaded once a process."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from flwr_asyncdrop.data.cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100
from flwr_asyncdrop.data.dataset import Arrays, Dataset
from flwr_asyncdrop.data.digits import read_digits
from flwr_asyncdrop.data.download import download as download_files
from flwr_asyncdrop.data.files import Layout
from flwr_asyncdrop.data.idx import FASHION_MNIST, read_fashion_mnist
from flwr_asyncdrop.exceptions import DataError


@dataclass(frozen=True)
class _Info:
    """What is known of a data set before it is read."""

    input_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


_INFO = {
    "digits": _Info((1, 8, 8), 10, (0.3055,), (0.3759,)),
    "fashion-mnist": _Info((1, 28, 28), 10, (0.2860,), (0.3530,)),
    "cifar10": _Info(
        (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": _Info(
        (3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
}
_ON_DISK: dict[str, tuple[Layout, Callable[[Path], Arrays]]] = {
    "fashion-mnist": (FASHION_MNIST, read_fashion_mnist),
    "cifar10": (CIFAR10, read_cifar10),
    "cifar100": (CIFAR100, read_cifar100),
}

DATASET_NAMES: tuple[str, ...] = tuple(_INFO)
"""The names that :func:`load_dataset` knows."""


def load_dataset(
    name: str, data_dir: Path | str | None = None, download: bool = False
) -> Dataset:
    """Load a data set, or return the one that this process has already loaded.

    Parameters
    ----------
    name : str
        One of :data:`DATASET_NAMES`. ``"digits"`` needs no files.
    data_dir : Path or str, optional
        torchvision's root folder, or the data set's own folder.
    download : bool
        Whether torchvision may fetch files that are absent, into ``data_dir``.

    Returns
    -------
    Dataset
        Shared between all callers with the same name and folder: do not write to
        its tensors.

    Raises
    ------
    DataError
        The name is unknown, or the files are missing or damaged, or could not be
        downloaded.
    """
    if name not in _INFO:
        msg = f"unknown data set {name!r}; choose from {', '.join(DATASET_NAMES)}"
        raise DataError(msg)
    if name not in _ON_DISK:
        return _load(name, None)
    layout, _ = _ON_DISK[name]
    if data_dir is None:
        msg = f"{name} is read from files: set data-dir to the folder that holds them"
        raise DataError(msg)
    root = Path(data_dir).expanduser().resolve()
    folder = layout.locate(root)
    missing = layout.missing(folder)
    if missing and not download:
        msg = (
            f"no {name} in {root}: {folder / missing[0]} is missing; set data-dir to "
            f"the folder that holds {layout.folder}, or download=true"
        )
        raise DataError(msg)
    if missing:
        folder = download_files(layout, root)
    return _load(name, folder)


# A worker serves one data set; the second place is for notebooks and tests.
@lru_cache(maxsize=2)
def _load(name: str, folder: Path | None) -> Dataset:
    if folder is None:
        arrays = read_digits()
    else:
        _, read = _ON_DISK[name]
        arrays = read(folder)
    info = _INFO[name]
    _check(arrays, info, f"{name} in {folder}")
    return Dataset(
        name=name,
        train_x=torch.from_numpy(arrays.train_x),
        train_y=torch.from_numpy(arrays.train_y),
        test_x=torch.from_numpy(arrays.test_x),
        test_y=torch.from_numpy(arrays.test_y),
        num_classes=info.num_classes,
        mean=info.mean,
        std=info.std,
    )


def _check(arrays: Arrays, info: _Info, what: str) -> None:
    """Refuse images and labels that do not fit together, or not this data set."""
    for split, images, labels in (
        ("training", arrays.train_x, arrays.train_y),
        ("test", arrays.test_x, arrays.test_y),
    ):
        if len(images) == 0 or images.shape[1:] != info.input_shape:
            problem = f"{split} images have shape {images.shape}"
        elif labels.shape != (len(images),):
            problem = f"{len(images)} {split} images but labels of {labels.shape}"
        elif labels.min() < 0 or labels.max() >= info.num_classes:
            problem = f"{split} labels from {labels.min()} to {labels.max()}"
        else:
            continue
        msg = f"{what} is damaged ({problem}); delete it and set download=true"
        raise DataError(msg)
