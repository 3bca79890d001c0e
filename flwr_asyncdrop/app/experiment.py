"""What server and clients of the ready app agree on: data, partition, model."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset, Sizes, load_dataset
from flwr_asyncdrop.app.data.partitions import (
    Halves,
    by_speed_level,
    check_enough,
    dirichlet,
    iid,
    level_pools,
)
from flwr_asyncdrop.app.device import best_device
from flwr_asyncdrop.app.learning import NextToken
from flwr_asyncdrop.app.models import NEXT_WORD_MODELS, build_model
from flwr_asyncdrop.app.models.factory import build_own_model
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.objectives import checked_config
from flwr_asyncdrop.references import is_reference
from flwr_asyncdrop.seeding import derive_seed, numpy_generator
from flwr_asyncdrop.submodel import State, load_submodel, recalibrate_bn
from flwr_asyncdrop.submodel.batchnorm import batch_norms
from flwr_asyncdrop.submodel.types import tensors_of

_CALIBRATION_SAMPLES = 2048
_CALIBRATION_SHARE = 10  # at most one training sample in so many
_CALIBRATION_BATCH = 256


@lru_cache(maxsize=2)
def load_data(config: RunConfig) -> Dataset:
    """Load the run's data set, once a process."""
    sizes = Sizes(
        config.image_size,
        config.text_length,
        config.vocabulary_size,
        config.test_samples,
    )
    data = load_dataset(config.dataset, config.data_path, config.download, sizes)
    by_labels = config.partition != "iid"
    if by_labels and not data.num_classes and data.groups is None:
        raise ConfigError(
            f"partition={config.partition!r} deals samples out by their labels or "
            f"groups, and dataset={config.dataset!r} has none: set partition='iid'"
        )
    settings = checked_config(config.algorithm.checked_objective())
    tau = settings.get("logit-adjustment")
    if tau and config.is_given("logit-adjustment") and not data.has_logits:
        what = "a loss that is not of logits" if data.num_classes else "none"
        raise ConfigError(
            f"logit-adjustment={tau} corrects a skew of labels, and "
            f"dataset={config.dataset!r} has {what}: leave it out"
        )
    if config.augment and len(data.input_shape) != 3:
        raise ConfigError(
            "augment=true shifts and mirrors images of shape (C, H, W), and inputs of "
            f"dataset={config.dataset!r} have the shape {data.input_shape}: leave it "
            "out"
        )
    return data


@lru_cache(maxsize=2)
def initial_model(config: RunConfig) -> nn.Module:
    """Build the run's model with its initial weights; shared, so do not train it."""
    data = load_data(config)
    seed = derive_seed(config.seed, "model")
    if is_reference(config.model):
        return build_own_model(config.model, data, config.width, seed)
    outputs, each_token = data.task.outputs, False
    if isinstance(data.task, NextToken) and config.model in NEXT_WORD_MODELS:
        outputs, each_token = data.task.vocabulary, True
    if not outputs:
        raise ConfigError(
            f"model={config.model!r} returns one vector a sample, and "
            f"dataset={config.dataset!r} asks for something else: name your own, "
            "model='package.module:function'"
        )
    return build_model(
        config.model,
        data.input_shape,
        outputs,
        seed,
        vocabulary=data.vocabulary,
        width=config.width,
        each_token=each_token,
    )


@lru_cache(maxsize=2)
def calibration_samples(config: RunConfig) -> NDArray[np.int64]:
    """Return the positions of the training samples that no device holds.

    Of their inputs alone a model with batch normalisation gets its running statistics
    before it is tested: at most 2,048, and at most a tenth of the samples. There are
    none for a model without it, nor where one sample is all that a tenth comes to.
    """
    if not batch_norms(initial_model(config)):
        return np.arange(0)
    total = len(load_data(config).train_y)
    count = min(_CALIBRATION_SAMPLES, total // _CALIBRATION_SHARE)
    # Unsorted: each batch is to be like the whole, however the data set is ordered.
    order = numpy_generator(config.seed, "calibration").permutation(total)
    return order[: count if count > 1 else 0]  # one alone has no variance


def weights_of(model: nn.Module) -> State:
    """Return what of a model travels: its tensors, and no extra state of modules."""
    return {name: tensor.detach() for name, tensor in tensors_of(model).items()}


def trained_model(config: RunConfig, arrays: State) -> nn.Module:
    """Return the run's model with trained weights, ready to be used.

    Running statistics of batch normalisation that submodels learnt are biased for the
    full model, so it gets its own from inputs that are held out of training and are
    not tested with: `calibration_samples`.
    """
    data, device = load_data(config), best_device()
    model = load_submodel(initial_model(config), arrays).to(device)
    samples = calibration_samples(config)
    # As equal as can be, since every batch counts the same.
    batches = np.array_split(samples, math.ceil(len(samples) / _CALIBRATION_BATCH) or 1)
    recalibrate_bn(
        in_precision(model, config.precision),
        (data.batch("train", batch, device)[0] for batch in batches if len(batch)),
    )
    return model


@lru_cache(maxsize=2)
def _held_by_devices(config: RunConfig) -> NDArray[np.int64]:
    """Return the positions of the training samples that are dealt out, ascending."""
    samples = np.arange(len(load_data(config).train_y))
    return np.setdiff1d(samples, calibration_samples(config), assume_unique=True)


def check_fleet(config: RunConfig, num_devices: int) -> None:
    """Raise DataError if there are more simulated devices than they can hold samples.

    ConfigError if one holds more than `max-examples`. Real devices say themselves of
    how many they are.
    """
    if config.clock != "virtual":
        return
    held = len(_held_by_devices(config))
    if config.partition == "speed-level":
        check_enough(held, min(config.levels, num_devices), "speed levels")
    else:
        check_enough(held, num_devices, "devices")
    if config.max_examples < held:  # else it takes no look at who holds how many
        most = max(map(len, partitions(config, num_devices)))
        if most > config.max_examples:
            raise ConfigError(
                f"max-examples={config.max_examples} refuses the updates of simulated "
                f"devices, which hold up to {most:,} samples: leave it out, or raise it"
            )


@lru_cache(maxsize=2)
def partitions(config: RunConfig, num_devices: int) -> Halves | list[NDArray[np.int64]]:
    """Return the positions of the training samples that each device holds."""
    held = _held_by_devices(config)
    generator = numpy_generator(config.seed, "partition")
    if config.partition == "iid":
        dealt = iid(len(held), num_devices, generator=generator)
        return [held[part] for part in dealt]
    labels = load_data(config).dealt_by[held]
    if config.partition == "dirichlet":
        dealt = dirichlet(
            labels, num_devices, config.dirichlet_alpha, generator=generator
        )
        return [held[part] for part in dealt]
    halves = by_speed_level(
        labels,
        num_devices,
        config.levels,
        generator=generator,
        shards_per_level=config.shards_per_level,
    )
    return halves.among(held)


@lru_cache(maxsize=2)
def level_mixes(config: RunConfig, num_devices: int) -> NDArray[np.float64]:
    """Return the share of each label in the pool of each speed level, fastest first.

    For ``partition='speed-level'``; of shape ``(levels, num_classes)``.
    """
    data = load_data(config)
    labels = data.train_y[_held_by_devices(config)].numpy()
    pools = level_pools(
        labels,
        min(config.levels, num_devices),
        # As in `partitions`, where it deals the pools out before anything else.
        generator=numpy_generator(config.seed, "partition"),
        shards_per_level=config.shards_per_level,
    )
    counts = [np.bincount(labels[p], minlength=data.num_classes) for p in pools]
    return np.array([count / count.sum() for count in counts])
