"""What a run is made of: its state, and the objects that change it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import (
    Aggregator,
    OutlierGuard,
    average_,
    room_for_average,
)
from flwr_asyncdrop.exceptions import ConfigError, ReplyError, ShapeError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.dispatch import Dispatcher
from flwr_asyncdrop.server.merging import (
    changed_by,
    check_finite,
    in_parts,
    metrics_of,
    name_of,
    releases,
)
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.same_arguments import check_same
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.updates import check_update, update_of
from flwr_asyncdrop.server.waiting import StarvingWatch, lacks_updates
from flwr_asyncdrop.state_dict import StateDict, Stateless, load_saved, state_to_save
from flwr_asyncdrop.submodel import (
    cpu_by_default,
    one_thread,
)
from flwr_asyncdrop.submodel.types import State


@dataclass
class Run:
    """The state of a run and the objects that change it.

    Up to `slots` tasks are in flight. A round has `updates_per_round` updates, as many
    as devices can be in flight. `averaging` is the decay of the average of the model's
    versions; 0 for none. The `guard` refuses updates before the aggregator gets them. A
    run resumes only with the same `arguments`, as `same_arguments.described` has them.
    `find_unsaved` says what no checkpoint would have of the `parts`; it gets what reads
    their states again. `on_step` is told what the aggregator says of a step.
    """

    state: RunState
    dispatcher: Dispatcher
    aggregator: Aggregator
    slots: int
    updates_per_round: int
    averaging: float = 0.0
    max_examples: int = wire.MAX_EXAMPLES
    guard: OutlierGuard | None = None
    arguments: StateDict = field(default_factory=dict)
    find_unsaved: Callable[[Callable[[], StateDict]], str] = lambda read: ""
    client_state: Callable[[], str] = lambda: ""  # a key of what clients keep
    on_step: Callable[[dict[str, float]], None] = lambda metrics: None

    def __post_init__(self) -> None:
        self._starving = StarvingWatch()
        if self.averaging and self.state.averaged is None:
            self.state.averaged = room_for_average(self.state.arrays)

    @property
    def fleet(self) -> Fleet:
        """The devices."""
        return self.dispatcher.fleet

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated: any node may play any of them."""
        return self.fleet.profiles is not None

    @property
    def parts(self) -> dict[str, Stateless | None]:
        """What may be a user's own, and changes, by its name in the state."""
        rules = self.dispatcher.rules
        return {
            "aggregator": self.aggregator,
            "masks": rules.assignment.masks,
            "selection": rules.selection,
            "work": rules.work,
        }

    def state_dict(self) -> StateDict:
        """Return all that changes: state, fleet, and the parts."""
        state = self.state
        if not self.simulated:
            # Real devices get no task twice, so nobody needs to know what was sent.
            in_flight, late = (
                {name: _without_arrays(order) for name, order in orders.items()}
                for orders in (state.in_flight, state.late)
            )
            state = replace(state, in_flight=in_flight, late=late)
        return {
            "updates_per_round": self.updates_per_round,
            "arguments": self.arguments,
            "state": state.state_dict(),
            "fleet": self.fleet.state_dict(),
            **{
                name: {} if part is None else state_to_save(part)
                for name, part in self.parts.items()
            },
            "guard": {} if self.guard is None else self.guard.state_dict(),
            "delivery": self.dispatcher.delivery.state_dict(),
        }

    def part_at(self, keys: Sequence[str | int]) -> tuple[object, Sequence[str | int]]:
        """Return the part whose state a place is in, and where it is in that one."""
        name, *rest = keys
        part = self.parts.get(str(name))
        return (self, keys) if part is None else (part, rest)

    def load_state_dict(self, state: StateDict) -> None:
        """Load a state.

        ShapeError if its model is another; CheckpointError if its arguments are.
        """
        begun = self.state
        self.state = RunState.start_from({}, begun.seed)
        self.state.load_state_dict(state["state"])
        if self.state.averaged is not None:
            # Versions before this one kept it in half precision if the model is.
            self.state.averaged = room_for_average(self.state.averaged)
        tensors, saved = _tensors_of(begun.initial), _tensors_of(self.state.initial)
        if odd := sorted({name for name, *_ in tensors ^ saved}):
            raise ShapeError(f"see {odd[0]!r}")
        if begun.frozen.sha256 != self.state.frozen.sha256:
            raise ShapeError(
                f"its frozen tensors have the SHA-256 {self.state.frozen.sha256[:12]}, "
                f"and those of start(initial_arrays=...) {begun.frozen.sha256[:12]}"
            )
        check_same(state.get("arguments", {}), self.arguments)
        load_saved(self.aggregator, state["aggregator"])
        rules = self.dispatcher.rules
        if (masks := rules.assignment.masks) is not None:
            load_saved(masks, state["masks"])
        if "selection" in state:  # versions before this one had none
            load_saved(rules.selection, state["selection"])
        if rules.work is not None:
            load_saved(rules.work, state["work"])
        # There is none in the state of a run that had no guard.
        if self.guard is not None and state["guard"]:
            self.guard.load_state_dict(state["guard"])
        if "delivery" in state:  # versions before this one had none
            self.dispatcher.delivery.load_state_dict(state["delivery"])
        self.fleet.load_state_dict(state["fleet"])
        self.state.num_devices = len(self.fleet)

    def not_in(self, read: Callable[[], StateDict]) -> str:
        """Return what a run that resumes would lack; "" for nothing.

        It is what clients keep, or what a user's own objects do not save. `read`
        returns the state as it is read again.
        """
        if key := self.client_state():
            return (
                f"no checkpoint has what clients keep in context.state ({key!r} in "
                "this simulation)"
            )

        def saved() -> StateDict:
            state = read()
            return {name: state[name] for name in self.parts}

        return self.find_unsaved(saved)

    def add_energy(self, device: int, cost: TaskCost, sign: int = 1) -> None:
        """Count the joules of a cost, if this fleet counts them; -1 takes them back."""
        if self.state.joules is not None:
            self.state.joules += sign * self.fleet.devices.energy(device, cost)

    @one_thread()
    @cpu_by_default()
    def read(
        self, order: Order, message: Message, *, decoded: bool = False
    ) -> wire.Reply:
        """Read the reply to an order; ReplyError if it does not fit.

        FrozenLackedError if the device asks for the frozen tensors instead, RunError if
        it was sent a model that is not finite. With `decoded` the message was read
        before, and its arrays are no codes any more.
        """
        if not decoded:
            self.dispatcher.delivery.check(self.state.frozen, order, message)
        part, arrays = order.part, self.state.arrays
        expected = wire.Expected(
            shapes=part.shapes,
            dtypes={name: tensor.dtype for name, tensor in arrays.items()},
            keys=self.dispatcher.rules.settings.keys,
            max_examples=self.max_examples,
            extra=part.extra_names,
            coding=wire.Coding() if decoded else order.coding,
            sent=part.arrays or {},
        )
        try:
            return wire.read_reply(message, expected)
        except ReplyError as error:
            if error.kind == "non-finite":
                check_finite(arrays, self.aggregator)
            raise

    def merge(
        self, order: Order, reply: wire.Reply, staleness: int, discount: float = 1.0
    ) -> None:
        """Merge a reply into the global model; `discount` scales its weight.

        ReplyError, and no change, if it does not fit the model, or is refused.
        """
        if self._merge(order, reply, staleness, discount):
            self._tell_of_step()

    @one_thread()
    @cpu_by_default()
    def _merge(
        self, order: Order, reply: wire.Reply, staleness: int, discount: float
    ) -> bool:
        """Merge a reply, and return whether the global model has changed."""
        state = self.state
        rate_share = self.dispatcher.rules.settings.rate_share(order.round)
        update = update_of(
            state,
            self.fleet,
            order,
            reply,
            staleness=staleness,
            lr_factor=order.lr_factor * rate_share,
            discount=discount,
            seconds=state.time - self.dispatcher.tracker.began(order)[0],
        )
        try:
            check_update(
                update,
                state.arrays,
                self.guard,
                needs_base=self.aggregator.needs_base,
                num_devices=len(self.fleet.present),
            )
            changed = changed_by(self.aggregator, state.arrays, update)
        except ShapeError as error:
            raise ReplyError("shape", str(error)) from error
        if changed:
            self._changed()
            state.waiting = [
                waiting
                for waiting in state.waiting
                if not releases(self.aggregator, waiting)
            ]
        elif self._waits(order.device):
            # Nobody needs what it was sent any more, and each may be a model.
            arrived = replace(order.timing, due=state.time)
            state.waiting.append(replace(_without_arrays(order), timing=arrived))
        self._starving.look(state, self.aggregator)
        rules = self.dispatcher.rules
        rules.selection.learn(update)
        if rules.work is not None:
            rules.work.learn(update)
        state.updates += 1
        state.fastest_updates += order.rank == 0
        return changed

    def _waits(self, device: int) -> bool:
        """Return whether a device that has delivered waits for the next step."""
        if self.aggregator.waits_for == 1:
            return False
        return self.fleet.speeds.times_faster(device) <= self.aggregator.wait_limit

    def stop_waiting(self) -> bool:
        """Let those go on that wait for a step which will not come by itself.

        With a step of those that are there, if there are any: an aggregator may have
        left updates out. Return whether they go on. It is for when no device is idle,
        or all wait, and for the end of a run. A step by the time comes by itself.

        Where a step is for some of those that wait, others may be out all the time.
        Then those go on, without a step, for whom nobody can be out any more: each task
        that is out has left since they came.
        """
        state = self.state
        out = [*state.in_flight.values(), *state.late.values()]
        if not state.waiting or (out and not in_parts(self.aggregator)):
            return False
        if self.aggregator.steps_at < math.inf:
            return False
        if not lacks_updates(state, self.dispatcher, self.aggregator, self.slots):
            return False
        if not out:
            self._let_go()
            return True
        first = min(order.timing.dispatched_at for order in out)
        waited, count = state.waiting, len(state.waiting)
        state.waiting = [each for each in waited if each.timing.due >= first]
        return len(state.waiting) < count

    def _let_go(self) -> None:
        """Take a step with the updates that are there; nobody waits after it."""
        if not self.flush():
            self.state.waiting.clear()

    def step_if_due(self) -> None:
        """Have an aggregator that steps by the time take its step, if it is due.

        ConfigError if it does not say when the next one is.
        """
        state, aggregator = self.state, self.aggregator
        while (due := aggregator.steps_at) <= state.time:
            self._let_go()
            if not aggregator.steps_at > due:
                raise ConfigError(
                    f"flush of {name_of(aggregator)} has left "
                    f"steps_at={aggregator.steps_at!r} at {state.time:g} s: set it to "
                    "the time of the next step there, or to infinity"
                )

    def flush(self) -> bool:
        """Take a step with the updates that are there; return whether there was one."""
        changed = self._flush()
        if changed:
            self._tell_of_step()
        return changed

    def _tell_of_step(self) -> None:
        if metrics := metrics_of(self.aggregator):
            self.on_step(metrics)

    @one_thread()
    @cpu_by_default()
    def _flush(self) -> bool:
        changed = changed_by(self.aggregator, self.state.arrays)
        if changed:
            self._changed()
            self.state.waiting.clear()
        return changed

    def _changed(self) -> None:
        """Note that the global model has changed."""
        state = self.state
        state.version += 1
        if state.averaged is not None:
            average_(state.averaged, state.arrays, self.averaging, state.version)


def _tensors_of(state: State) -> set[tuple[str, tuple[int, ...], torch.dtype]]:
    """Return the name, shape and dtype of each tensor."""
    return {(name, tuple(each.shape), each.dtype) for name, each in state.items()}


def _without_arrays(order: Order) -> Order:
    return replace(order, part=order.part.without_arrays())
