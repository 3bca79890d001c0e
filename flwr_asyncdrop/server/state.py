"""All that changes while the server runs, in one serialisable dataclass."""

from dataclasses import dataclass, field, replace
from typing import Self

from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State


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
        Orders dispatched.
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
        return cls(seed=seed, arrays=copy_of(arrays), initial=copy_of(arrays))

    def state_dict(self) -> StateDict:
        """Return all of it; what changes in place, which is the model, is copied."""
        averaged = None if self.averaged is None else copy_of(self.averaged)
        copied = replace(self, arrays=copy_of(self.arrays), averaged=averaged)
        plain: StateDict = to_plain(copied)
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Become as the one whose state that is."""
        self.__dict__.update(from_plain(RunState, state).__dict__)


def copy_of(arrays: State) -> State:
    """Return tensors that nobody else changes."""
    return {name: tensor.clone() for name, tensor in arrays.items()}
