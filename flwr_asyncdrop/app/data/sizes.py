"""Smaller forms of a data set: fewer pixels, words, token ids or test samples."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flwr_asyncdrop.app.data import imdb
from flwr_asyncdrop.app.data.dataset import Dataset
from flwr_asyncdrop.exceptions import ConfigError

_CHUNK = 4096  # images that are averaged at once, to bound the memory


@dataclass(frozen=True)
class Sizes:
    """How much is kept of each sample, and of the test set.

    Attributes
    ----------
    image_size : int
        Pixels a side that images are averaged down to; 0 keeps their own.
    text_length : int
        Tokens kept of a text, its last ones.
    vocabulary_size : int
        Token ids kept: rarer words become the unknown one.
    test_samples : int
        Test samples kept; 0 keeps all. Which ones does not depend on a run's seed.
    """

    image_size: int = 0
    text_length: int = imdb.LENGTH
    vocabulary_size: int = imdb.VOCABULARY
    test_samples: int = 0


def check_no_text(name: str, sizes: Sizes) -> None:
    """Refuse sizes of texts for a data set that is no text of the package's own."""
    whole = Sizes()
    for key in ("text_length", "vocabulary_size"):
        value = getattr(sizes, key)
        if value != getattr(whole, key):
            raise ConfigError(
                f"{key.replace('_', '-')}={value} shortens the package's own texts, "
                f"and dataset={name!r} is none: leave it out"
            )


def fewer_words(tokens: Tensor, length: int, vocabulary: int) -> Tensor:
    """Return the last tokens of texts, ``(N, T)``; ids too large become unknown.

    Ids go by the words' frequency, so this is what a smaller vocabulary gives.
    """
    if length < tokens.shape[1]:
        tokens = tokens[:, -length:].contiguous()
    if vocabulary < imdb.VOCABULARY:
        tokens = tokens.masked_fill(tokens >= vocabulary, imdb.UNKNOWN)
    return tokens


def resized(data: Dataset, name: str, sizes: Sizes) -> Dataset:
    """Return a data set with smaller images and fewer test samples, or itself."""
    if sizes.image_size:
        _check_images(data, name, sizes.image_size)
        train_x, test_x = (
            averaged(images, sizes.image_size) for images in (data.train_x, data.test_x)
        )
        data = replace(data, train_x=train_x, test_x=test_x)
    if sizes.test_samples:
        total = len(data.test_y)
        if sizes.test_samples > total:
            raise ConfigError(
                f"test-samples={sizes.test_samples} is more than the {total} of "
                f"dataset={name!r}: choose at most {total}, or 0 for all"
            )
        order = np.random.default_rng(0).permutation(total)
        kept = torch.from_numpy(np.sort(order[: sizes.test_samples]))
        data = replace(data, test_x=data.test_x[kept], test_y=data.test_y[kept])
    return data


def averaged(images: Tensor, size: int) -> Tensor:
    """Average squares of pixels: ``(N, C, S, S)`` to ``(N, C, size, size)``.

    Images of bytes stay bytes, rounded, halves upwards.
    """
    side = images.shape[-1]
    if size == side:
        return images
    factor = side // size
    parts = torch.split(images, _CHUNK)
    return torch.cat([_average(part, size, factor) for part in parts])


def _average(images: Tensor, size: int, factor: int) -> Tensor:
    count, channels = images.shape[:2]
    squares = images.reshape(count, channels, size, factor, size, factor)
    if images.dtype != torch.uint8:
        return squares.mean(dim=(3, 5))
    total = squares.to(torch.int32).sum(dim=(3, 5), dtype=torch.int32)
    pixels = factor**2
    return ((2 * total + pixels) // (2 * pixels)).to(torch.uint8)


def _check_images(data: Dataset, name: str, size: int) -> None:
    shape = data.input_shape
    kind = data.train_x.dtype
    if len(shape) != 3 or not (kind == torch.uint8 or kind.is_floating_point):
        problem = f"inputs of shape {shape} and type {kind} are no images of (C, H, W)"
    elif shape[1] != shape[2]:
        problem = f"images of {shape[1]}x{shape[2]} pixels are no squares"
    elif shape[1] % size:
        problem = f"images of {shape[1]} pixels a side are no whole multiple of it"
    else:
        return
    raise ConfigError(
        f"image-size={size} does not go with dataset={name!r}, whose {problem}: "
        "choose another size, or 0 for their own"
    )
