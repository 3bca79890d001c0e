"""What a model learns: the loss that it minimises, and how it is judged."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Totals = dict[str, Tensor]
"""Sums over samples, by name, from which metrics are computed."""

IGNORED = -100
"""The target of a token that does not count, as in PyTorch's `cross_entropy`."""


class LearningTask(ABC):
    """What a model learns from a data set.

    A subclass needs `loss` alone, and overrides `totals` and `metrics` for metrics
    beside the mean loss.

    Attributes
    ----------
    num_classes : int
        Number of classes if targets are class labels, int64 of shape ``(n,)``; else 0.
        Partitions by labels and the logit adjustment need labels.
    """

    num_classes: int = 0

    @property
    def outputs(self) -> int:
        """Size of the vector that a model returns for each sample.

        0 if it is no vector: then none of the package's own models fits.
        """
        return self.num_classes

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch, a scalar."""

    def totals(self, outputs: Tensor, targets: Tensor) -> Totals:
        """Return sums over the samples of a batch, which are added up over batches.

        Every one is a tensor of float64 or int64, and its shape is the same each time.
        """
        count = len(targets)
        loss = self.loss(outputs, targets).double() * count
        return {"loss": loss, "count": torch.tensor(count)}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the metrics of all samples from their totals, ``"loss"`` included."""
        return {"loss": _ratio(totals["loss"], totals["count"])}


@dataclass(frozen=True)
class Classification(LearningTask):
    """One class a sample: cross entropy; ``accuracy`` and ``loss`` in nats.

    Outputs are logits of shape ``(n, num_classes)``.
    """

    num_classes: int = field()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(outputs, targets)

    def totals(self, outputs: Tensor, targets: Tensor) -> Totals:
        """Return the sum of the losses, and correct answers and samples a class."""
        right = targets[outputs.argmax(dim=1) == targets]
        correct, count = (
            torch.bincount(labels.cpu(), minlength=self.num_classes)
            for labels in (right, targets)
        )
        loss = F.cross_entropy(outputs, targets, reduction="sum").double()
        return {"loss": loss, "correct": correct, "count": count}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the share of correct answers and the mean loss."""
        count = totals["count"].sum()
        return {
            "accuracy": _ratio(totals["correct"].sum(), count),
            "loss": _ratio(totals["loss"], count),
        }

    def class_accuracy(self, totals: Mapping[str, Tensor]) -> Tensor:
        """Return the accuracy of each class, float64; 0 for a class without samples."""
        return totals["correct"].double() / totals["count"].clamp(min=1)


@dataclass(frozen=True)
class Regression(LearningTask):
    """Numbers: mean squared error, ``loss``, and mean absolute error, ``mae``.

    There are `size` numbers a sample. Outputs have as many numbers as targets: targets
    of shape ``(n,)`` go with outputs of shape ``(n, 1)``.
    """

    size: int = 1

    @property
    def outputs(self) -> int:
        """As many numbers as there are to tell."""
        return self.size

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(outputs.reshape(targets.shape), targets)

    def totals(self, outputs: Tensor, targets: Tensor) -> Totals:
        """Return the sums of the squared and the absolute errors."""
        errors = (outputs.reshape(targets.shape) - targets).double()
        return {
            "loss": errors.square().sum(),
            "mae": errors.abs().sum(),
            "count": torch.tensor(targets.numel()),
        }

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean squared and the mean absolute error."""
        return {name: _ratio(totals[name], totals["count"]) for name in ("loss", "mae")}


@dataclass(frozen=True)
class NextToken(LearningTask):
    """The token after each: cross entropy; ``loss``, ``perplexity`` and ``accuracy``.

    Outputs are logits of shape ``(n, length, vocabulary)``, targets int64 token ids of
    shape ``(n, length)``. Targets of -100 do not count. Metrics are means over tokens.
    """

    vocabulary: int

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of a token."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def totals(self, outputs: Tensor, targets: Tensor) -> Totals:
        """Return the sum of the losses, and how many tokens are right, of how many."""
        logits, tokens = outputs.flatten(0, 1), targets.flatten()
        return {
            "loss": F.cross_entropy(logits, tokens, reduction="sum").double(),
            "correct": (logits.argmax(dim=1) == tokens).sum(),
            "count": (tokens != IGNORED).sum(),
        }

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the means, and the exponential of the mean loss."""
        loss = totals["loss"] / totals["count"]
        return {
            "accuracy": _ratio(totals["correct"], totals["count"]),
            "loss": loss.item(),
            "perplexity": loss.exp().item(),
        }


def _ratio(total: Tensor, count: Tensor) -> float:
    return float(total.item() / count.item())
