"""A data set in memory, compact, and made into a model's inputs a batch at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Split = Literal["train", "test"]


class Arrays(NamedTuple):
    """What a file format's reader returns: compact inputs and ``int64`` labels.

    Images are ``uint8`` of shape (N, C, H, W), texts are ``int16`` token ids of shape
    (N, T).
    """

    train_x: npt.NDArray[Any]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[Any]
    test_y: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset(ABC):
    """Labelled samples for classification, shared by all users of a process.

    A subclass says how compact samples become what a model takes.

    Parameters
    ----------
    name : str
        The name that :func:`~flwr_asyncdrop.app.data.load_dataset` knows it by.
    train_x, test_x : Tensor
        Inputs in their compact form, of shape (N, ...). Do not write to them.
    train_y, test_y : Tensor
        Labels, ``int64`` of shape (N,), from 0 to ``num_classes - 1``.
    num_classes : int
        How many classes there are.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) of an image, (T,) of a text."""
        return tuple(self.train_x.shape[1:])

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None if the inputs are not token ids."""
        return None

    def batch(
        self,
        split: Split,
        indices: Tensor | npt.NDArray[np.int64] | slice,
        device: torch.device | str = "cpu",
    ) -> tuple[Tensor, Tensor]:
        """Take some samples, ready for a model.

        Parameters
        ----------
        split : {"train", "test"}
            Which part the indices refer to.
        indices : Tensor, ndarray of int64, or slice
            The samples wanted, in the order wanted.
        device : torch.device or str
            Where to put them. The compact form travels, and is unfolded there.

        Returns
        -------
        tuple of Tensor
            Inputs of shape (n, *input_shape), ``float32`` images or ``int64`` token
            ids, and ``int64`` labels of shape (n,).
        """
        inputs, labels = {
            "train": (self.train_x, self.train_y),
            "test": (self.test_x, self.test_y),
        }[split]
        compact = _take(inputs, indices).to(device)
        return self._unfold(compact), _take(labels, indices).to(device)

    def example_inputs(self) -> Tensor:
        """Take the inputs of one training sample, to plan a model's submodels with."""
        inputs, _ = self.batch("train", slice(0, 1))
        return inputs

    @abstractmethod
    def _unfold(self, compact: Tensor) -> Tensor:
        """Make a model's inputs of compact ones, on their device."""


def _take(values: Tensor, indices: Tensor | npt.NDArray[np.int64] | slice) -> Tensor:
    if isinstance(indices, slice):
        return values[indices]
    # `values[indices]`, strides and all (they decide how a convolution is computed, and
    # so how it rounds), in a tenth of the time.
    shape = (len(indices), *values.shape[1:])
    taken = values.new_empty_strided(shape, values.stride())
    return torch.index_select(values, 0, torch.as_tensor(indices), out=taken)
