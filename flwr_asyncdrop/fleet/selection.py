"""Which idle device trains next."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from operator import index
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.idle import IdleDevices, Ints
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.state_dict import Stateless


class Selection(Stateless, ABC):
    """Chooses which idle device trains next.

    One that remembers something from choice to choice saves it by ``state_dict`` and
    ``load_state_dict``.
    """

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

        Returns
        -------
        int
            One of `idle`.
        """

    def learn(self, update: Update) -> None:
        """Learn from an update that has just been merged; nothing by default.

        It says which device it is of, what that one reports, such as ``"train-loss"``
        in its metrics, and how long it took. It is only read.
        """


class QuickSelection(Selection):
    """A selection that need not look at every idle device.

    `choose_idle` chooses what `choose` chooses, with the same draws. A subclass that
    changes one of them alone is asked with `choose`.

    Attributes
    ----------
    is_quick : bool
        Whether `choose_idle` may be asked.
    by_rank : bool
        Whether it wants idle devices by their ranks; else all have rank 0.
    """

    is_quick: ClassVar[bool] = True
    by_rank: ClassVar[bool] = True

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        own = {"choose", "choose_idle"} & vars(cls).keys()
        if own:
            cls.is_quick = len(own) == 2

    @abstractmethod
    def choose_idle(
        self, idle: IdleDevices, busy_ranks: Iterable[int], generator: Generator
    ) -> int | None:
        """Choose a device; None if none is idle."""


def check_chosen(
    selection: Selection, chosen: object, is_idle: Callable[[int], bool]
) -> int:
    """Return the device that a selection has chosen; ConfigError if it is not idle."""
    try:
        device = index(chosen)  # type: ignore[arg-type]  # whatever it returned
    except TypeError:
        device = -1
    if device >= 0 and is_idle(device):
        return device
    raise ConfigError(
        f"{type(selection).__name__} has chosen {printable(shown(chosen))}, which is "
        "no device that is idle: return one of those that it is given"
    )


class Stratified(QuickSelection):
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

    def choose_idle(
        self, idle: IdleDevices, busy_ranks: Iterable[int], generator: Generator
    ) -> int | None:
        """Choose an idle device of the rank that is training least."""
        in_flight = Counter(busy_ranks)
        for rank in sorted(range(idle.num_ranks), key=lambda r: (in_flight[r], r)):
            if count := idle.count(rank):
                return idle.pick(rank, int(generator.choice(count)))
        return None


class Uniform(QuickSelection):
    """Every idle device is equally likely."""

    by_rank = False

    def choose(
        self, idle: Ints, ranks: Ints, busy_ranks: Iterable[int], generator: Generator
    ) -> int:
        """Choose any idle device."""
        return int(generator.choice(idle))

    def choose_idle(
        self, idle: IdleDevices, busy_ranks: Iterable[int], generator: Generator
    ) -> int | None:
        """Choose any idle device."""
        count = idle.count(0)
        return idle.pick(0, int(generator.choice(count))) if count else None
