"""Who evaluates the global model of a run, and what clients are asked."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import Strategy

from flwr_asyncdrop import wire
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.server.client_evaluator import ClientEvaluator
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.server_evaluator import EvaluateFn, ServerEvaluator
from flwr_asyncdrop.server.train_settings import task_config
from flwr_asyncdrop.strategy.read_once import read_before
from flwr_asyncdrop.strategy.round_hooks import evaluations_of
from flwr_asyncdrop.strategy.start import Connection, StartArguments
from flwr_asyncdrop.strategy.train_configs import config_of

_MOST_EVALUATED = 16  # rounds that real clients evaluate at once


def evaluator_here(evaluate_fn: EvaluateFn, connection: Connection) -> ServerEvaluator:
    """Return what calls a user's function, beside the loop if nothing speaks against.

    Simulated clients in this process draw from the same generators as it does.
    """
    draws = not getattr(evaluate_fn, "draws_nothing", False)
    beside = not (draws and connection.grid.runs_clients_here)
    return ServerEvaluator(evaluate_fn, connection.signals.at_once, beside=beside)


def evaluator_on_clients(
    strategy: Strategy, run: Run, connection: Connection, start: StartArguments
) -> ClientEvaluator:
    """Return what lets clients evaluate, as the hooks of a strategy say."""

    def configure(number: int, arrays: ArrayRecord) -> Iterable[Message]:
        record = config_of(start.evaluate_config, "evaluate_config", number)
        with read_before(strategy, "configure_evaluate"):
            found = strategy.configure_evaluate(number, arrays, record, connection.grid)
            return evaluations_of(strategy, found)

    def aggregate(number: int, replies: Sequence[Message]) -> MetricRecord | None:
        with read_before(strategy, "aggregate_evaluate"):
            return strategy.aggregate_evaluate(number, replies)

    return ClientEvaluator(
        connection.mailbox,
        configure,
        aggregate,
        start.timeout,
        partial(evaluation_again, run) if run.state.frozen.tensors else None,
        # Of simulated devices the outcome must not depend on real time.
        math.inf if run.simulated else _MOST_EVALUATED,
    )


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
