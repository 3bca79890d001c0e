"""The data sets by name, each loaded once a process."""

from functools import lru_cache, partial
from pathlib import Path

import torch

from flwr_asyncdrop.app.data.cache import cached
from flwr_asyncdrop.app.data.catalogue import CATALOGUE, Entry, Source
from flwr_asyncdrop.app.data.dataset import Arrays, Dataset
from flwr_asyncdrop.app.data.digits import read_digits
from flwr_asyncdrop.app.data.download import download as download_files
from flwr_asyncdrop.app.data.images import ImageDataset
from flwr_asyncdrop.app.data.text import TextDataset
from flwr_asyncdrop.exceptions import DataError

DATASET_NAMES: tuple[str, ...] = tuple(CATALOGUE)
"""The names that :func:`load_dataset` knows."""

TEXT_DATASETS: tuple[str, ...] = tuple(
    name for name, entry in CATALOGUE.items() if entry.vocabulary is not None
)
"""Those whose inputs are token ids; the inputs of the others are images."""


def load_dataset(
    name: str, data_dir: Path | str | None = None, download: bool = False
) -> Dataset:
    """Load a data set, or return the one that this process has already loaded.

    Parameters
    ----------
    name : str
        One of :data:`DATASET_NAMES`. ``"digits"`` needs no files.
    data_dir : Path or str, optional
        The folder that holds the data set's own folder, or that folder itself.
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
    if name not in CATALOGUE:
        msg = f"unknown data set {name!r}; choose from {', '.join(DATASET_NAMES)}"
        raise DataError(msg)
    if not CATALOGUE[name].sources:
        return _load(name, None, None)
    if data_dir is None:
        msg = f"{name} is read from files: set data-dir to the folder that holds them"
        raise DataError(msg)
    source, folder = _locate(name, Path(data_dir).expanduser().resolve(), download)
    return _load(name, source, folder)


def _locate(name: str, root: Path, download: bool) -> tuple[Source, Path]:
    """Choose the source whose files are all there; download them if need be."""
    sources = CATALOGUE[name].sources
    for source in sources:
        folder = source.layout.locate(root)
        if not source.layout.missing(folder):
            return source, folder
    first = sources[0]
    if download:
        return first, download_files(first.layout, root)
    folder = first.layout.locate(root)
    missing = folder / first.layout.missing(folder)[0]
    folders = " or ".join(source.layout.folder for source in sources)
    mend = ", or download=true" if first.layout.torchvision else ""
    msg = (
        f"no {name} in {root}: {missing} is missing; set data-dir to the folder that "
        f"holds {folders}{mend}"
    )
    raise DataError(msg)


# A worker serves one data set; the second place is for notebooks and tests.
@lru_cache(maxsize=2)
def _load(name: str, source: Source | None, folder: Path | None) -> Dataset:
    entry = CATALOGUE[name]
    arrays = _read(source, folder)
    _check(arrays, entry, f"{name} in {folder}")
    train_x, train_y, test_x, test_y = (torch.from_numpy(array) for array in arrays)
    common = (name, train_x, train_y, test_x, test_y, entry.num_classes)
    if entry.vocabulary is None:
        return ImageDataset(*common, entry.mean, entry.std)
    return TextDataset(*common, entry.vocabulary)


def _read(source: Source | None, folder: Path | None) -> Arrays:
    if source is None or folder is None:
        return read_digits()
    if not source.cache:
        return source.read(folder)
    return cached(
        source.cache, source.layout.paths(folder), partial(source.read, folder)
    )


def _check(arrays: Arrays, entry: Entry, what: str) -> None:
    """Refuse inputs and labels that do not fit together, or not this data set."""
    for split, inputs, labels in (
        ("training", arrays.train_x, arrays.train_y),
        ("test", arrays.test_x, arrays.test_y),
    ):
        if len(inputs) == 0 or inputs.shape[1:] != entry.input_shape:
            problem = f"{split} inputs have shape {inputs.shape}"
        elif labels.shape != (len(inputs),):
            problem = f"{len(inputs)} {split} inputs but labels of {labels.shape}"
        elif labels.min() < 0 or labels.max() >= entry.num_classes:
            problem = f"{split} labels from {labels.min()} to {labels.max()}"
        else:
            continue
        msg = f"{what} is damaged ({problem}); delete it and fetch it again"
        raise DataError(msg)
