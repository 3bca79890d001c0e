"""Data sets and how they are dealt out to devices.

Everything here is numpy and torch, without Flower: a data set is a
:class:`Dataset`, a partition is a list of index arrays into its training labels.
"""

from flwr_asyncdrop.data.dataset import Dataset
from flwr_asyncdrop.data.datasets import DATASET_NAMES, load_dataset
from flwr_asyncdrop.data.partitions import by_speed_level, iid, speed_level

__all__ = [
    "DATASET_NAMES",
    "Dataset",
    "by_speed_level",
    "iid",
    "load_dataset",
    "speed_level",
]
