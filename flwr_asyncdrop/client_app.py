"""The ready-made ClientApp: classification on the run's data set."""

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.evaluate import score
from flwr_asyncdrop.app.experiment import (
    best_device,
    initial_model,
    load_data,
    partitions,
)
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.app.training import LocalTraining, isolated_randomness
from flwr_asyncdrop.client.capacity import CapacityMod
from flwr_asyncdrop.client.loading import load_submodel
from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.objectives import LogitAdjustedLoss, LossFn
from flwr_asyncdrop.seeding import torch_generator

_KEYS = wire.RecordKeys()

_PROBE_STEPS = 3


def probe(context: Context) -> float:
    """Return the seconds that the local steps of a task take with the full model.

    From a few steps on the device's own samples, after one that is not timed.
    """
    config = _config(context)
    model = deepcopy(initial_model(config))
    task = _Task.of(config, wire.TaskConfig(round=0, seed=0), context, model)
    adjustment = config.algorithm.logit_adjustment
    seconds = 0.0
    with isolated_randomness(task.seed):
        for steps in (1, _PROBE_STEPS):
            started = time.perf_counter()
            task.train(task.local_training(steps, {}), adjustment)
            seconds = time.perf_counter() - started
    return seconds / _PROBE_STEPS * config.local_steps


app = ClientApp(mods=[CapacityMod(probe)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the submodel that the server sent on this device's samples."""
    task = _Task.open(message, context)
    sent = wire.read_config(message)
    training = task.local_training(task.config.local_steps, sent)
    started = time.perf_counter()
    with isolated_randomness(task.seed):
        loss = task.train(training, _number(sent, "logit-adjustment", 0.0))
    metrics = {
        "num-examples": len(task.samples),
        "train-loss": loss,
        "wall-train-seconds": time.perf_counter() - started,
    }
    trained = wire.to_record(task.model.state_dict())
    return _reply(message, metrics, {_KEYS.arrays: trained})


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the global model on this device's samples."""
    task = _Task.open(message, context)
    scores = score(
        task.model,
        task.data,
        task.config.precision,
        split="train",
        samples=task.samples,
    )
    metrics = {
        "num-examples": len(task.samples),
        "loss": scores.loss,
        "accuracy": scores.accuracy,
    }
    return _reply(message, metrics, {})


@dataclass(frozen=True)
class _Task:
    """A message, turned into a model and data on the device that is at hand."""

    config: RunConfig
    seed: int
    model: nn.Module
    data: Dataset
    samples: NDArray[np.int64]
    device: torch.device

    @classmethod
    def open(cls, message: Message, context: Context) -> Self:
        """Turn a message into what it asks for."""
        config = _config(context)
        arrays = message.content.array_records[_KEYS.arrays]
        model = load_submodel(initial_model(config), arrays)
        return cls.of(config, wire.read_task(message), context, model)

    @classmethod
    def of(
        cls,
        config: RunConfig,
        task: wire.TaskConfig,
        context: Context,
        model: nn.Module,
    ) -> Self:
        """Put a task on the device that is at hand; the model moves there."""
        torch.set_num_threads(config.threads)
        device = best_device()
        return cls(
            config=config,
            seed=task.seed,
            model=model.to(device),
            data=load_data(config),
            samples=_samples(task, context.node_config, config),
            device=device,
        )

    def local_training(self, steps: int, sent: Mapping[str, object]) -> LocalTraining:
        """Return the training that the run-config asks for, and the server."""
        config = self.config
        return LocalTraining(
            steps,
            config.batch_size,
            _number(sent, "lr", config.lr),
            config.momentum,
            _number(sent, "proximal-mu", 0.0),
            config.optimizer,
        )

    def train(self, training: LocalTraining, logit_adjustment: float) -> float:
        """Train the model in place; return the mean loss."""
        return training.train(
            in_precision(self.model, self.config.precision),
            self.batch,
            len(self.samples),
            torch_generator(self.seed, "order"),
            self.loss_fn(logit_adjustment),
        )

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of some of the device's samples."""
        return self.data.batch("train", self.samples[positions], self.device)

    def loss_fn(self, logit_adjustment: float) -> LossFn:
        """Return the loss, adjusted as strongly to the labels of the device."""
        if not logit_adjustment:
            return F.cross_entropy
        labels = self.data.train_y[self.samples].to(self.device)
        return LogitAdjustedLoss(labels, self.data.num_classes, logit_adjustment)


def _config(context: Context) -> RunConfig:
    """Return the run's config, with the node's own data folder if it has one."""
    config = RunConfig.parse(context.run_config)
    folder = context.node_config.get("data-dir")
    if not isinstance(folder, str) or config.dataset == "digits":
        return config
    return replace(config, data_dir=folder)


def _samples(
    task: wire.TaskConfig, node_config: Mapping[str, object], config: RunConfig
) -> NDArray[np.int64]:
    """Return the samples of the device that the node plays, or is."""
    device: object = task.partition_id
    count: object = task.num_partitions
    if device is None:
        device = node_config.get(wire.PARTITION_ID)
        count = node_config.get(wire.NUM_PARTITIONS)
    if not isinstance(device, int) or not isinstance(count, int):
        raise DataError(
            "this node does not know its data: start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=8'"
        )
    if not 0 <= device < count:
        raise DataError(f"partition-id={device} must lie in [0, {count})")
    return partitions(config, count)[device]


def _number(sent: Mapping[str, object], key: str, default: float) -> float:
    """Return a number that the server sent, or the default if it did not."""
    value = sent.get(key, default)
    if not isinstance(value, float | int):
        raise ConfigError(f"{key}={value!r} must be a number")
    return float(value)


def _reply(
    message: Message, metrics: dict[str, float | int], arrays: dict[str, ArrayRecord]
) -> Message:
    content = RecordDict({**arrays, "metrics": MetricRecord(dict(metrics))})
    return Message(content, reply_to=message)
