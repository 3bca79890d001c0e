"""From an idle device to a task in flight."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.schedule import StepDecay
from flwr_asyncdrop.seeding import derive_seed, numpy_generator
from flwr_asyncdrop.server.assignment import Part
from flwr_asyncdrop.server.fleet import Fleet, Selection
from flwr_asyncdrop.server.state import Order, ServerState
from flwr_asyncdrop.simulation.profiles import TaskCost
from flwr_asyncdrop.submodel.types import State

__all__ = ["Assignment", "Dispatcher", "TrainSettings", "task_config"]

# The adjustment biases the model that it brings about so fast, so it fades with the
# learning rate.
SCHEDULED = ("lr", "logit-adjustment")


class Assignment(Protocol):
    """Says which part of the model a device trains."""

    def assign(self, state: ServerState, rank: int, num_ranks: int) -> Part:
        """Return the part for a device of `rank` among `num_ranks`."""


@dataclass(frozen=True)
class TrainSettings:
    """What goes into every task.

    Attributes
    ----------
    config : mapping of str to config values
        The user's train config; what it has of `SCHEDULED` follows the schedule.
    schedule : StepDecay
        The global learning-rate schedule.
    keys : RecordKeys
        Where the records go.
    ttl : float
        Seconds after which Flower gives a message up.
    """

    config: Mapping[str, object]
    schedule: StepDecay
    keys: wire.RecordKeys
    ttl: float

    def config_at(self, fastest_updates: int) -> dict[str, object]:
        """Return the train config with what the schedule makes of it at this moment."""
        config, factor = dict(self.config), self.schedule.factor(fastest_updates)
        for key in SCHEDULED:
            value = config.get(key)
            if isinstance(value, float | int):
                config[key] = value * factor
        return config


class Dispatcher:
    """Picks the next device, tailors its task and writes the message.

    Parameters
    ----------
    fleet : Fleet
        The devices.
    selection : Selection
        Who is next.
    assignment : Assignment
        Which part of the model it trains.
    settings : TrainSettings
        What goes into every task.
    keeps_base : bool
        Whether an order keeps what was sent.
    """

    def __init__(
        self,
        fleet: Fleet,
        selection: Selection,
        assignment: Assignment,
        settings: TrainSettings,
        *,
        keeps_base: bool = False,
    ) -> None:
        self.fleet = fleet
        self.settings = settings
        self._selection = selection
        self._assignment = assignment
        self._keeps_base = keeps_base
        self._snapshot: tuple[int, State, State] | None = None

    def next_task(
        self, state: ServerState, server_round: int, *, time: float | None = None
    ) -> tuple[Order, Message] | None:
        """Return the next order and its message, or None if no device is idle.

        The order has no due time yet, the message no id: both come with sending.

        Parameters
        ----------
        state : ServerState
            The state of the run.
        server_round : int
            The round, from 1.
        time : float, optional
            Seconds on the loop's clock. Simulated devices come and go by it, and lose
            tasks; without it they are all there and reliable.
        """
        orders = state.orders
        idle = self.fleet.idle(_devices(orders), time)
        if len(idle) == 0:
            return None
        # One broken device must not take every task: the others first.
        fresh = np.setdiff1d(idle, np.array(state.lost_in_a_row, dtype=np.int64))
        device = self._selection.choose(
            fresh if len(fresh) else idle,
            self.fleet.ranks,
            (order.rank for order in orders),
            numpy_generator(state.seed, "device", state.dispatched),
        )
        order, message = self._task(state, device, server_round)
        if time is not None:
            order = replace(order, lost=self._loses(state, order))
        return order, message

    def next_return(self, state: ServerState) -> float:
        """Return when the first free device of a simulated fleet is there again.

        In seconds on the virtual clock; infinity if there is none that comes back.
        """
        return self.fleet.next_return(_devices(state.orders), state.time)

    def duration(self, state: ServerState, order: Order) -> float:
        """Return the virtual seconds that an order takes; 0 on a real fleet."""
        if self.fleet.profiles is None:
            return 0.0
        profile = self.fleet.profiles[order.device]
        if profile.jitter == 0:
            return profile.duration(order.cost)
        generator = numpy_generator(state.seed, "jitter", order.number)
        return profile.duration(order.cost, generator.standard_normal())

    def _loses(self, state: ServerState, order: Order) -> bool:
        if self.fleet.profiles is None:
            return False
        dropout = self.fleet.profiles[order.device].dropout
        if dropout == 0:
            return False
        generator = numpy_generator(state.seed, "dropout", order.number)
        return bool(generator.random() < dropout)

    def _task(
        self, state: ServerState, device: int, server_round: int
    ) -> tuple[Order, Message]:
        rank = int(self.fleet.ranks[device])
        part = self._assignment.assign(state, rank, self.fleet.num_ranks)
        record = wire.to_record(part.arrays)
        num_bytes = wire.array_bytes(record)
        order = Order(
            number=state.dispatched,
            device=device,
            node_id=self.fleet.node_ids[device],
            rank=rank,
            num_ranks=self.fleet.num_ranks,
            round=server_round,
            indices=part.indices,
            shapes=part.shapes,
            base_version=state.version,
            dispatched_at=state.time,
            due=state.time,
            cost=TaskCost(part.compute, num_bytes, num_bytes),
            lr_factor=self.settings.schedule.factor(state.fastest_updates),
            masked=part.masked,
            kept=part.kept,
            base=self._base(state, part) if self._keeps_base else None,
        )
        message = wire.make_task(
            record,
            self.settings.config_at(state.fastest_updates),
            task_config(
                self.fleet,
                device,
                server_round,
                seed=derive_seed(state.seed, "task", device, state.dispatched),
            ),
            node_id=order.node_id,
            ttl=self.settings.ttl,
            keys=self.settings.keys,
        )
        return order, message

    def _base(self, state: ServerState, part: Part) -> State:
        """Return what is sent, as it is now; one copy of the full model a version."""
        if part.arrays is not state.arrays:
            return part.arrays
        if self._snapshot is not None:
            version, source, base = self._snapshot
            if version == state.version and source is state.arrays:
                return base
        base = {name: tensor.clone() for name, tensor in state.arrays.items()}
        self._snapshot = state.version, state.arrays, base
        return base


def _devices(orders: Iterable[Order]) -> set[int]:
    return {order.device for order in orders}


def task_config(
    fleet: Fleet, device: int, server_round: int, *, seed: int
) -> wire.TaskConfig:
    """Return what a device is told beside the user's config.

    On a simulated fleet any node may play any device, so it is told which; a node of
    a real fleet knows its own data.
    """
    if fleet.profiles is None:
        return wire.TaskConfig(server_round, seed)
    return wire.TaskConfig(server_round, seed, device, len(fleet))
