"""A task from its dispatch to its merge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.submodel import Indices, State, UnitGroup
from flwr_asyncdrop.wire import Coding


@dataclass(frozen=True)
class Part:
    """The part of the global model that a task trains."""

    # Really smaller, or full-size if `masked`; None once nobody needs them.
    arrays: State | None
    indices: Indices  # where they come from; empty for the full model
    shapes: Mapping[str, tuple[int, ...]]  # of `arrays`
    compute: float = 1.0  # FLOPs of its local steps over those of the full model
    work: float | None = None  # share of the usual local steps; None for all
    masked: bool = False  # dropped units are zeroed instead of cut out
    # The unit numbers of each group; empty for the full model.
    kept: Mapping[UnitGroup, Tensor] = field(default_factory=dict)
    # What is sent beside the model, by record, and the names of its tensors.
    extra: Mapping[str, State] = field(default_factory=dict)
    extra_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> State:
        """The tensors; ConfigError once they are gone."""
        if self.arrays is None:
            raise ConfigError("an order is sent again only if it keeps what was sent")
        return self.arrays

    def with_work(self, share: float) -> Self:
        """Return the same part with a share of the usual local steps."""
        return replace(self, compute=self.compute * share, work=share)

    def without_arrays(self) -> Self:
        """Return the same part without its tensors, once they are sent."""
        return replace(self, arrays=None, extra={})


@dataclass(frozen=True)
class Timing:
    """The times of a task, in seconds on the loop's clock."""

    dispatched_at: float
    # The reply arrives, on the virtual clock; infinity if unknown, or never (`lost`).
    # Of a device that waits, on either clock: it has arrived.
    due: float = math.inf
    # It is overdue: its slot goes to another device, and it counts as late.
    deadline: float = math.inf
    # Nobody waits for it any more; a task for which this is `deadline` is never late.
    gives_up: float = math.inf
    # The simulated device loses it: nothing is sent, and it fails when given up.
    lost: bool = False


@dataclass(frozen=True)
class Order:
    """A task in flight: who trains which part of which version."""

    number: int  # of dispatches before this one; breaks ties in time
    device: int  # index in the fleet
    node_id: int
    rank: int  # among `num_ranks` speed ranks at dispatch, 0 the fastest
    num_ranks: int
    round: int  # at dispatch, from 1
    base_version: int  # of the model that was sent
    lr_factor: float  # of the schedule, at least 0
    # With its arrays if the aggregator needs them, or they may have to be sent again;
    # orders of the full model share them with others of the same version.
    part: Part
    cost: TaskCost
    timing: Timing
    coding: Coding = field(default_factory=Coding)  # of the arrays that travel
    # Fingerprints of what was sent, so that a client that trains nothing is noticed.
    sent: Mapping[str, int] = field(default_factory=dict)

    def cost_with(self, bytes_up: int, work: float | None = None) -> TaskCost:
        """Return the cost with the bytes that have really come back.

        So it is with the share of the usual local steps, if that is given.
        """
        asked, compute = self.part.work, self.cost.compute
        if work is not None and asked is not None:
            compute *= work / asked
        return TaskCost(compute, self.cost.bytes_down, bytes_up)
