"""One synchronous round of a run."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.server.frozen_delivery import FrozenLackedError
from flwr_asyncdrop.server.order import Order, Timing
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.train_settings import task_config
from flwr_asyncdrop.strategy.wrappers import within_norm
from flwr_asyncdrop.submodel import State, split

logger = logging.getLogger("flwr.asyncdrop")


def proceed(
    run: Run,
    arrays: State,
    config: Mapping[str, object],
    node_ids: Iterable[int],
) -> None:
    """Begin another round with the caller's model and train config."""
    state = run.state
    before = state.frozen.sha256
    state.arrays, state.frozen = split(arrays, state.frozen.tensors.keys())
    if state.frozen.sha256 != before:
        logger.warning(
            "what does not train has changed since the last round, and each device "
            "downloads it again: the noise of a privacy wrapper, such as Flower's, "
            "reaches it, too (docs/robustness.md)"
        )
        run.dispatcher.delivery.forget()
    rules = run.dispatcher.rules
    settings = replace(rules.settings, config=config)
    run.dispatcher.rules = replace(rules, settings=settings)
    run.fleet.refresh(node_ids)
    state.num_devices = len(run.fleet)


def train_messages(run: Run, server_round: int) -> list[Message]:
    """Dispatch one task to as many devices as a round has updates.

    Flower's rounds have no clock, so the orders have no due time and no deadline.
    """
    messages: list[Message] = []
    state = run.state
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


def merge_all(
    run: Run,
    replies: Iterable[Message],
    norm: float = math.inf,
    read: Callable[[Order, Message], wire.Reply] | None = None,
) -> list[wire.Reply]:
    """Merge the replies of a round in the order of dispatch, and return the merged.

    What devices have clipped to a `norm` is as short when it is decoded. A cohort that
    waits for all steps without those that have not replied, as FedAvg. They are `read`
    as by `Run.read`.
    """
    read = read or run.read
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


def evaluation_messages(
    run: Run,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    *,
    count: Callable[[int], int],
    node_ids: Sequence[int],
) -> list[Message]:
    """Ask some of the nodes, `count` of so many, to evaluate the global model.

    The seed of the run and the round choose them.
    """
    fleet, settings = run.fleet, run.dispatcher.rules.settings
    fleet.refresh(node_ids)
    devices = fleet.connected()
    frozen, delivery = run.state.frozen, run.dispatcher.delivery
    arrays, entries = wire.left_out(
        arrays, frozen, delivery.record(frozen), settings.keys.arrays
    )
    generator = numpy_generator(run.state.seed, "evaluate", server_round)
    chosen = np.sort(generator.choice(devices, count(len(devices)), replace=False))
    return [
        wire.make_task(
            arrays,
            {**config, **entries},
            task_config(fleet, int(device), server_round, seed=0),
            node_id=fleet.node_ids[device],
            keys=settings.keys,
            ttl=settings.ttl,
            message_type=MessageType.EVALUATE,
            extra=delivery.for_evaluation(frozen, int(device)) if entries else {},
        )
        for device in chosen
    ]


def evaluation_again(run: Run, message: Message, reply: Message) -> Message | None:
    """Return an evaluation with the frozen tensors if its node asks for them, once."""
    frozen = run.state.frozen
    if wire.FROZEN_RECORD in message.content:
        return None
    if not wire.lacks_frozen(reply, frozen.sha256):
        return None
    return wire.bring(message, run.dispatcher.delivery.record(frozen))
