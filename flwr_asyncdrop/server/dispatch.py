"""From an idle device to a task in flight."""

import logging
import math
from collections import Counter
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import CapacityError, ConfigError
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import SHORTEST_TASK, Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.seeding import derive_seed, numpy_generator
from flwr_asyncdrop.server.assignment import Assignment, Part
from flwr_asyncdrop.server.state import Order, RunState
from flwr_asyncdrop.server.train_settings import TrainSettings, task_config
from flwr_asyncdrop.submodel.types import State
from flwr_asyncdrop.wire import DeviceReport

logger = logging.getLogger("flwr.asyncdrop")

# Clocks of devices differ, and Flower refuses a reply whose time is up by any of them.
_CLOCK_SKEW = 600.0


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
    tolerance : FaultPolicy
        How long devices may take, and how often they may fail.
    queue_ahead : int
        Tasks that a device gets beside the one that it trains, so that it has the
        next one at once. Only while every device can be in flight: else others wait.
    """

    def __init__(
        self,
        fleet: Fleet,
        selection: Selection,
        assignment: Assignment,
        settings: TrainSettings,
        *,
        keeps_base: bool = False,
        tolerance: FaultPolicy = FaultPolicy(),  # noqa: B008  # frozen
        queue_ahead: int = 0,
    ) -> None:
        self.fleet = fleet
        self.settings = settings
        self.tolerance = tolerance
        self._selection = selection
        self._assignment = assignment
        self._keeps_base = keeps_base
        self._queue_ahead = queue_ahead
        self._replied: dict[int, tuple[float, int]] = {}
        self._snapshot: tuple[int, State, State] | None = None

    def next_task(
        self, state: RunState, server_round: int, *, time: float | None = None
    ) -> tuple[Order, Message] | None:
        """Return the next order and its message, or None if no device is idle.

        The message gets its id when it is sent.

        Parameters
        ----------
        state : RunState
            The state of the run.
        server_round : int
            The round, from 1.
        time : float, optional
            Seconds on the loop's clock. Devices come and go by it, and have to be in
            time; without it they are all there and reliable.
        """
        queues = Counter(order.device for order in state.orders)
        depth = 0 if time is None else self._queue_ahead
        for length in range(depth + 1):
            taken = {device for device, tasks in queues.items() if tasks > length}
            idle = self.fleet.idle(taken, time)
            while len(idle):
                device = self._choose(state, idle)
                try:
                    return self._task(state, device, server_round, time)
                except CapacityError as error:
                    logger.warning("device %d gets no tasks: %s", device, error)
                    self.fleet.released_at[device] = math.inf
                    idle = idle[idle != device]
        return None

    def _choose(self, state: RunState, idle: NDArray[np.int64]) -> int:
        # One broken device must not take every task: the others first.
        fresh = np.setdiff1d(idle, np.array(state.lost_in_a_row, dtype=np.int64))
        return self._selection.choose(
            fresh if len(fresh) else idle,
            self.fleet.ranks,
            (order.rank for order in state.in_slots),
            numpy_generator(state.seed, "device", state.dispatched),
        )

    def _task(
        self, state: RunState, device: int, server_round: int, time: float | None
    ) -> tuple[Order, Message]:
        rank = int(self.fleet.ranks[device])
        part = self._assignment.assign(
            state, rank, self.fleet.num_ranks, self.fleet.most_bytes(device)
        )
        record = wire.to_record(part.arrays)
        order = self._order(state, device, server_round, part, record)
        if time is not None:
            order = self._timed(state, order)
        return order, self.message(state, order, record)

    def message(
        self, state: RunState, order: Order, arrays: ArrayRecord | None = None
    ) -> Message:
        """Return the message that carries an order out, the same every time.

        Parameters
        ----------
        state : RunState
            The state of the run; only its seed matters.
        order : Order
            What is ordered.
        arrays : ArrayRecord, optional
            The arrays that its device trains; the order's own `base` by default.

        Raises
        ------
        ConfigError
            If the order has not kept what was sent.
        """
        if arrays is None:
            if order.base is None:
                raise ConfigError("an order is sent again only if it keeps its base")
            arrays = wire.to_record(order.base)
        ttl = self.settings.ttl
        if self.fleet.profiles is None:
            ttl = min(ttl, order.gives_up - order.dispatched_at + _CLOCK_SKEW)
        return wire.make_task(
            arrays,
            self.settings.config_at(order.lr_factor),
            task_config(
                self.fleet,
                order.device,
                order.round,
                seed=derive_seed(state.seed, "task", order.device, order.number),
            ),
            node_id=order.node_id,
            ttl=ttl,
            keys=self.settings.keys,
        )

    def next_return(self, state: RunState) -> float:
        """Return when the first device that is not taken can have a task.

        In seconds on the loop's clock; infinity if there is none.
        """
        busy = {order.device for order in state.orders}
        return self.fleet.next_return(busy, state.time)

    def most_in_flight(self, slots: int) -> int:
        """Return how many tasks may be out when so many devices train.

        Parameters
        ----------
        slots : int
            Most devices that train at any moment.
        """
        present = len(self.fleet.present)
        return slots + self._queue_ahead * present if present <= slots else slots

    def began(self, order: Order) -> tuple[float, int]:
        """Return when a device could begin with a task, and what it missed by then.

        Returns
        -------
        tuple of float and int
            Seconds on the loop's clock, and the versions of the model that came while
            the task waited behind another; 0 if it did not.
        """
        time, version = self._replied.get(order.device, (-math.inf, 0))
        if time <= order.dispatched_at:
            return order.dispatched_at, 0
        return time, version - order.base_version

    def replied(self, state: RunState, device: int) -> None:
        """Note that a device is free for the next task of its queue."""
        self._replied[device] = state.time, state.version

    def succeeded(self, order: Order, trip: Trip, report: DeviceReport | None) -> None:
        """Learn from a task that was done."""
        self.fleet.observe(order.device, trip.seconds, trip.cost.compute)
        if report is not None:
            self.fleet.hear(order.device, report, trip)
        self.fleet.forgive(order.device)

    def took_longer(self, order: Order, seconds: float) -> None:
        """Learn from a task that was given up: it takes that long at the least."""
        if self.fleet.expected(order.device, order.cost) is not None:
            self.fleet.observe(order.device, seconds, order.cost.compute)

    def failed(self, state: RunState, order: Order) -> None:
        """Count a failure of a device, and leave it alone if there are too many."""
        fleet, device = self.fleet, order.device
        expected = fleet.expected(device, order.cost) or SHORTEST_TASK
        seconds = self.tolerance.quarantine(fleet.blame(device), expected)
        if seconds:
            fleet.released_at[device] = state.time + seconds

    def _timed(self, state: RunState, order: Order) -> Order:
        """Return the order with the moments at which its task arrives or fails."""
        fleet, left = self.fleet, order.dispatched_at
        expected = fleet.expected(order.device, order.cost)
        if fleet.profiles is None:
            if expected is not None:
                ahead = sum(other.device == order.device for other in state.orders)
                expected *= 1 + ahead
            overdue, given_up = self.tolerance.waits(expected, self.settings.ttl)
            return replace(order, deadline=left + overdue, gives_up=left + given_up)
        profile = fleet.profiles[order.device]
        overdue, given_up = self.tolerance.waits(expected)
        duration = _duration(profile, order, state.seed)
        if _loses(profile, order, state.seed):
            # It shows when it is overdue; without deadlines, when it would be there.
            shows = left + (duration if overdue == math.inf else overdue)
            return replace(order, lost=True, deadline=shows, gives_up=shows)
        return replace(
            order,
            due=left + duration,
            deadline=left + overdue,
            gives_up=left + given_up,
        )

    def _order(
        self,
        state: RunState,
        device: int,
        server_round: int,
        part: Part,
        record: ArrayRecord,
    ) -> Order:
        num_bytes = wire.array_bytes(record)
        return Order(
            number=state.dispatched,
            device=device,
            node_id=self.fleet.node_ids[device],
            rank=int(self.fleet.ranks[device]),
            num_ranks=self.fleet.num_ranks,
            round=server_round,
            indices=part.indices,
            shapes=part.shapes,
            base_version=state.version,
            dispatched_at=state.time,
            due=math.inf,
            cost=TaskCost(part.compute, num_bytes, num_bytes),
            lr_factor=self.settings.schedule.factor(state.fastest_updates),
            masked=part.masked,
            kept=part.kept,
            base=self._base(state, part) if self._keeps_base else None,
        )

    def _base(self, state: RunState, part: Part) -> State:
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


def _duration(profile: DeviceProfile, order: Order, seed: int) -> float:
    """Return the virtual seconds that an order takes on a simulated device."""
    if profile.jitter == 0:
        return profile.duration(order.cost)
    generator = numpy_generator(seed, "jitter", order.number)
    return profile.duration(order.cost, generator.standard_normal())


def _loses(profile: DeviceProfile, order: Order, seed: int) -> bool:
    if profile.dropout == 0:
        return False
    generator = numpy_generator(seed, "dropout", order.number)
    return bool(generator.random() < profile.dropout)
