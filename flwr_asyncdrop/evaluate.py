"""Evaluating a classifier on the server's test set."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from flwr_asyncdrop.data import Dataset

__all__ = ["Scores", "score"]

_BATCH = 500


@dataclass(frozen=True, eq=False)
class Scores:
    """How well a model does on a test set.

    Attributes
    ----------
    accuracy : float
        Share of correct answers.
    loss : float
        Mean cross-entropy in nats.
    class_accuracy : ndarray of float64
        Share of correct answers among the samples of each class, shape
        ``(num_classes,)``; 0 for a class without test samples.
    """

    accuracy: float
    loss: float
    class_accuracy: NDArray[np.float64]


def score(model: nn.Module, data: Dataset) -> Scores:
    """Evaluate `model` on the whole test set.

    Parameters
    ----------
    model : nn.Module
        Maps inputs to logits; put into evaluation mode.
    data : Dataset
        Whose test set is used.
    """
    device = next(model.parameters()).device
    model.eval()
    answers, loss, count = [], 0.0, len(data.test_y)
    with torch.no_grad():
        for start in range(0, count, _BATCH):
            inputs, labels = data.batch("test", slice(start, start + _BATCH), device)
            logits = model(inputs)
            answers.append(logits.argmax(dim=1).cpu())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    truth = data.test_y.cpu()
    right = truth[torch.cat(answers) == truth]
    samples, correct = (y.bincount(minlength=data.num_classes) for y in (truth, right))
    return Scores(
        accuracy=len(right) / count,
        loss=loss / count,
        class_accuracy=(correct / samples.clamp(min=1)).double().numpy(),
    )
