"""What is known of each data set before it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr_asyncdrop.app.data import cifar, compact, idx, imdb
from flwr_asyncdrop.app.data.dataset import Arrays
from flwr_asyncdrop.app.data.files import Layout


@dataclass(frozen=True)
class Source:
    """One of the ways in which a data set's files come.

    Parameters
    ----------
    layout : Layout
        Which files, and where.
    read : callable
        Reads them from their folder.
    cache : str
        Name and version of ``read``, if its arrays are worth keeping, in a form that
        processes share. Change the version whenever it reads something else.
    """

    layout: Layout
    read: Callable[[Path], Arrays]
    cache: str = ""


@dataclass(frozen=True)
class Entry:
    """A data set in :data:`CATALOGUE`.

    Parameters
    ----------
    input_shape : tuple of int
        (C, H, W) of an image, (T,) of a text.
    num_classes : int
        How many classes there are.
    sources : tuple of Source
        Where it may come from, best first; none if it needs no files.
    mean, std : tuple of float
        Of each channel of its images, as fractions of 255.
    vocabulary : int, optional
        How many token ids there are, if it is of texts.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    sources: tuple[Source, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: int | None = None


def _compact(layout: Layout) -> Source:
    (name,) = layout.files
    return Source(layout, partial(compact.read_compact, name=name), "compact-cifar-1")


CATALOGUE: dict[str, Entry] = {
    "digits": Entry((1, 8, 8), 10, mean=(0.3055,), std=(0.3759,)),
    "fashion-mnist": Entry(
        (1, 28, 28),
        10,
        (Source(idx.FASHION_MNIST, idx.read_fashion_mnist, "fashion-mnist-1"),),
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "cifar10": Entry(
        (3, 32, 32),
        10,
        (
            Source(cifar.CIFAR10, cifar.read_cifar10, "cifar10-1"),
            _compact(compact.CIFAR10),
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Entry(
        (3, 32, 32),
        100,
        (
            Source(cifar.CIFAR100, cifar.read_cifar100, "cifar100-1"),
            _compact(compact.CIFAR100),
        ),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    "imdb": Entry(
        (imdb.LENGTH,),
        2,
        (
            Source(imdb.FOLDERS, imdb.read_folders, "imdb-folders-1"),
            Source(imdb.LINES, imdb.read_lines, "imdb-lines-1"),
        ),
        vocabulary=imdb.VOCABULARY,
    ),
}
"""The data sets by name."""
