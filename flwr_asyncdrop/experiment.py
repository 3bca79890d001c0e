"""What server and clients of the ready app agree on: data, partition, model."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop.config import RunConfig
from flwr_asyncdrop.data import Dataset, by_speed_level, iid, load_dataset
from flwr_asyncdrop.models import build_model
from flwr_asyncdrop.seeding import derive_seed, numpy_generator

__all__ = ["initial_model", "load_data", "partitions"]


def load_data(config: RunConfig) -> Dataset:
    """Load the run's data set, once a process."""
    return load_dataset(config.dataset, config.data_path, config.download)


@lru_cache(maxsize=2)
def initial_model(config: RunConfig) -> nn.Module:
    """Build the run's model with its initial weights; shared, so do not train it."""
    data = load_data(config)
    seed = derive_seed(config.seed, "model")
    return build_model(config.model, data.input_shape, data.num_classes, seed)


@lru_cache(maxsize=2)
def partitions(config: RunConfig, num_devices: int) -> list[NDArray[np.int64]]:
    """Return the positions of the training samples that each device holds."""
    data = load_data(config)
    generator = numpy_generator(config.seed, "partition")
    if config.partition == "iid":
        return iid(len(data.train_y), num_devices, generator=generator)
    return by_speed_level(data.train_y, num_devices, config.levels, generator=generator)
