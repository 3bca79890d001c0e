"""What a run is made of."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Aggregator, Update, average_
from flwr_asyncdrop.exceptions import ConfigError, ReplyError, ShapeError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet, FleetMemory
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.dispatch import Dispatcher
from flwr_asyncdrop.server.state import Order, RunState
from flwr_asyncdrop.server.train_settings import TrainSettings
from flwr_asyncdrop.submodel import extract

logger = logging.getLogger("flwr.asyncdrop")

AggregatorBuilder = Callable[[int], Aggregator]
"""The aggregator of a run from the number of devices that can be in flight."""

FleetBuilder = Callable[[int], Sequence[DeviceProfile]]
"""Profiles of a simulated fleet from its number of devices, fastest first."""


@dataclass(frozen=True)
class RunMemory:
    """The size of a run, which it keeps when it goes on, and its devices.

    Attributes
    ----------
    updates_per_round : int
        As in `Run`.
    fleet : FleetMemory
        What is known of the devices.
    """

    updates_per_round: int
    fleet: FleetMemory


@dataclass
class Run:
    """The state of a run and those who change it.

    Attributes
    ----------
    state : RunState
        All that changes.
    dispatcher : Dispatcher
        Says who trains what.
    aggregator : Aggregator
        Merges.
    slots : int
        Most tasks in flight at any moment.
    updates_per_round : int
        As many as devices can be in flight.
    averaging : float
        Decay of the average of the model's versions that is served; 0 for none.
    max_examples : int
        Most examples that a reply can claim.
    """

    state: RunState
    dispatcher: Dispatcher
    aggregator: Aggregator
    slots: int
    updates_per_round: int
    averaging: float = 0.0
    max_examples: int = wire.MAX_EXAMPLES

    def __post_init__(self) -> None:
        if self.averaging and self.state.averaged is None:
            arrays = self.state.arrays
            self.state.averaged = {name: t.clone() for name, t in arrays.items()}

    @classmethod
    def open(
        cls,
        state: RunState,
        node_ids: Sequence[int],
        *,
        in_flight: int,
        build_fleet: FleetBuilder | None,
        selection: Selection,
        assignment: Assignment,
        build_aggregator: AggregatorBuilder,
        settings: TrainSettings,
        averaging: float = 0.0,
        max_examples: int = wire.MAX_EXAMPLES,
        tolerance: FaultPolicy = FaultPolicy(),  # noqa: B008  # frozen
        keeps_base: bool = False,
        memory: RunMemory | None = None,
        queue_ahead: int = 0,
    ) -> "Run":
        """Put a run together on the nodes that are connected.

        A simulated fleet keeps the devices that it starts with, so it can never have
        more in flight than those; on a real one others may still come, unless devices
        wait for each other, which takes a fixed number of them.

        With `keeps_base`, orders keep what was sent though the aggregator does not
        need it: it may have to be sent again. With the `memory` of a run that was
        interrupted, the new one has the size and the devices of that.

        Raises
        ------
        ConfigError
            If devices wait for more updates than can be in flight, or if there is to
            be a queue on devices that are simulated, or that wait for each other.
        """
        size = len(node_ids) if memory is None else len(memory.fleet.node_ids)
        profiles = None if build_fleet is None else build_fleet(size)
        possible = min(in_flight, size) if memory is None else memory.updates_per_round
        aggregator = build_aggregator(possible)
        grows = profiles is None and not aggregator.waits
        if queue_ahead and not grows:
            raise ConfigError(
                f"queue_ahead={queue_ahead}: only real devices have a queue, and only "
                "if they do not wait for each other"
            )
        slots = in_flight if grows else possible
        model_bytes = sum(tensor.nbytes for tensor in state.arrays.values())
        fleet = Fleet(slots, profiles, model_bytes)
        if memory is not None:
            fleet.restore(memory.fleet)
            if profiles is not None:
                fleet.move_to(node_ids)
        fleet.refresh(node_ids)
        state.num_devices = len(fleet)
        if possible < in_flight:
            logger.warning(
                "%d nodes for %d tasks in flight: only %d will train at any moment. "
                "Simulate more with --federation-config 'num-supernodes=104', start "
                "more SuperNodes, or lower in-flight.",
                len(node_ids),
                in_flight,
                possible,
            )
        dispatcher = Dispatcher(
            fleet,
            selection,
            assignment,
            settings,
            keeps_base=keeps_base or aggregator.needs_base,
            tolerance=tolerance,
            queue_ahead=queue_ahead,
        )
        return cls(
            state,
            dispatcher,
            aggregator,
            slots,
            possible,
            averaging,
            max_examples,
        )

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated: any node may play any of them."""
        return self.dispatcher.fleet.profiles is not None

    @property
    def memory(self) -> RunMemory:
        """Its size, and what is known of the devices."""
        return RunMemory(self.updates_per_round, self.dispatcher.fleet.memory)

    def read(self, order: Order, message: Message) -> wire.Reply:
        """Read the reply to an order.

        Raises
        ------
        ReplyError
            If it does not fit the order.
        """
        return wire.read_reply(message, self._expected(order))

    def merge(
        self, order: Order, reply: wire.Reply, staleness: int, discount: float = 1.0
    ) -> None:
        """Take a reply into the global model.

        Parameters
        ----------
        order : Order
            The order that it answers.
        reply : Reply
            The reply.
        staleness : int
            Versions of the model between dispatch and merge.
        discount : float
            Factor on its weight, in (0, 1].

        Raises
        ------
        ReplyError
            If it does not fit the global model; the state is as before then.
        """
        state = self.state
        arrays, base = reply.arrays, order.base
        if order.masked:
            arrays = extract(arrays, order.indices)
            base = None if base is None else extract(base, order.indices)
        update = Update(
            arrays,
            order.indices,
            staleness,
            reply.num_examples,
            base,
            self.dispatcher.fleet.capability(order.device),
            order.rank,
            order.num_ranks,
            order.lr_factor,
            discount,
        )
        try:
            changed = self.aggregator.merge(state.arrays, update)
        except ShapeError as error:
            raise ReplyError("shape", str(error)) from error
        if changed:
            state.version += 1
            state.waiting.clear()
            if state.averaged is not None:
                average_(state.averaged, state.arrays, self.averaging, state.version)
        elif self.aggregator.waits:
            state.waiting.append(order)
        state.updates += 1
        state.fastest_updates += order.rank == 0

    def _expected(self, order: Order) -> wire.Expected:
        """Return what the reply to an order must be like."""
        return wire.Expected(
            order.shapes,
            {name: tensor.dtype for name, tensor in self.state.arrays.items()},
            self.dispatcher.settings.keys,
            self.max_examples,
        )
