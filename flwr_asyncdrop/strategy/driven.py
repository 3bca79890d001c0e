"""A run whose rounds are driven from outside, as by Flower's own loop."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.app import Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.server.frozen_delivery import FrozenLackedError
from flwr_asyncdrop.server.merging import name_of
from flwr_asyncdrop.server.order import Timing
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.strategy.arguments import Arguments
from flwr_asyncdrop.strategy.decoded import DecodedReplies
from flwr_asyncdrop.strategy.ignored import changed_fields
from flwr_asyncdrop.strategy.wrappers import within_norm
from flwr_asyncdrop.submodel import State, split

logger = logging.getLogger("flwr.asyncdrop")


# What only the strategy's own start reads, and the values that change nothing there.
_OF_THE_LOOP: Mapping[str, object] = {
    "callbacks": [],
    "checkpointer": None,
    "evaluators": [],
    "evaluate_every": 1,
    "faults": FaultPolicy(),
    "max_seconds": math.inf,
    "probe": False,
    "queue_ahead": 0,
}


def check_unread(given: Arguments) -> None:
    """Raise ConfigError for arguments that rounds driven from outside do not read."""
    names = []
    for name, nothing in _OF_THE_LOOP.items():
        value = getattr(given, name)
        if (list(value) if isinstance(nothing, list) else value) != nothing:
            names.append(name)
    algorithm = given.algorithm
    # Off is what it is here. The default of AsyncDropPlus nobody has asked for.
    if algorithm is not None and algorithm.averaging:
        names += {"averaging"}.intersection(changed_fields(algorithm))
    if names:
        raise ConfigError(
            f"{', '.join(names)} of {type(given).__name__} would have no effect: its "
            "rounds are driven from outside, as by a wrapper or a copied loop, and "
            "only its own start(...) reads that; call it, or leave that out "
            "(docs/migrating.md#rounds-that-are-driven-from-outside)"
        )


class DrivenRun:
    """A run that its caller takes round by round: tasks for all, then all replies.

    A round begins with what the one before has returned, which may have noise of the
    caller's in it: no average of the versions is kept.

    Raises
    ------
    ConfigError
        If the aggregator, or the schedule, goes by a clock, which such rounds have not.
    """

    def __init__(self, run: Run) -> None:
        rules = run.dispatcher.rules
        schedule, timed = rules.settings.schedule, ""
        if run.aggregator.steps_at < math.inf:
            timed = f"{name_of(run.aggregator)} steps by the time"
        elif isinstance(schedule, StepDecay) and schedule.goes_by_time:
            timed = "the schedule counts seconds"
        if timed:
            raise ConfigError(
                f"{timed}, and rounds that are driven from outside have no clock: run "
                "it with the strategy's own start(...)"
            )
        run.state.averaged = None
        # Rates are compared with that of the first round.
        first: Mapping[str, object] = rules.settings.config_at(1.0)
        self._first, self._config = first, first
        settings = replace(rules.settings, config=self._config_of)
        run.dispatcher.rules = replace(rules, settings=settings)
        # No round waits for a task that is sent a second time.
        delivery = run.dispatcher.delivery
        delivery.unasked, delivery.always = True, run.simulated
        self.run = run
        self._decoded: DecodedReplies | None = None

    def proceed(
        self, arrays: State, config: Mapping[str, object], node_ids: Iterable[int]
    ) -> None:
        """Go on to another round with the caller's model and train config."""
        run, state = self.run, self.run.state
        before = state.frozen.sha256
        state.arrays, state.frozen = split(arrays, state.frozen.tensors.keys())
        if state.frozen.sha256 != before:
            logger.warning(
                "what does not train has changed since the last round, and each device "
                "downloads it again: the noise of a privacy wrapper, such as Flower's, "
                "reaches it, too (docs/robustness.md)"
            )
            run.dispatcher.delivery.forget()
        self._config = config
        run.fleet.refresh(node_ids)
        state.num_devices = len(run.fleet)

    def _config_of(self, server_round: int) -> Mapping[str, object]:
        return self._first if server_round == 1 else self._config

    def train(self, server_round: int) -> list[Message]:
        """Dispatch one task to as many devices as a round has updates.

        Such rounds have no clock, so the orders have no due time and no deadline.
        """
        messages: list[Message] = []
        run, state = self.run, self.run.state
        state.in_flight.clear()
        state.waiting.clear()
        for _ in range(run.updates_per_round):
            taken = [order.device for order in state.orders]
            idle = np.setdiff1d(run.fleet.connected(), taken)
            task = run.dispatcher.task_among(state, server_round, idle)
            if task is None:
                break
            order, message = task
            timeless = replace(order, timing=Timing(state.time))
            state.in_flight[f"order-{order.number}"] = timeless
            state.dispatched += 1
            messages.append(message)
        return messages

    @contextmanager
    def decoding(self, replies: Iterable[Message]) -> Iterator[Iterable[Message]]:
        """Decode replies for a hook that reads them before they are merged.

        A hook that it calls in turn gets what it passes on.
        """
        if self._decoded is not None:
            yield replies
            return
        self._decoded = DecodedReplies(self.run)
        try:
            yield self._decoded.given(replies)
        finally:
            self._decoded = None

    def merge(
        self, replies: Iterable[Message], norm: float = math.inf
    ) -> list[wire.Reply]:
        """Merge the replies of a round in the order of dispatch, and return the merged.

        What devices have clipped to a `norm` is as short when it is decoded. A cohort
        that waits for all steps without those that have not replied, as FedAvg.
        """
        run, decoded = self.run, self._decoded
        if decoded is not None:
            replies = decoded.merged(replies)
        read = run.read if decoded is None else decoded.read
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        merged: list[wire.Reply] = []
        for order in run.state.in_flight.values():
            if order.node_id not in by_node:
                logger.warning("device %d did not reply", order.device)
                continue
            try:
                reply = read(order, by_node[order.node_id])
                run.merge(order, within_norm(reply, order, norm), staleness=0)
            except FrozenLackedError:
                logger.info("device %d gets the frozen tensors next", order.device)
                continue
            except ReplyError as error:
                logger.warning("device %d: %s", order.device, error)
                continue
            merged.append(reply)
        run.state.in_flight.clear()
        if run.state.waiting and run.aggregator.waits_for >= run.updates_per_round:
            run.flush()
        return merged
