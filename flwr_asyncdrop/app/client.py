"""The client of the ready app: local training on the run's data set."""

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.app.config import RunConfig, key_table
from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.data.augment import CropAndFlip
from flwr_asyncdrop.app.device import best_device
from flwr_asyncdrop.app.evaluation import evaluate as totals_of
from flwr_asyncdrop.app.evaluation import metrics_of
from flwr_asyncdrop.app.experiment import (
    initial_model,
    load_data,
    partitions,
    weights_of,
)
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.app.training import LocalTraining, isolated_randomness
from flwr_asyncdrop.client.capacity import CapacityMod
from flwr_asyncdrop.client.codec_mod import CodecMod
from flwr_asyncdrop.client.frozen import FrozenMod
from flwr_asyncdrop.client.state import read_client_state, write_client_state
from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.objectives import LocalSteps, LocalTask, checked_config
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import State, load_submodel

_KEYS = wire.RecordKeys()
_PROBE_STEPS = 3
# Metrics.
_EVERY_TASKS = {"num-examples", "train-loss", "wall-train-seconds", wire.WORK}


def probe(context: Context) -> float:
    """Return the seconds that the local steps of a task take with the full model.

    It times a few steps on the device's own samples, after one that is not timed.
    """
    config = _config(context)
    model = deepcopy(initial_model(config))
    work = DeviceWork.of(config, wire.TaskConfig(round=0, seed=0), context, model)
    told = checked_config(config.algorithm.checked_objective())
    settings = {"lr": config.lr, **told}  # as a task has them
    aggregator = config.algorithm.clipped_aggregator(config.in_flight)
    extra = deepcopy(aggregator.extra(model.state_dict()))  # as a task brings it
    seconds = 0.0
    with isolated_randomness(work.seed):
        for steps in (1, _PROBE_STEPS):
            started = time.perf_counter()
            work.train(work.local_task(steps, settings, extra))
            seconds = time.perf_counter() - started
    return seconds / _PROBE_STEPS * config.local_steps


capacity = CapacityMod(probe)
codec = CodecMod()
frozen = FrozenMod(lambda context: initial_model(_config(context)))


def train(message: Message, context: Context) -> Message:
    """Train the submodel that the server sent on this device's samples."""
    work = DeviceWork.open(message, context)
    records = wire.records_of(message.content, ArrayRecord)
    extra = {n: wire.from_record(r) for n, r in records.items() if n != _KEYS.arrays}
    state = read_client_state(context, work.partition)
    asked, usual = wire.read_task(message), work.config.local_steps
    steps = asked.steps(usual)
    task = work.local_task(steps, wire.read_config(message), extra, state)
    started = time.perf_counter()
    with isolated_randomness(work.seed):
        loss, returned, own = work.train(task)
    seconds = time.perf_counter() - started
    _check_kept(work.config.algorithm, task)
    if _is_finite(work.model, returned):  # else the reply will be refused
        write_client_state(context, work.partition, task.state)
    metrics = {
        "num-examples": len(work.samples),
        "train-loss": loss,
        "wall-train-seconds": seconds,
        **({} if asked.work is None else {wire.WORK: steps / usual}),
        **own,
    }
    return _reply(message, metrics, {_KEYS.arrays: weights_of(work.model), **returned})


def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the global model on this device's samples."""
    work = DeviceWork.open(message, context)
    precision, samples = work.config.precision, work.samples
    totals = totals_of(work.model, work.data, precision, split="train", samples=samples)
    found = metrics_of(work.data.task, totals)
    metrics = {"num-examples": len(work.samples), "loss": found["loss"], **found}
    return _reply(message, metrics, {})


@dataclass(frozen=True)
class DeviceWork:
    """A message, turned into a model and data on the processor that is used."""

    config: RunConfig
    seed: int
    model: nn.Module
    data: Dataset
    partition: int  # number of the device that the node plays, or is
    samples: NDArray[np.int64]  # their positions in the training split
    device: torch.device

    @classmethod
    def open(cls, message: Message, context: Context) -> Self:
        """Turn a message into what it asks for."""
        config = _config(context)
        arrays = wire.records_of(message.content, ArrayRecord)[_KEYS.arrays]
        state = wire.from_record(arrays)
        model = load_submodel(initial_model(config), state, scale=config.scale)
        return cls.of(config, wire.read_task(message), context, model)

    @classmethod
    def of(
        cls,
        config: RunConfig,
        task: wire.TaskConfig,
        context: Context,
        model: nn.Module,
    ) -> Self:
        """Prepare a task; the model moves to the processor that is used."""
        torch.set_num_threads(config.threads)
        device = best_device()
        partition, count = _partition(task, context.node_config)
        return cls(
            config=config,
            seed=task.seed,
            model=model.to(device),
            data=load_data(config),
            partition=partition,
            samples=partitions(config, count)[partition],
            device=device,
        )

    def local_task(
        self,
        steps: int,
        settings: Mapping[str, object],
        extra: Mapping[str, State] | None = None,
        state: Mapping[str, State] | None = None,
    ) -> LocalTask:
        """Return what the local objective gets, all on one processor."""
        labels = None
        if self.data.num_classes:
            labels = self.data.train_y[self.samples].to(self.device)
        # An algorithm's own adjustment: one that was asked for is refused.
        if not self.data.has_logits:
            settings = {k: v for k, v in settings.items() if k != "logit-adjustment"}
        return LocalTask(
            model=self.model,
            loss_fn=self.data.task.loss,
            config=settings,
            steps=steps,
            labels=labels,
            num_classes=self.data.num_classes,
            extra=self._moved(extra or {}),
            state=self._moved(state or {}),
        )

    def train(
        self, task: LocalTask
    ) -> tuple[float, Mapping[str, State], Mapping[str, Any]]:
        """Train the model in place.

        Return the mean loss, and the objective's records and numbers for the reply.
        """
        config = self.config
        local = config.algorithm.checked_objective().begin(task)
        lr = task.number("lr", config.lr)
        training = LocalTraining(
            task.steps, config.batch_size, lr, config.momentum, config.optimizer
        )
        augment = None
        if config.augment:
            augment = CropAndFlip(torch_generator(self.seed, "augment"))
        # A tensor of one position would be a single number to NumPy
        samples = torch.from_numpy(self.samples)
        loss = training.train(
            in_precision(self.model, config.precision),
            local,
            lambda at: self.data.batch("train", samples[at], self.device, augment),
            len(self.samples),
            torch_generator(self.seed, "order"),
        )
        return loss, local.finish(), _own_metrics(local)

    def _moved(self, states: Mapping[str, State]) -> dict[str, State]:
        return {
            name: {key: tensor.to(self.device) for key, tensor in state.items()}
            for name, state in states.items()
        }


def _config(context: Context) -> RunConfig:
    """Return the run's config, with the node's own data folder if it has one."""
    config = RunConfig.parse(context.run_config)
    folder = context.node_config.get("data-dir")
    if folder is None or config.dataset == "digits":
        return config
    key = replace(key_table()["data-dir"], name="--node-config data-dir")
    found = key.details.range.check(key.name, key.typed(folder))
    return replace(config, data_dir=found)


def _partition(
    task: wire.TaskConfig, node_config: Mapping[str, object]
) -> tuple[int, int]:
    """Return which device the node plays, or is, and of how many."""
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
    return device, count


def _check_kept(algorithm: Algorithm, task: LocalTask) -> None:
    """Raise ConfigError for a state on the client that the server does not know of."""
    if task.state and not algorithm.keeps_client_state:
        kind = type(algorithm).__name__
        raise ConfigError(
            f"the objective of {kind} keeps {sorted(task.state)[0]!r} in task.state, "
            f"which no checkpoint has: set keeps_client_state = True in class {kind}"
        )


def _own_metrics(local: LocalSteps) -> dict[str, Any]:
    """Return the numbers that an objective adds to a reply; ConfigError for others."""
    source = f"metrics() of {type(local).__name__}"
    found = dict(wire.metric_record(local.metrics(), source) or {})
    if taken := sorted(_EVERY_TASKS & found.keys()):
        raise ConfigError(
            f"{source} returned {taken[0]!r}, which every task has: give it another "
            "name"
        )
    return found


def _is_finite(model: nn.Module, returned: Mapping[str, State]) -> bool:
    trained = [each for each in model.parameters() if each.requires_grad]
    beside = [each for state in returned.values() for each in state.values()]
    return all(bool(tensor.isfinite().all()) for tensor in (*trained, *beside))


def _reply(
    message: Message, metrics: Mapping[str, Any], states: Mapping[str, State]
) -> Message:
    arrays: dict[str, ArrayRecord] = {n: wire.to_record(s) for n, s in states.items()}
    content = RecordDict({**arrays, "metrics": MetricRecord(dict(metrics))})
    return Message(content, reply_to=message)
