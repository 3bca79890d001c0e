"""Which idle device trains next."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Selection(ABC):
    """Chooses which idle device trains next."""

    @abstractmethod
    def choose(
        self, idle: Ints, ranks: Ints, busy_ranks: Iterable[int], generator: Generator
    ) -> int:
        """Choose a device.

        Parameters
        ----------
        idle : array of int, shape (n,)
            The devices to choose from, at least one.
        ranks : array of int, shape (num_devices,)
            The rank of every device.
        busy_ranks : iterable of int
            The ranks of the tasks in flight.
        generator : numpy.random.Generator
            Source of randomness.
        """


class Stratified(Selection):
    """One device of each rank at any moment, as the paper's script has it.

    The rank with the fewest tasks in flight is next, the fastest first; within the
    rank every idle device is equally likely.
    """

    def choose(
        self, idle: Ints, ranks: Ints, busy_ranks: Iterable[int], generator: Generator
    ) -> int:
        """Choose an idle device of the rank that is training least."""
        in_flight = Counter(busy_ranks)
        idle_ranks = ranks[idle]
        rank = min(np.unique(idle_ranks).tolist(), key=lambda r: (in_flight[r], r))
        return int(generator.choice(idle[idle_ranks == rank]))


class Uniform(Selection):
    """Every idle device is equally likely."""

    def choose(
        self, idle: Ints, ranks: Ints, busy_ranks: Iterable[int], generator: Generator
    ) -> int:
        """Choose any idle device."""
        return int(generator.choice(idle))
