"""A data set in memory: images as bytes, made into floats a batch at a time."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Split = Literal["train", "test"]


class Arrays(NamedTuple):
    """What a file format's reader returns: NCHW ``uint8`` images, ``int64`` labels."""

    train_x: npt.NDArray[np.uint8]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.uint8]
    test_y: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images for classification, shared by all users of a process.

    The images stay bytes, a quarter of their size as floats; :meth:`batch` makes
    normalised floats of the few that are asked for.

    Parameters
    ----------
    name : str
        The name that :func:`~flwr_asyncdrop.data.load_dataset` knows it by.
    train_x, test_x : Tensor
        Images, ``uint8`` of shape (N, C, H, W). Do not write to them.
    train_y, test_y : Tensor
        Labels, ``int64`` of shape (N,), from 0 to ``num_classes - 1``.
    num_classes : int
        How many classes there are.
    mean, std : tuple of float
        Of each channel over the training images, as fractions of 255.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width

    def batch(
        self,
        split: Split,
        indices: Tensor | npt.NDArray[np.int64] | slice,
        device: torch.device | str = "cpu",
    ) -> tuple[Tensor, Tensor]:
        """Take some samples, normalised to zero mean and unit variance a channel.

        Parameters
        ----------
        split : {"train", "test"}
            Which part the indices refer to.
        indices : Tensor, ndarray of int64, or slice
            The samples wanted, in the order wanted.
        device : torch.device or str
            Where to put them. The bytes travel, and become floats there.

        Returns
        -------
        tuple of Tensor
            ``float32`` images of shape (n, C, H, W) and ``int64`` labels of
            shape (n,).
        """
        images, labels = {
            "train": (self.train_x, self.train_y),
            "test": (self.test_x, self.test_y),
        }[split]
        return self._normalise(images[indices].to(device)), labels[indices].to(device)

    def _normalise(self, images: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return images.to(torch.float32).div_(255).sub_(mean).div_(std)
