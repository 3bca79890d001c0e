"""Long curves with as few points as look the same."""

import numpy as np
from numpy.typing import NDArray

MOST_BUCKETS = 2000
"""More than a panel has columns of pixels."""


def shown(
    x: NDArray[np.float64], *ys: NDArray[np.float64], buckets: int = MOST_BUCKETS
) -> NDArray[np.int64]:
    """Return the points to draw of some curves over the same `x`.

    The range of `x` is cut into equal buckets. Of each bucket the first and the last
    point are drawn, and the lowest and the highest of every curve: all that can be
    seen if a bucket is no wider than a pixel. Curves of few points keep all of them.

    Parameters
    ----------
    x : array of float64, shape (points,)
        Ascending; what is equal is in one bucket.
    ys : arrays of float64, shape (points,)
        The curves, without NaN.
    buckets : int
        Their number.

    Returns
    -------
    array of int64, shape (shown,)
        Ascending places, at most ``(2 + 2 * len(ys)) * buckets`` of them.
    """
    if len(x) <= (2 + 2 * len(ys)) * buckets:
        return np.arange(len(x))
    edges = np.linspace(x[0], x[-1], buckets + 1)[:-1]
    starts = np.unique(np.searchsorted(x, edges))
    bucket = np.searchsorted(starts, np.arange(len(x)), side="right")
    ends = np.append(starts[1:], len(x)) - 1
    chosen = [starts, ends]
    for y in ys:
        by_value = np.lexsort((y, bucket))  # the buckets stay in their order
        chosen += [by_value[starts], by_value[ends]]
    return np.unique(np.concatenate(chosen))
