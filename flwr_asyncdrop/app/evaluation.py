"""Evaluating a model, on a client or on the server's test set."""

import copy
import math

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset, Split
from flwr_asyncdrop.app.experiment import (
    check_fleet,
    initial_model,
    level_mixes,
    load_data,
    trained_model,
)
from flwr_asyncdrop.app.learning import (
    Classification,
    LearningTask,
    NextToken,
    Totals,
)
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.app.training import isolated_randomness
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import plain
from flwr_asyncdrop.readable import kind_and_line, one_line, printable, shown
from flwr_asyncdrop.references import is_reference
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState

LEVEL_ACCURACY = "level-accuracy"
_BATCH = 500
_MOST_LOGITS = _BATCH * 32 * 4000  # of a batch of texts: a quarter of a gigabyte


def evaluate(
    model: nn.Module,
    data: Dataset,
    precision: str = "float32",
    *,
    split: Split = "test",
    samples: NDArray[np.int64] | None = None,
) -> Totals:
    """Return the totals of `model`, of which the data set's task makes metrics.

    `samples` are positions in the split, by default all. The model is put into
    evaluation mode.
    """
    device = next(model.parameters()).device
    network = in_precision(model.eval(), precision)
    if samples is None:
        samples = np.arange(len(data.train_y if split == "train" else data.test_y))
    totals: Totals = {}
    size = _batch_size(data)
    with torch.no_grad():
        for start in range(0, len(samples), size):
            inputs, targets = data.batch(split, samples[start : start + size], device)
            for name, total in data.task.totals(network(inputs), targets).items():
                totals[name] = total.cpu() + totals.get(name, 0)
    return totals


def _batch_size(data: Dataset) -> int:
    """Return how many samples are evaluated at once; a language model's are large."""
    if not isinstance(data.task, NextToken):
        return _BATCH
    logits = math.prod(data.test_y.shape[1:]) * data.task.vocabulary
    return min(_BATCH, max(_MOST_LOGITS // max(logits, 1), 1))


def check_own(config: RunConfig) -> None:
    """Test an own model or data set on two samples; ConfigError if that fails.

    Of labels they are the first and the last, which a model may lack.
    """
    if not (is_reference(config.dataset) or is_reference(config.model)):
        return
    data, model = load_data(config), copy.deepcopy(initial_model(config))
    few = np.arange(min(2, len(data.test_y)))
    if data.num_classes:
        few = np.array([int(data.test_y.argmin()), int(data.test_y.argmax())])
    try:
        with isolated_randomness(config.seed):
            evaluate(model, data, config.precision, samples=few)
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"model={config.model!r} cannot be tested on dataset={config.dataset!r} "
            f"({kind_and_line(error)}): the model must take the "
            "inputs, and the data set's task its outputs and the targets"
        ) from error


def metrics_of(task: LearningTask, totals: Totals) -> MetricRecord:
    """Return the metrics that a task makes of totals; ConfigError if it makes none."""
    what = f"metrics(...) of the data set's task {type(task).__name__}"
    try:
        metrics = dict(task.metrics(totals))
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"{what} failed ({one_line(error)}): it gets the sums that totals(...) "
            "returned, added up over batches"
        ) from error
    try:
        return MetricRecord({name: plain(value) for name, value in metrics.items()})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} returned {printable(shown(metrics))}: return a dict of numbers"
        ) from error


class CentralTest(Callback):
    """Flower's ``evaluate_fn``: the metrics of the global model.

    Where labels are tied to the speed of devices, it adds ``level-accuracy``: for each
    speed level, the fastest first, the accuracy on the mix of labels of that level. It
    must be among the run's callbacks, to get the size of the fleet. Labels of which
    there is no test sample are left out of a mix; of one without others it is NaN.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._data = load_data(config)
        self._num_devices = 0
        # So clients may train in this process meanwhile. Of what is own nobody knows.
        own = is_reference(config.dataset) or is_reference(config.model)
        self.draws_nothing = not own

    def on_start(self, state: RunState) -> None:
        """Note how many devices there are; DataError if they are too many."""
        check_fleet(self._config, state.num_devices)
        self._num_devices = state.num_devices

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Test a model."""
        model = trained_model(self._config, wire.from_record(arrays))
        task = self._data.task
        totals = evaluate(model, self._data, self._config.precision)
        metrics = metrics_of(task, totals)
        by_level = self._num_devices > 0 and self._config.partition == "speed-level"
        if by_level and isinstance(task, Classification):
            mixes = level_mixes(self._config, self._num_devices)
            tested = (totals["count"] > 0).numpy()
            levels = np.divide(
                mixes @ task.class_accuracy(totals).numpy(),
                1 - mixes[:, ~tested].sum(axis=1),
                out=np.full(len(mixes), np.nan),
                where=mixes[:, tested].any(axis=1),
            )
            metrics[LEVEL_ACCURACY] = levels.tolist()
        return metrics
