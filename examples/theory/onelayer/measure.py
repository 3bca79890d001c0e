"""What is read off a run: its rate of decay, its floor, and the floor's two parts."""

import numpy as np

from onelayer.network import Array
from onelayer.training import Run

__all__ = ["floors", "offset", "rate"]


def rate(run: Run) -> float:
    """Return the share of the error that an update removes, far above the floor.

    Of the repeats' mean error, from where it is a fifth of the first to where it is a
    hundredth, or to the end of the run. NaN if it never is a fifth.
    """
    errors = run.errors.mean(axis=1)
    below = errors[:, None] <= errors[0] / np.array([5, 100])
    first, last = np.where(below.any(axis=0), below.argmax(axis=0), len(errors) - 1)
    if first == last:
        return float("nan")
    updates = run.iterations[last] - run.iterations[first]
    return float(1 - (errors[last] / errors[first]) ** (1 / updates))


def floors(run: Run) -> Array:
    """Return each repeat's mean error over the last quarter of its run."""
    return (_last_quarter(run) ** 2).sum(axis=2).mean(axis=0)


def offset(run: Run) -> float:
    """Return the part of the floor that no averaging over masks would remove.

    That is the squared norm of the mean residuals over the last quarter, mean of the
    repeats; the rest of the floor is the outputs' fluctuation around their mean.
    """
    return float((_last_quarter(run).mean(axis=0) ** 2).sum(axis=1).mean())


def _last_quarter(run: Run) -> Array:
    return run.residuals[len(run.residuals) * 3 // 4 :]
