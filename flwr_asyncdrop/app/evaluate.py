"""Evaluating a classifier."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop.app.data import Dataset, Split
from flwr_asyncdrop.app.precision import in_precision

_BATCH = 500


@dataclass(frozen=True, eq=False)
class Scores:
    """How well a model does on some samples.

    Attributes
    ----------
    accuracy : float
        Share of correct answers.
    loss : float
        Mean cross-entropy in nats.
    class_accuracy : ndarray of float64
        Share of correct answers among the samples of each class, shape
        ``(num_classes,)``; 0 for a class without any.
    """

    accuracy: float
    loss: float
    class_accuracy: NDArray[np.float64]


def score(
    model: nn.Module,
    data: Dataset,
    precision: str = "float32",
    *,
    split: Split = "test",
    samples: NDArray[np.int64] | None = None,
) -> Scores:
    """Evaluate `model`, by default on the whole test set.

    Parameters
    ----------
    model : nn.Module
        Maps inputs to logits; put into evaluation mode.
    data : Dataset
        Where the samples are from.
    precision : str
        What to compute in; see `in_precision`.
    split : {"test", "train"}
        Which part of `data`.
    samples : ndarray of int64, optional
        Positions in that part, at least one; by default all.
    """
    device = next(model.parameters()).device
    network = in_precision(model.eval(), precision)
    labels = {"train": data.train_y, "test": data.test_y}[split].numpy()
    samples = np.arange(len(labels)) if samples is None else samples
    truth, answers, loss = labels[samples], [], 0.0
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            chosen = samples[start : start + _BATCH]
            inputs, wanted = data.batch(split, chosen, device)
            logits = network(inputs)
            answers.append(logits.argmax(dim=1).cpu())
            loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
    right = truth[torch.cat(answers).numpy() == truth]
    classes = data.num_classes
    counts, correct = (np.bincount(y, minlength=classes) for y in (truth, right))
    return Scores(
        accuracy=len(right) / len(samples),
        loss=loss / len(samples),
        class_accuracy=correct / np.maximum(counts, 1),
    )
