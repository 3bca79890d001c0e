"""All that changes during a run, in one serialisable dataclass."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self

from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import Frozen, State, split


@dataclass
class RunState:
    """The state of a run."""

    seed: int
    arrays: State  # what trains of the global model, W_t
    initial: State  # W_0
    num_devices: int = 0  # seen so far
    version: int = 0  # times that the global model has changed
    updates: int = 0  # replies merged
    dispatched: int = 0
    evaluated: int = 0  # updates of the model whose evaluation began last
    fastest_updates: int = 0  # from rank 0, which alone advances the learning rate
    time: float = 0.0  # seconds on the loop's clock
    bytes_down: int = 0  # of arrays
    bytes_up: int = 0
    joules: float | None = None  # of the tasks sent; None if the fleet does not say
    failures: dict[str, int] = field(default_factory=dict)  # tasks lost, by kind
    # The devices whose tasks were lost since the last update, one entry a task.
    lost_in_a_row: list[int] = field(default_factory=list)
    duplicates: int = 0  # replies that came a second time, and were ignored
    # By message id. Those in flight take a slot each; the slots of late ones are free,
    # but their devices are taken until they reply or are given up.
    in_flight: dict[str, Order] = field(default_factory=dict)
    late: dict[str, Order] = field(default_factory=dict)
    # Their devices wait until their updates change the global model.
    waiting: list[Order] = field(default_factory=list)
    # The average of the versions, if the algorithm keeps one; half precision is single.
    averaged: State | None = None
    # Why the run ended early: "timeout" (no reply came) or "failures" (nothing else).
    ended: str = ""
    frozen: Frozen = field(default_factory=Frozen)  # what of the model does not train

    @property
    def served(self) -> State:
        """The whole model that is evaluated and returned: the average, if there is one.

        What does not train is in it, too.
        """
        return self.frozen.complete(self._trained)

    def snapshot(self) -> State:
        """Return `served` as it is now; only what trains is copied."""
        return self.frozen.complete(copy_of(self._trained))

    @property
    def _trained(self) -> State:
        if self.averaged is None:
            return self.arrays
        arrays = self.arrays
        return {name: t.to(arrays[name].dtype) for name, t in self.averaged.items()}

    @property
    def in_slots(self) -> list[Order]:
        """The orders that take a slot: those in flight and those that wait."""
        return [*self.in_flight.values(), *self.waiting]

    @property
    def orders(self) -> list[Order]:
        """All orders whose devices are taken: in flight, late, or waiting."""
        return [*self.in_flight.values(), *self.late.values(), *self.waiting]

    @classmethod
    def start_from(cls, arrays: State, seed: int, frozen: Collection[str] = ()) -> Self:
        """Return the state of a run that has not begun; `arrays` are copied.

        Those named `frozen` do not train.
        """
        trained, rest = split(arrays, frozen)
        return cls(seed, copy_of(trained), copy_of(trained), frozen=rest)

    def state_dict(self) -> StateDict:
        """Return the whole state; the model, which changes in place, is copied."""
        averaged = None if self.averaged is None else copy_of(self.averaged)
        copied = replace(self, arrays=copy_of(self.arrays), averaged=averaged)
        plain: StateDict = to_plain(copied)
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a saved state."""
        # Versions before this one did not have these.
        new = {"frozen": to_plain(Frozen()), "joules": None, "evaluated": 0}
        state = {**new, **state}
        for name in ("in_flight", "late"):
            state[name] = {key: _filled(each) for key, each in state[name].items()}
        state["waiting"] = [_filled(order) for order in state["waiting"]]
        self.__dict__.update(from_plain(RunState, state).__dict__)


def _filled(order: StateDict) -> StateDict:
    """Return a saved order with what versions before this one did not have."""
    return {**order, "part": {"work": None, **order["part"]}}


def copy_of(arrays: State) -> State:
    """Return tensors that nobody else changes."""
    return {name: tensor.clone() for name, tensor in arrays.items()}
