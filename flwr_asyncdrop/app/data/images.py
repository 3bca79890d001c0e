"""Images: bytes in memory, normalised floats for a model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_asyncdrop.app.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """Labelled images, kept as bytes: a quarter of their size as floats.

    :meth:`batch` makes ``float32`` of them, of zero mean and unit variance a channel.

    Parameters
    ----------
    mean, std : tuple of float
        Of each channel over the training images, as fractions of 255.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def _unfold(self, compact: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, device=compact.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=compact.device).view(-1, 1, 1)
        return compact.to(torch.float32).div_(255).sub_(mean).div_(std)
