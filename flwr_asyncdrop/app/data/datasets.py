"""The data sets by name, each loaded once a process."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from operator import methodcaller
from pathlib import Path

import torch
from torch import Tensor

from flwr_asyncdrop.app.data.cache import Tensors, cached
from flwr_asyncdrop.app.data.catalogue import CATALOGUE, Entry
from flwr_asyncdrop.app.data.dataset import Dataset, Normalise
from flwr_asyncdrop.app.data.digits import read_digits
from flwr_asyncdrop.app.data.files import Arrays, Source, unreadable
from flwr_asyncdrop.app.data.files import download as download_files
from flwr_asyncdrop.app.data.next_words import next_words
from flwr_asyncdrop.app.data.sizes import Sizes, check_no_text, fewer_words, resized
from flwr_asyncdrop.app.learning import Classification, NextToken
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.readable import type_of
from flwr_asyncdrop.references import call_reference, is_reference

logger = logging.getLogger("flwr.asyncdrop")

DATASET_NAMES = tuple(CATALOGUE)
TEXT_DATASETS = tuple(
    name
    for name, entry in CATALOGUE.items()
    if entry.vocabulary and not entry.next_word
)
NEXT_WORD_DATASETS = tuple(name for name, entry in CATALOGUE.items() if entry.next_word)
TABLE_DATASETS = tuple(
    name
    for name, entry in CATALOGUE.items()
    if len(entry.input_shape) == 1 and not entry.vocabulary
)
DOWNLOADS = tuple(
    name
    for name, entry in CATALOGUE.items()
    if any(source.torchvision for source in entry.sources)
)
"""Those that ``download=true`` fetches."""

_WHOLE = Sizes()


def load_dataset(
    name: str,
    data_dir: Path | str | None = None,
    download: bool = False,
    sizes: Sizes = _WHOLE,
) -> Dataset:
    """Load a data set, or return the one that this process has already loaded.

    It is shared by all callers: do not write to its tensors. `name` may be
    ``"package.module:function"``, see `Dataset`; `data_dir` holds the data set's own
    folder, or is that folder. `sizes` make it smaller.
    """
    if is_reference(name):
        return _load_own(name, _root(data_dir), sizes)
    return _load(name, *_locate(name, _root(data_dir), download), sizes)


def check_dataset(name: str, data_dir: Path | str | None = None) -> None:
    """Raise DataError if a data set of the catalogue is not there; it is not read."""
    _locate(name, _root(data_dir), download=False)


def _root(data_dir: Path | str | None) -> Path | None:
    if data_dir is None:
        return None
    try:
        root = Path(data_dir).expanduser().resolve()
        with suppress(FileNotFoundError):  # it may be made for a download
            root.stat()
        return root
    except (OSError, RuntimeError) as error:  # e.g. links in a circle
        raise DataError(f"data-dir={str(data_dir)!r} is no folder: {error}") from error


def _locate(
    name: str, root: Path | None, download: bool
) -> tuple[Source, Path] | tuple[None, None]:
    """Choose the source whose files are all there; download them if need be.

    An embedded data set has none.
    """
    if name not in CATALOGUE:
        raise DataError(
            f"unknown data set {name!r}; choose from {', '.join(DATASET_NAMES)}, or "
            "package.module:function for your own"
        )
    sources = CATALOGUE[name].sources
    if not sources:
        return None, None
    if root is None:
        raise DataError(
            f"{name} is read from files: set data-dir to the folder that holds them"
        )
    try:
        return _located(name, root, download)
    except OSError as error:  # e.g. a name that is too long
        raise DataError(
            f"data-dir={str(root)!r} cannot be read ({error.strerror}): set it to the "
            "folder that holds the data sets"
        ) from error


def _located(name: str, root: Path, download: bool) -> tuple[Source, Path]:
    sources = CATALOGUE[name].sources
    for source in sources:
        folder = source.locate(root)
        if not source.missing(folder):
            return source, folder
    first = sources[0]
    if download:
        return first, download_files(first, root)
    folder = first.locate(root)
    folders = " or ".join(source.folder for source in sources)
    raise DataError(
        f"no {name} in {root}: {folder / first.missing(folder)[0]} is missing; set "
        f"data-dir to the folder that holds {folders}"
        f"{', or download=true' if first.torchvision else ''}"
    )


# A worker serves one data set; the second place is for notebooks and tests.
@lru_cache(maxsize=2)
def _load(
    name: str, source: Source | None, folder: Path | None, sizes: Sizes
) -> Dataset:
    entry = CATALOGUE[name]
    if source is None or folder is None:
        tensors = _tensors(read_digits())
    else:
        try:
            paths = list(source.paths(folder))
            tensors = cached(
                source.reader, paths, lambda: _tensors(source.read(folder))
            )
        except OSError as error:  # a link to nowhere, or a folder of others
            raise unreadable(folder, error) from error
    _check(tensors, entry, f"{name} in {folder}")
    _tell_if_part(tensors, entry, f"{name} in {folder}")
    if entry.vocabulary is not None:
        return resized(_texts(tensors, entry, sizes), name, sizes)
    check_no_text(name, sizes)
    prepare = Normalise(entry.mean, entry.std) if entry.mean else None
    return resized(_labelled(tensors, entry, prepare), name, sizes)


def _labelled(
    tensors: Tensors, entry: Entry, prepare: Callable[[Tensor], Tensor] | None
) -> Dataset:
    return Dataset(
        tensors["train_x"],
        tensors["train_y"],
        tensors["test_x"],
        tensors["test_y"],
        Classification(entry.num_classes),
        prepare,
    )


def _texts(tensors: Tensors, entry: Entry, sizes: Sizes) -> Dataset:
    """Return texts with their labels, or each word with the next."""
    length, vocabulary = sizes.text_length, sizes.vocabulary_size
    if not entry.next_word:
        shorter = {
            split: fewer_words(tensors[split], length, vocabulary)
            for split in ("train_x", "test_x")
        }
        tensors = {**tensors, **shorter}
        return replace(_labelled(tensors, entry, _to_int64), vocabulary=vocabulary)
    # One word more than targets, if there is one: the first target's predecessor.
    train, test = (
        next_words(fewer_words(tensors[split], length + 1, vocabulary), length)
        for split in ("train_x", "test_x")
    )
    return Dataset(
        *train[:2],
        *test[:2],
        task=NextToken(vocabulary),
        prepare=_to_int64,
        vocabulary=vocabulary,
        groups=tensors["train_y"][train[2]],
    )


_to_int64 = methodcaller("to", torch.int64)


@lru_cache(maxsize=2)
def _load_own(reference: str, root: Path | None, sizes: Sizes) -> Dataset:
    found = call_reference("dataset", reference, root)
    if not isinstance(found, Dataset):
        raise DataError(
            f"dataset={reference!r} returned {type_of(found)}: return a "
            "flwr_asyncdrop.app.Dataset"
        )
    check_no_text(reference, sizes)
    return resized(found, reference, sizes)


def _tensors(arrays: Arrays) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in arrays._asdict().items()}


def _check(tensors: Tensors, entry: Entry, what: str) -> None:
    """Refuse inputs and labels that do not fit together, or not this data set."""
    for split in ("train", "test"):
        inputs, labels = tensors[f"{split}_x"], tensors[f"{split}_y"]
        if len(inputs) == 0 or inputs.shape[1:] != entry.input_shape:
            problem = f"inputs have shape {tuple(inputs.shape)}"
        elif labels.shape != (len(inputs),):
            problem = f"labels have shape {tuple(labels.shape)}, not ({len(inputs)},)"
        elif labels.min() < 0 or labels.max() >= entry.num_classes:
            problem = f"labels go from {labels.min()} to {labels.max()}"
        else:
            continue
        raise DataError(
            f"{what} is damaged (its {split} {problem}); delete it and fetch it again"
        )


def _tell_if_part(tensors: Tensors, entry: Entry, what: str) -> None:
    """Warn of a data set without some of its samples, which its files do not tell."""
    found = len(tensors["train_y"]), len(tensors["test_y"])
    if entry.samples is not None and entry.samples != found:
        logger.warning(
            "%s has %s samples for training and %s for testing, and all of it has %s "
            "and %s: unless you want a part, fetch it again",
            what,
            *(f"{count:,}" for count in (*found, *entry.samples)),
        )
