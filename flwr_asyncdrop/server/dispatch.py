"""From an idle device to a task in flight."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import CapacityError
from flwr_asyncdrop.fleet.codecs import CodecChoice
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.fleet.work import WorkPolicy
from flwr_asyncdrop.seeding import derive_seed
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.choosing import DeviceChooser
from flwr_asyncdrop.server.coder import Coder
from flwr_asyncdrop.server.device_tracker import DeviceTracker
from flwr_asyncdrop.server.frozen_delivery import FrozenDelivery
from flwr_asyncdrop.server.order import Order, Part
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.timing import timing_of
from flwr_asyncdrop.server.train_settings import TrainSettings, task_config
from flwr_asyncdrop.server.working import work_of
from flwr_asyncdrop.submodel import State, cpu_by_default, one_thread
from flwr_asyncdrop.submodel.types import shapes_of

logger = logging.getLogger("flwr.asyncdrop")

# Clocks of devices differ, and Flower refuses a reply whose time is up by any of them.
_CLOCK_SKEW = 600.0

Task = tuple[Order, Message]
"""An order and its message, which gets its id when it is sent."""


@dataclass(frozen=True)
class DispatchRules:
    """Who gets which task.

    A device gets up to `queue_ahead` tasks beside the one that it trains, so that it
    has the next one at once; only while every device can be in flight, or others would
    wait. With `keeps_base` an order keeps the arrays that were sent. Without a `codec`
    arrays travel as they are. With `brings_frozen` every device gets the frozen tensors
    with its first task; else those that ask for them. Without `work` all train as many
    local steps.
    """

    selection: Selection
    assignment: Assignment
    settings: TrainSettings
    faults: FaultPolicy = FaultPolicy()  # noqa: RUF009  # frozen
    queue_ahead: int = 0
    keeps_base: bool = False
    codec: CodecChoice | None = None
    brings_frozen: bool = False
    work: WorkPolicy | None = None


class Dispatcher:
    """Picks the next device, cuts out its part of the model and writes the message.

    `extra` is the aggregator's: it maps the global model to what every task carries
    beside it.
    """

    def __init__(
        self,
        fleet: Fleet,
        rules: DispatchRules,
        extra: Callable[[State], Mapping[str, State]] = lambda state: {},
    ) -> None:
        self.fleet = fleet
        self.rules = rules
        self.delivery = FrozenDelivery(
            unasked=rules.brings_frozen, simulated=fleet.profiles is not None
        )
        self.tracker = DeviceTracker(fleet, rules.faults)
        self._extra = extra
        self._chooser = DeviceChooser(fleet, rules.selection)
        self._coder = Coder(rules.codec)
        # Another one each time: several runs may have the same devices and seeds.
        self._run = uuid4().hex
        self._said_unscheduled = False

    @one_thread()
    @cpu_by_default()
    def next_task(
        self, state: RunState, server_round: int, progress: float | None = None
    ) -> Task | None:
        """Return the next task, or None if no idle device can have one.

        `progress` is the share of the run that is over, None if nobody knows.
        ConfigError if the selection, or another part of a user's, returns what it must
        not; RunError if the model is such that no codec has a code for it.
        """
        queues = Counter(order.device for order in state.orders)
        for length in range(self.rules.queue_ahead + 1):
            taken = {device for device, tasks in queues.items() if tasks > length}
            while (device := self._chooser.next_idle(state, taken)) is not None:
                if task := self._task(state, device, server_round, progress):
                    return task
        return None

    @one_thread()
    @cpu_by_default()
    def task_among(
        self, state: RunState, server_round: int, idle: NDArray[np.int64]
    ) -> Task | None:
        """Return the next task of one of these devices, or None if none can have it."""
        while len(idle):
            device = self._chooser.choose(state, idle)
            if task := self._task(state, device, server_round):
                return task
            idle = idle[idle != device]
        return None

    def _task(
        self,
        state: RunState,
        device: int,
        server_round: int,
        progress: float | None = None,
    ) -> Task | None:
        """Return a device's next task, or None if none is small enough for it."""
        fleet, rank = self.fleet, self.fleet.speeds.rank(device)
        try:
            part = self.rules.assignment.part(
                state,
                rank,
                fleet.num_ranks,
                device=device,
                server_round=server_round,
                progress=progress,
                most_bytes=fleet.devices.most_bytes(device),
                extra=self._extra(state.arrays),
            )
        except CapacityError as error:
            logger.warning("device %d gets no tasks: %s", device, error)
            fleet.readiness.rule_out(device)
            return None
        brought = self.delivery.add_to(
            state.frozen, state.dispatched, device, state.orders
        )
        if (policy := self.rules.work) is not None:
            down, up = self._coder.usual_bytes(part)
            whole = TaskCost(part.compute, down + brought, up)
            share = work_of(policy, fleet, state, device, whole, server_round)
            part = part.with_work(share)
        sent = self._coder.send(state, part, device, fleet)
        cost = TaskCost(part.compute, sent.bytes_down + brought, sent.bytes_up)
        order = Order(
            number=state.dispatched,
            device=device,
            node_id=fleet.node_ids[device],
            rank=rank,
            num_ranks=fleet.num_ranks,
            round=server_round,
            base_version=state.version,
            lr_factor=self.rules.settings.factor_at(state.fastest_updates, state.time),
            part=self._coder.kept(state, part, sent)
            if self.rules.keeps_base
            else part.without_arrays(),
            cost=cost,
            timing=timing_of(
                state,
                fleet,
                device,
                cost,
                faults=self.rules.faults,
                ttl=self.rules.settings.ttl,
            ),
            coding=sent.coding,
            sent=self._coder.fingerprint(state, part.weights),
        )
        return order, self._message(state, order, sent.records)

    @one_thread()
    @cpu_by_default()
    def message(self, state: RunState, order: Order) -> Message:
        """Return the message that carries an order out once more.

        Its device gets the same weights. ConfigError if the order has not kept them.
        """
        records = self._coder.send_again(order.part, order.coding)
        return self._message(state, order, records)

    def _message(
        self,
        state: RunState,
        order: Order,
        records: Sequence[ArrayRecord],
    ) -> Message:
        arrays, *extra = records
        settings, timing = self.rules.settings, order.timing
        ttl = settings.ttl
        if self.fleet.profiles is None:
            ttl = min(ttl, timing.gives_up - timing.dispatched_at + _CLOCK_SKEW)
        return wire.make_task(
            arrays,
            {
                **self._train_config(order),
                **self._about(state, order.part),
                **order.coding.entries(settings.keys.arrays, self._run),
            },
            task_config(
                self.fleet,
                order.device,
                order.round,
                seed=derive_seed(state.seed, "task", order.device, order.number),
                work=order.part.work,
            ),
            node_id=order.node_id,
            ttl=ttl,
            keys=settings.keys,
            extra=dict(zip(order.part.extra_names, extra, strict=True))
            | self.delivery.records(state.frozen, order),
        )

    def _train_config(self, order: Order) -> Mapping[str, object]:
        """Return the user's config of a task; warn if no rate in it is scheduled."""
        settings = self.rules.settings
        config = settings.config_at(order.lr_factor, order.round)
        if settings.finds_no_rate(config) and not self._said_unscheduled:
            self._said_unscheduled = True
            logger.warning(
                "the schedule changes nothing: train_config has no number under 'lr', "
                "the learning rate that it is to change"
            )
        return config

    def _about(self, state: RunState, part: Part) -> Mapping[str, object]:
        """Return which units a part keeps, and how its frozen tensors are known."""
        indices, key = part.indices, self.rules.settings.keys.arrays
        if not state.frozen.tensors:
            return wire.kept_entries(indices, shapes_of(state.arrays), key)
        indices = self.rules.assignment.all_indices(part)
        return {
            **wire.kept_entries(indices, shapes_of(state.served), key),
            **wire.frozen_entries(state.frozen, key, masked=part.masked),
        }

    def next_return(self, state: RunState) -> float:
        """Return when the first free device can have a task, on the loop's clock.

        Infinity if there is none.
        """
        busy = {order.device for order in state.orders}
        return self.fleet.readiness.next_return(busy, state.time)

    def most_in_flight(self, slots: int) -> int:
        """Return how many tasks may be out when `slots` devices may train."""
        present = len(self.fleet.present)
        return slots + self.rules.queue_ahead * present if present <= slots else slots
