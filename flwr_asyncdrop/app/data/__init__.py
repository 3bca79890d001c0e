"""Data sets and how they are dealt out to devices; without Flower."""

from flwr_asyncdrop.app.data.dataset import Dataset, Normalise, Split
from flwr_asyncdrop.app.data.datasets import (
    DATASET_NAMES,
    DOWNLOADS,
    NEXT_WORD_DATASETS,
    TABLE_DATASETS,
    TEXT_DATASETS,
    check_dataset,
    load_dataset,
)
from flwr_asyncdrop.app.data.partitions import by_speed_level, dirichlet, iid
from flwr_asyncdrop.app.data.sizes import Sizes

__all__ = [
    "DATASET_NAMES",
    "DOWNLOADS",
    "NEXT_WORD_DATASETS",
    "TABLE_DATASETS",
    "TEXT_DATASETS",
    "Dataset",
    "Normalise",
    "Sizes",
    "Split",
    "by_speed_level",
    "check_dataset",
    "dirichlet",
    "iid",
    "load_dataset",
]
