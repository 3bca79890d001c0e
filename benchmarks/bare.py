"""The least that a simulation costs: its steps, merges and evaluations, bare."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.algorithms.mixed import AsyncFedAvg
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset

__all__ = ["FloatData", "bare_loop"]

_EVALUATION_BATCH = 500


@dataclass(frozen=True, eq=False)
class FloatData:
    """A data set as one would have it in a script: normalised floats in memory."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def of(cls, data: Dataset) -> Self:
        """Normalise the whole data set."""
        return cls(*data.batch("train", slice(None)), *data.batch("test", slice(None)))


def bare_loop(
    model: nn.Module,
    data: FloatData,
    shares: Sequence[NDArray[np.int64]],
    config: RunConfig,
) -> float:
    """Train on one device after the other and mix each result in; no Flower, no fleet.

    Parameters
    ----------
    model : Module
        Holds the initial weights; trained in place.
    data : FloatData
        What is trained on.
    shares : sequence of ndarray
        The samples of each device.
    config : RunConfig
        Numbers of updates, steps and evaluations, the optimiser's settings, and an
        algorithm with a mixing rate.

    Returns
    -------
    float
        The last accuracy, so that nobody need not compute it.
    """
    torch.set_num_threads(config.threads)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    alpha = _mixing_rate(config.algorithm)
    accuracy = _accuracy(model, data)
    for number in range(1, config.num_rounds + 1):
        for slot in range(config.in_flight):
            device = (number * config.in_flight + slot) % len(shares)
            model.load_state_dict(weights)
            _train(model, data, torch.from_numpy(shares[device]), config)
            for name, tensor in model.state_dict().items():
                weights[name].lerp_(tensor, alpha)
        if number % config.evaluate_every == 0 or number == config.num_rounds:
            model.load_state_dict(weights)
            accuracy = _accuracy(model, data)
    return accuracy


def _train(model: nn.Module, data: FloatData, share: Tensor, config: RunConfig) -> None:
    model.train()
    optimiser = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum
    )
    for positions in _batches(len(share), config):
        samples = share[positions]
        optimiser.zero_grad()
        loss = F.cross_entropy(model(data.train_x[samples]), data.train_y[samples])
        loss.backward()
        optimiser.step()


def _mixing_rate(algorithm: Algorithm) -> float:
    if not isinstance(algorithm, AsyncFedAvg):
        raise ValueError(f"{algorithm} does not mix at a rate")
    return algorithm.alpha


def _batches(num_samples: int, config: RunConfig) -> Iterator[Tensor]:
    size, start = min(config.batch_size, num_samples), 0
    order = torch.randperm(num_samples)
    for _ in range(config.local_steps):
        if start + size > num_samples:
            order, start = torch.randperm(num_samples), 0
        yield order[start : start + size]
        start += size


@torch.no_grad()
def _accuracy(model: nn.Module, data: FloatData) -> float:
    model.eval()
    correct = 0
    for start in range(0, len(data.test_y), _EVALUATION_BATCH):
        labels = data.test_y[start : start + _EVALUATION_BATCH]
        logits = model(data.test_x[start : start + _EVALUATION_BATCH])
        correct += int((logits.argmax(dim=1) == labels).sum())
        F.cross_entropy(logits, labels, reduction="sum")
    return correct / len(data.test_y)
