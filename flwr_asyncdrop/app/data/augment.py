"""Random changes of training images that leave their labels as they are."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4
"""Pixels of black around an image that is cropped, as is usual for CIFAR."""


@dataclass(frozen=True)
class CropAndFlip:
    """Shifts every image by up to 4 pixels a side, and mirrors half of them.

    An image of shape (C, H, W) gets a border of `PADDING` zeros, and a window of its
    own size is cut out of it at random. With a chance of a half, left and right change
    places.

    Attributes
    ----------
    generator : torch.Generator
        The only source of randomness, on the CPU.
    """

    generator: torch.Generator

    def __call__(self, images: Tensor) -> Tensor:
        """Return images of shape (n, C, H, W), changed one by one, of the same type."""
        count, _, height, width = images.shape
        top, left = (self._draw(2 * PADDING + 1, count) for _ in range(2))
        flipped = self._draw(2, count).bool()
        padded = F.pad(images, (PADDING,) * 4)
        rows = top[:, None] + torch.arange(height)
        columns = torch.arange(width).expand(count, width)
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
        columns = left[:, None] + columns
        each = torch.arange(count)[:, None, None]
        # The channels come last, as they stand between indices.
        cut = padded[each, :, rows[:, :, None], columns[:, None, :]]
        return cut.permute(0, 3, 1, 2).contiguous()

    def _draw(self, high: int, count: int) -> Tensor:
        return torch.randint(high, (count,), generator=self.generator)
