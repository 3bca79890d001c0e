"""The algorithms whose server collects changes, then takes a step with them."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr_asyncdrop.aggregation import (
    COMBINATIONS,
    NUM_GROUPS,
    AdaptivePerGroup,
    Aggregator,
    Buffered,
    Combiner,
    LatestPerGroup,
    combiner,
    weighting,
)
from flwr_asyncdrop.aggregation.changes import Normaliser
from flwr_asyncdrop.algorithms.algorithm import Algorithm
from flwr_asyncdrop.algorithms.mixed import Narrowed, Weighted
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import MaskPolicy, RandomMask
from flwr_asyncdrop.parameters import (
    at_least,
    in_interval,
    more_than,
    one_of,
    parameter,
    whole_from,
)
from flwr_asyncdrop.readable import counted


@dataclass(frozen=True)
class ServerStepped(Algorithm):
    """The hyperparameters of the server's step.

    Attributes
    ----------
    server_lr : float
        Learning rate of the step, positive.
    server_momentum : float
        Its momentum, in [0, 1).
    combine : str
        How the collected changes become one: ``"mean"``, or, coordinate by coordinate
        over the devices that trained it, ``"trimmed-mean"`` or ``"median"``.
    trim : float
        Share that a trimmed mean cuts off at each end, in [0, 1/2).
    """

    server_lr: float = parameter(
        1.0, "learning rate of the server's step", more_than(0)
    )
    server_momentum: float = parameter(
        0.0, "momentum of the server's step, in [0, 1)", in_interval("[0, 1)")
    )
    combine: str = parameter(
        "mean",
        "how buffered updates are combined: mean | trimmed-mean | median",
        one_of(*COMBINATIONS),
    )
    trim: float = parameter(
        0.2,
        "share that a trimmed mean cuts off at each end, in [0, 0.5)",
        in_interval("[0, 0.5)"),
    )

    def combiner(self, count: int, normaliser: Normaliser) -> Combiner:
        """Return what makes one change of `count` changes."""
        return combiner(self.combine, count, trim=self.trim, normaliser=normaliser)

    def buffered(self, size: int, normaliser: Normaliser, **options: Any) -> Aggregator:
        """Return `Buffered` with this server step and other `options`."""
        return Buffered(
            size,
            combine=self.combiner(size, normaliser),
            server_lr=self.server_lr,
            momentum=self.server_momentum,
            **options,
        )


@dataclass(frozen=True)
class FedAvg(ServerStepped):
    """FedAvg (McMahan et al., 2017): the mean of a cohort, weighted by examples."""

    name: ClassVar[str] = "fedavg"

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Buffered` over the whole cohort."""
        return self.buffered(in_flight, "examples", waits=True)


@dataclass(frozen=True)
class BufferSized(Algorithm):
    """The hyperparameter of a buffer, for algorithms that collect updates.

    Attributes
    ----------
    buffer_size : int or None
        Updates that are collected before the server steps; None for half of the
        devices in flight.
    """

    buffer_size: int | None = parameter(
        None,
        "updates collected before the server steps; left out: half of in-flight",
        whole_from(1),
    )

    def size(self, in_flight: int) -> int:
        """Return the updates that are collected with so many devices in flight."""
        return self.buffer_size or max(in_flight // 2, 1)


@dataclass(frozen=True)
class Collecting(BufferSized, ServerStepped):
    """A buffer, and the server's step with it.

    Attributes
    ----------
    waits : bool
        Whether a device that has delivered waits for the step that its update is part
        of, so that it trains the latest version; if not it gets its next task at once.
    """

    waits: bool = parameter(
        False, "devices wait for the step that their update is part of"
    )

    def size(self, in_flight: int) -> int:
        """Return the updates that are collected with so many devices in flight."""
        size = super().size(in_flight)
        if self.waits and size > in_flight:
            raise ConfigError(
                f"buffer_size={size} is more than the {counted(in_flight, 'device')} "
                "in flight, which would wait for ever: lower it, or put more devices "
                "in flight"
            )
        return size


@dataclass(frozen=True)
class FedBuff(Collecting, Weighted):
    """FedBuff (Nguyen et al., 2022): a server step with the mean of K changes."""

    name: ClassVar[str] = "fedbuff"

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Buffered` with the weighting."""
        size = self.size(in_flight)
        weigh = weighting(self.weighting, self.weighting_a, self.weighting_b)
        return self.buffered(size, "size", weighting=weigh, waits=self.waits)


@dataclass(frozen=True)
class FedBuffWait(FedBuff):
    """FedBuff as the AsyncDrop paper compares with it: devices wait for the buffer."""

    name: ClassVar[str] = "fedbuff-wait"

    waits: bool = parameter(True)


@dataclass(frozen=True)
class AsyncDropPlus(Collecting, Narrowed):
    """AsyncDrop beyond the paper: speed groups count as far as their data differ.

    Random masks drop more on slower devices (`GradedRate`), where that saves enough.
    The server keeps the latest changes of all speed groups and measures what they are
    worth (`AdaptivePerGroup`). Devices wait for the step that their update is part of,
    unless most others are much slower. The loss corrects the label skew, and an average
    of the versions is served. Each of the five can be switched off.

    Attributes
    ----------
    rate_spread : float
        In [0, 1]: how much more slow devices drop than fast ones, see `GradedRate`; 0
        for the same rate on all.
    least_saving : float
        A device gets the full model where its submodel would save less than so many
        times the share of units that it leaves out, of compute and of bytes; 0 for
        submodels whatever they save.
    group_memory : bool
        Whether the server keeps the latest change of every speed group; if not it
        steps with the changes that it has just collected.
    adaptive_memory : bool
        Whether it steps with them as far as the groups' changes are measured to differ,
        and counts the groups alike as far; if not it steps with them alone
        (`LatestPerGroup`), as it does anyway with a robust `combine`, which needs the
        changes of many to judge by.
    adaptive_staleness : bool
        Whether stale updates count less, and groups are balanced less, as far as all
        groups' changes are measured to have much in common; with `adaptive_memory`.
    wait_limit : float
        A device does not wait, but gets its next task at once, if the median device
        takes more than so many times as long for a task; 0 for no limit.
    """

    name: ClassVar[str] = "asyncdrop-plus"

    server_lr: float = parameter(0.8)
    waits: bool = parameter(True)
    averaging: float = parameter(0.8)
    logit_adjustment: float = parameter(1.0)
    rate_spread: float = parameter(
        1 / 3,
        "how much more slow devices drop than fast ones, in [0, 1]; 0 = as much",
        in_interval("[0, 1]"),
    )
    least_saving: float = parameter(
        0.5,
        "the full model goes out where a submodel saves less than so many times the "
        "share of units that it drops, of compute and of bytes; 0 = never",
        at_least(0),
    )
    group_memory: bool = parameter(
        True, "keep the latest change of every speed group, and step with it"
    )
    adaptive_memory: bool = parameter(
        True, "step with it only as far as the groups' changes are measured to differ"
    )
    adaptive_staleness: bool = parameter(
        True, "stale updates count less where all groups' changes have much in common"
    )
    wait_limit: float = parameter(
        8.0,
        "a device does not wait if the median one takes more than so many times as "
        "long; 0 = no limit",
        at_least(0),
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `AdaptivePerGroup`.

        Or `LatestPerGroup` if the memory does not adapt, and `Buffered` without memory.
        """
        built = self._unlimited(in_flight)
        built.wait_limit = self.wait_limit or math.inf
        return built

    def _unlimited(self, in_flight: int) -> Aggregator:
        size = self.size(in_flight)
        if not self.group_memory:
            return self.buffered(size, "counts", waits=self.waits)
        groups = min(NUM_GROUPS, in_flight)
        options: dict[str, Any] = {
            "num_groups": groups,
            "combine": self.combiner(groups, "counts"),
            "server_lr": self.server_lr,
            "momentum": self.server_momentum,
            "waits": self.waits,
        }
        if not self.adaptive_memory or self.combine != "mean":
            return LatestPerGroup(size, **options)
        return AdaptivePerGroup(
            size,
            combine_fresh=self.combiner(size, "counts"),
            staleness=self.adaptive_staleness,
            **options,
        )

    def masks(self) -> MaskPolicy:
        """Return `RandomMask` with graded rates."""
        return RandomMask(
            self.drop_rate,
            self.round_to,
            spread=self.rate_spread,
            least_saving=self.least_saving,
        )
