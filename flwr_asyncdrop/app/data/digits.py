"""The handwritten digits that scikit-learn brings along: no file, no download."""

import numpy as np
import numpy.typing as npt

from flwr_asyncdrop.app.data.dataset import Arrays

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0
_DARKEST = 16


def read_digits() -> Arrays:
    """Read the 1,797 8x8 digits, a fixed fifth of each class for testing.

    The grey levels 0..16 are stretched to 0..255, a level apiece.
    """
    # Costs most of a second, which users of other data sets should not pay.
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / _DARKEST)).astype(np.uint8)[:, np.newaxis]
    labels = digits.target.astype(np.int64)
    train, test = stratified_split(
        labels, _TEST_FRACTION, np.random.default_rng(_SPLIT_SEED)
    )
    return Arrays(images[train], labels[train], images[test], labels[test])


def stratified_split(
    labels: npt.NDArray[np.int64], test_fraction: float, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split samples in two so that each class is split in the same proportion.

    Returns
    -------
    tuple of ndarray of int64
        The numbers of the training and of the test samples, each ascending. They
        are disjoint and together all samples.
    """
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(len(members) * test_fraction)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
