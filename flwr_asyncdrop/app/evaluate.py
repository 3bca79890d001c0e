"""Evaluating a model."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop.app.data import Dataset, Split
from flwr_asyncdrop.app.learning import Totals
from flwr_asyncdrop.app.precision import in_precision

_BATCH = 500


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
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            inputs, targets = data.batch(split, samples[start : start + _BATCH], device)
            for name, total in data.task.totals(network(inputs), targets).items():
                totals[name] = total.cpu() + totals.get(name, 0)
    return totals
