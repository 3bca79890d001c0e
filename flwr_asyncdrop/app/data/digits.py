"""The handwritten digits that scikit-learn brings along: no file, no download."""

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.app.data.files import Arrays
from flwr_asyncdrop.extras import require

_DARKEST = 16


def read_digits() -> Arrays:
    """Read the 1,797 8x8 digits, a fixed fifth of each class for testing."""
    digits = require("sklearn.datasets", "data").load_digits()
    images = np.rint(digits.images * (255 / _DARKEST)).astype(np.uint8)[:, np.newaxis]
    labels = digits.target.astype(np.int64)
    train, test = stratified_split(labels, 0.2, np.random.default_rng(0))
    return Arrays(images[train], labels[train], images[test], labels[test])


def stratified_split(
    labels: NDArray[np.int64], test_fraction: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split samples in two so that each class is split in the same proportion."""
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(len(members) * test_fraction)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
