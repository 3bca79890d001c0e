"""Handwritten digits that come with the package: no file to find, no download."""

import json
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.app.data.files import Arrays

_FILE = "digits.json"
_DARKEST = 16
_SIZE = 8


def read_digits() -> Arrays:
    """Read the 1,797 8x8 digits, a fixed fifth of each class for testing."""
    ink, labels = embedded()
    images = np.rint(ink * (255 / _DARKEST)).astype(np.uint8)[:, np.newaxis]
    train, test = stratified_split(labels, 0.2, np.random.default_rng(0))
    return Arrays(images[train], labels[train], images[test], labels[test])


@cache
def embedded() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits as they are kept: ink from 0 to 16, and labels.

    A pixel is one sign, ``0`` to ``9`` and ``a`` to ``g``: a Flower app holds text.
    """
    text = files(__package__).joinpath(_FILE).read_text(encoding="ascii")
    content = json.loads(text)
    ink = _values("".join(content["images"])).reshape(-1, _SIZE, _SIZE)
    return ink, _values(content["labels"]).astype(np.int64)


def _values(signs: str) -> NDArray[np.uint8]:
    codes = np.frombuffer(signs.encode("ascii"), np.uint8)
    return np.where(codes < ord("a"), codes - ord("0"), codes - ord("a") + 10)


def stratified_split(
    labels: NDArray[np.int64], test_fraction: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split samples in two so that each class is split in the same proportion."""
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(len(members) * test_fraction)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
