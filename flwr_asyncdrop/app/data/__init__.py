"""Data sets and how they are dealt out to devices; without Flower."""

from flwr_asyncdrop.app.data.dataset import Dataset, Normalise, Split
from flwr_asyncdrop.app.data.datasets import (
    DATASET_NAMES,
    TEXT_DATASETS,
    check_dataset,
    load_dataset,
)
from flwr_asyncdrop.app.data.partitions import by_speed_level, dirichlet, iid

__all__ = [
    "DATASET_NAMES",
    "TEXT_DATASETS",
    "Dataset",
    "Normalise",
    "Split",
    "by_speed_level",
    "check_dataset",
    "dirichlet",
    "iid",
    "load_dataset",
]
