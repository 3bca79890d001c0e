"""One synchronous round of a session."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.train_settings import task_config
from flwr_asyncdrop.submodel import State

logger = logging.getLogger("flwr.asyncdrop")


def resume(
    session: Run,
    arrays: State,
    config: Mapping[str, object],
    node_ids: Iterable[int],
) -> None:
    """Go on to another synchronous round, with what the caller has by now."""
    session.state.arrays = arrays
    dispatcher = session.dispatcher
    dispatcher.settings = replace(dispatcher.settings, config=config)
    dispatcher.fleet.refresh(node_ids)


def train_messages(session: Run, server_round: int) -> list[Message]:
    """Dispatch one task to as many devices as a round has updates."""
    messages: list[Message] = []
    session.state.in_flight.clear()
    session.state.waiting.clear()
    for _ in range(session.updates_per_round):
        task = session.dispatcher.next_task(session.state, server_round)
        if task is None:
            break
        order, message = task
        session.state.in_flight[str(order.node_id)] = order
        session.state.dispatched += 1
        messages.append(message)
    return messages


def merge_all(session: Run, replies: Iterable[Message]) -> list[wire.Reply]:
    """Merge the replies of one synchronous round in the order of dispatch.

    Returns
    -------
    list of Reply
        Those that were merged; the others are logged.
    """
    state = session.state
    by_node = {str(reply.metadata.src_node_id): reply for reply in replies}
    merged: list[wire.Reply] = []
    for node, order in state.in_flight.items():
        if node not in by_node:
            logger.warning("device %d did not reply", order.device)
            continue
        try:
            reply = session.read(order, by_node[node])
            session.merge(order, reply, staleness=0)
        except ReplyError as error:
            logger.warning("device %d: %s", order.device, error)
            continue
        merged.append(reply)
    state.in_flight.clear()
    return merged


def evaluation_messages(
    session: Run,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    *,
    fraction: float,
    node_ids: Sequence[int],
) -> list[Message]:
    """Ask a random share of the nodes to evaluate the global model.

    Parameters
    ----------
    session : Run
        The run; its seed and the round choose the nodes.
    server_round : int
        The round.
    arrays : ArrayRecord
        The global model.
    config : ConfigRecord
        Sent along.
    fraction : float
        The share, in (0, 1]; it is rounded up.
    node_ids : sequence of int
        The nodes that are connected.
    """
    fleet = session.dispatcher.fleet
    fleet.refresh(node_ids)
    devices = fleet.idle(())
    count = min(len(devices), int(np.ceil(fraction * len(devices))))
    generator = numpy_generator(session.state.seed, "evaluate", server_round)
    chosen = np.sort(generator.choice(devices, count, replace=False))
    return [
        wire.make_task(
            arrays,
            config,
            task_config(fleet, int(device), server_round, seed=0),
            node_id=fleet.node_ids[device],
            keys=session.dispatcher.settings.keys,
            ttl=session.dispatcher.settings.ttl,
            message_type=MessageType.EVALUATE,
        )
        for device in chosen
    ]
