"""All that changes while the server runs, in one serialisable dataclass."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.submodel.plan import UnitGroup
from flwr_asyncdrop.submodel.types import Indices, State


@dataclass(frozen=True)
class Order:
    """A task in flight: who trains which coordinates of which version.

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
    indices : dict of str to dict of int to Tensor
        The kept positions; empty for the full model.
    shapes : mapping of str to tuple of int
        Shape of every array that was sent.
    base_version : int
        Version of the model that was sent.
    lr_factor : float
        What the schedule had made of the learning rate, in (0, 1].
    dispatched_at : float
        When it left, in seconds on the loop's clock, as all the times below.
    due : float
        When its reply arrives, on the virtual clock; infinity if that is not known
        (wall clock), or never (`lost`).
    cost : TaskCost
        What it asks of the device.
    masked : bool
        Whether full-size arrays were sent, with the dropped units zeroed.
    deadline : float
        When it is overdue: its slot goes to another device, and it counts as late.
    gives_up : float
        When nobody waits for it any more, never before its `deadline`; a task for
        which both are the same is never late.
    lost : bool
        Whether the simulated device will lose the task: then nothing is sent, and it
        fails when it is given up.
    kept : mapping of UnitGroup to Tensor
        The unit numbers of each group that it trains; empty for the full model.
    base : dict of str to Tensor, optional
        What was sent, if the aggregator needs it; orders of the full model share it
        with those of the same version.
    """

    number: int
    device: int
    node_id: int
    rank: int
    num_ranks: int
    round: int
    indices: Indices
    shapes: Mapping[str, tuple[int, ...]]
    base_version: int
    dispatched_at: float
    due: float
    cost: TaskCost
    lr_factor: float = 1.0
    masked: bool = False
    deadline: float = math.inf
    gives_up: float = math.inf
    lost: bool = False
    kept: Mapping[UnitGroup, Tensor] = field(default_factory=dict)
    base: State | None = None


@dataclass
class RunState:
    """The state of a run.

    Attributes
    ----------
    seed : int
        Seed of the run.
    arrays, initial : dict of str to Tensor
        The global model ``W_t`` and ``W_0``.
    num_devices : int
        Devices seen.
    version : int
        Times that the global model has changed.
    updates : int
        Replies merged.
    dispatched : int
        Orders issued.
    fastest_updates : int
        Updates merged from rank 0, which alone advances the learning rate.
    time : float
        Seconds on the loop's clock.
    bytes_down, bytes_up : int
        Bytes of arrays sent and received.
    failures : dict of str to int
        Tasks lost, by reason.
    lost_in_a_row : list of int
        The devices whose tasks were lost since the last update, one entry a task.
    duplicates : int
        Replies that came a second time, and were ignored.
    in_flight : dict of str to Order
        Orders by message id, each of which takes a slot.
    late : dict of str to Order
        Overdue orders by message id: their slots have gone to others, their devices
        are taken until they reply or are given up.
    waiting : list of Order
        Orders whose devices wait until their updates change the global model.
    averaged : dict of str to Tensor, optional
        Average of the versions of the model so far, if the algorithm keeps one.
    ended : str
        Why the run ended before its last round: ``"timeout"`` (no device came) or
        ``"failures"`` (nothing else came in); "" if it did not.
    """

    seed: int
    arrays: State
    initial: State
    num_devices: int = 0
    version: int = 0
    updates: int = 0
    dispatched: int = 0
    fastest_updates: int = 0
    time: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    lost_in_a_row: list[int] = field(default_factory=list)
    duplicates: int = 0
    in_flight: dict[str, Order] = field(default_factory=dict)
    late: dict[str, Order] = field(default_factory=dict)
    waiting: list[Order] = field(default_factory=list)
    averaged: State | None = None
    ended: str = ""

    @property
    def served(self) -> State:
        """The model that is evaluated and returned: the average, if there is one."""
        return self.arrays if self.averaged is None else self.averaged

    @property
    def in_slots(self) -> list[Order]:
        """The orders that take a slot: those in flight and those that wait."""
        return [*self.in_flight.values(), *self.waiting]

    @property
    def orders(self) -> list[Order]:
        """All orders whose devices are taken: in flight, late, or waiting."""
        return [*self.in_flight.values(), *self.late.values(), *self.waiting]

    @classmethod
    def start_from(cls, arrays: State, seed: int) -> Self:
        """Return the state of a run that has not begun; `arrays` are copied."""
        return cls(
            seed=seed,
            arrays={name: tensor.clone() for name, tensor in arrays.items()},
            initial={name: tensor.clone() for name, tensor in arrays.items()},
        )
