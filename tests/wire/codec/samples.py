"""Numbers to code, and the schemes to do it with."""

import numpy as np

from flwr_asyncdrop.wire.codec import scheme

SPECS = ("q8", "q4", "q4/8", "q2", "q1", "top10%+q4", "top1%+q8", "top25%+q2")
SCHEMES = {spec: scheme(spec) for spec in SPECS}
# Around bytes, blocks, vectors and chunks.
COUNTS = (0, 1, 2, 7, 8, 9, 63, 64, 65, 129, 1000, 2**16, 2**16 + 1, 2**17 + 999)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def normal(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def heavy(count, seed=0):
    """Return numbers of which few are very large, as changes of weights are."""
    return np.random.default_rng(seed).standard_t(1.5, count).astype(np.float32)


def one_hot(count):
    values = np.zeros(count, np.float32)
    values[count // 3] = -2.5
    return values


def relative_error(found, values):
    """Return the mean squared error over the mean square."""
    difference = found.astype(np.float64) - values
    return float((difference**2).sum() / (values.astype(np.float64) ** 2).sum())
