"""A task from its dispatch to its merge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.submodel import Indices, State, UnitGroup


@dataclass(frozen=True)
class Part:
    """The part of the global model that a task trains.

    Attributes
    ----------
    arrays : dict of str to Tensor, or None
        The tensors that are sent: really smaller, or full-size if `masked`. None when
        nobody needs them any more.
    indices : dict of str to dict of int to Tensor
        Where they come from; empty for the full model.
    shapes : mapping of str to tuple of int
        The shapes of `arrays`.
    compute : float
        FLOPs of one step over those of the full model.
    masked : bool
        Whether the dropped units are zeroed instead of cut out.
    kept : mapping of UnitGroup to Tensor
        The unit numbers of each group that it trains; empty for the full model.
    extra : mapping of str to dict of str to Tensor
        What is sent beside the model, by record.
    extra_names : mapping of str to tuple of str
        The names of the tensors in each of these records.
    """

    arrays: State | None
    indices: Indices
    shapes: Mapping[str, tuple[int, ...]]
    compute: float = 1.0
    masked: bool = False
    kept: Mapping[UnitGroup, Tensor] = field(default_factory=dict)
    extra: Mapping[str, State] = field(default_factory=dict)
    extra_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def without_arrays(self) -> Self:
        """Return the same part when its tensors are sent and nobody needs them."""
        return replace(self, arrays=None, extra={})


@dataclass(frozen=True)
class Timing:
    """When what happens to a task, in seconds on the loop's clock.

    Attributes
    ----------
    dispatched_at : float
        When it left.
    due : float
        When its reply arrives, on the virtual clock; infinity if that is not known
        (wall clock), or never (`lost`).
    deadline : float
        When it is overdue: its slot goes to another device, and it counts as late.
    gives_up : float
        When nobody waits for it any more, never before its `deadline`; a task for
        which both are the same is never late.
    lost : bool
        Whether the simulated device will lose the task: then nothing is sent, and it
        fails when it is given up.
    """

    dispatched_at: float
    due: float = math.inf
    deadline: float = math.inf
    gives_up: float = math.inf
    lost: bool = False


@dataclass(frozen=True)
class Order:
    """A task in flight: who trains which part of which version.

    Attributes
    ----------
    number : int
        Count of dispatches before this one; breaks ties in time.
    device, node_id : int
        Index of the device in the fleet and its Flower node.
    rank, num_ranks : int
        Place of the device among ``num_ranks`` speed ranks, 0 the fastest, when it
        was dispatched.
    round : int
        Round in which it was dispatched, from 1.
    base_version : int
        Version of the model that was sent.
    lr_factor : float
        What the schedule had made of the learning rate, in (0, 1].
    part : Part
        What it trains; with the arrays if the aggregator needs them, or if they may
        have to be sent again. Orders of the full model share them with those of the
        same version.
    cost : TaskCost
        What it asks of the device.
    timing : Timing
        When what happens to it.
    """

    number: int
    device: int
    node_id: int
    rank: int
    num_ranks: int
    round: int
    base_version: int
    lr_factor: float
    part: Part
    cost: TaskCost
    timing: Timing
