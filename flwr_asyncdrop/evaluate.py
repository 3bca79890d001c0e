"""Evaluating a classifier on the server's test set."""

import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop.data import Dataset

__all__ = ["accuracy_and_loss"]

_BATCH = 500


def accuracy_and_loss(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """Evaluate `model` on the whole test set.

    Parameters
    ----------
    model : nn.Module
        Maps inputs to logits; put into evaluation mode.
    data : Dataset
        Whose test set is used.

    Returns
    -------
    tuple of float
        Share of correct answers, and mean cross-entropy in nats.
    """
    device = next(model.parameters()).device
    model.eval()
    correct, loss, count = 0, 0.0, len(data.test_y)
    with torch.no_grad():
        for start in range(0, count, _BATCH):
            inputs, labels = data.batch("test", slice(start, start + _BATCH), device)
            logits = model(inputs)
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return correct / count, loss / count
