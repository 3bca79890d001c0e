"""A data set in RAM, and its batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_asyncdrop.app.learning import LearningTask
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.objectives.losses import takes_logits
from flwr_asyncdrop.readable import printable, shown, type_of

Split = Literal["train", "test"]

_LABELS = (torch.int64, torch.uint8)  # what cross entropy takes


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples for training and testing, and what is learnt from them.

    ``dataset='package.module:function'`` runs an own one: the function takes the
    folder that ``data-dir`` names, a ``Path`` or None, and returns a `Dataset`, in
    every process the same.

    Attributes
    ----------
    train_x, test_x : Tensor
        Inputs, of shape ``(N, ...)``, as compact as may be: images as bytes.
    train_y, test_y : Tensor
        Targets, of shape ``(N, ...)``, as the task's loss takes them.
    task : LearningTask
        What is learnt.
    prepare : callable or None
        Makes a model's inputs of some of the inputs, on the device that computes; None
        if they are such already.
    vocabulary : int or None
        How many token ids there are; None if inputs are no token ids.
    groups : Tensor or None
        A group of each training sample, int64 of shape ``(N,)`` from 0 on, where
        targets are no labels: partitions by labels deal samples out by groups then.

    Raises
    ------
    DataError
        If there are no samples, not as many targets as inputs, labels that are not one
        number a sample or of no class, groups that do not fit, no tensors, or no task.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    task: LearningTask
    prepare: Callable[[Tensor], Tensor] | None = None
    vocabulary: int | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        groups = () if self.groups is None else ("groups",)
        for name in ("train_x", "train_y", "test_x", "test_y", *groups):
            if not isinstance(value := getattr(self, name), Tensor):
                raise DataError(
                    f"{name} is {type_of(value)}: give a tensor, e.g. "
                    "torch.as_tensor(...)"
                )
        if not isinstance(self.task, LearningTask):
            raise DataError(
                f"task={printable(shown(self.task))} is no LearningTask: give an "
                "object of one, e.g. Regression()"
            )
        for split, inputs, targets in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if len(inputs) != len(targets) or len(inputs) == 0:
                raise DataError(
                    f"{len(inputs)} {split} inputs and {len(targets)} targets: there "
                    "must be some, and as many of both"
                )
            if self.num_classes:
                self._check_labels(split, targets)
        if self.groups is not None:
            self._check_groups(self.groups)

    def _check_labels(self, split: str, labels: Tensor) -> None:
        if labels.dtype not in _LABELS or labels.dim() != 1:
            raise DataError(
                f"{split} labels have type {labels.dtype} and shape "
                f"{tuple(labels.shape)}: give int64 of shape ({len(labels)},), one a "
                "sample"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.num_classes:
            raise DataError(
                f"{split} labels go from {low} to {high}, and there are "
                f"{self.num_classes} classes: number them from 0"
            )

    def _check_groups(self, groups: Tensor) -> None:
        if self.num_classes:
            raise DataError(
                "groups are for targets that are no labels, and these are: leave out "
                "groups"
            )
        if groups.dtype != torch.int64 or groups.shape != (len(self.train_y),):
            raise DataError(
                f"groups have type {groups.dtype} and shape {tuple(groups.shape)}: "
                f"give int64 of shape ({len(self.train_y)},), one a training sample"
            )
        if groups.min() < 0:
            raise DataError(f"groups begin at {int(groups.min())}: number them from 0")

    @property
    def dealt_by(self) -> Tensor:
        """What partitions by labels look at: groups if there are any, else targets."""
        return self.train_y if self.groups is None else self.groups

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) of an image, (T,) of a text."""
        return tuple(self.train_x.shape[1:])

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 if targets are no labels."""
        return self.task.num_classes

    @cached_property
    def has_logits(self) -> bool:
        """Whether targets are labels, and the task's loss is one of logits."""
        classes = self.num_classes
        return bool(classes) and takes_logits(self.task.loss, self.train_y, classes)

    def batch(
        self,
        split: Split,
        indices: Tensor | NDArray[np.int64] | slice,
        device: torch.device | str = "cpu",
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return some samples of a split, ready for a model, in the order of `indices`.

        The compact form is changed by `augment`, travels to the device, and is prepared
        there.
        """
        inputs, targets = {
            "train": (self.train_x, self.train_y),
            "test": (self.test_x, self.test_y),
        }[split]
        taken = _take(inputs, indices)
        taken = (taken if augment is None else augment(taken)).to(device)
        prepared = taken if self.prepare is None else self.prepare(taken)
        return prepared, _take(targets, indices).to(device)

    def example_inputs(self) -> Tensor:
        """Return a copy of one sample's inputs, to plan a model's submodels with."""
        return self.batch("train", slice(0, 1))[0].clone()


@dataclass(frozen=True)
class Normalise:
    """Makes float32 images of zero mean and unit variance a channel of bytes.

    Attributes
    ----------
    mean, std : tuple of float
        Of each channel over the training images, as fractions of 255.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images of shape ``(n, C, H, W)``."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return images.to(torch.float32).div_(255).sub_(mean).div_(std)


def _take(values: Tensor, indices: Tensor | NDArray[np.int64] | slice) -> Tensor:
    if isinstance(indices, slice):
        return values[indices]
    # `values[indices]`, strides and all (they decide how a convolution is computed, and
    # so how it rounds), in a tenth of the time.
    shape = (len(indices), *values.shape[1:])
    if _overlap(shape, values.stride()):
        return values[torch.as_tensor(indices)]
    taken = values.new_empty_strided(shape, values.stride())
    return torch.index_select(values, 0, torch.as_tensor(indices), out=taken)


def _overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements may share memory: those of windows that overlap do."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
