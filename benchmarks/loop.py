"""The event loop's own time per update, aggregation and evaluation aside."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, Message

from benchmarks.figures import Figure
from flwr_asyncdrop.aggregation import Aggregator, Update
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.simulation import LocalGrid
from flwr_asyncdrop.submodel import State

__all__ = ["loop_figures"]

T = TypeVar("T")

NODES = 104
ROUNDS = 60


def loop_figures() -> list[Figure]:
    """Run the main job on clients that answer at once; time what the server does.

    That is all but the merging and the client: pick a device, score the units, draw
    the mask, slice the arrays, write the message, read and check the reply, and keep
    the books.
    """
    torch.set_num_threads(1)
    config = RunConfig(num_rounds=ROUNDS)
    elapsed = _Elapsed()
    strategy = build_strategy(config, [elapsed])
    aggregator = _Timed(strategy.build_aggregator(config.in_flight))
    strategy.build_aggregator = lambda _: aggregator  # type: ignore[assignment, method-assign]
    arrays = ArrayRecord(initial_model(config).state_dict())
    with _TimedGrid("benchmarks.noop:client_app", num_nodes=NODES, workers=0) as grid:
        strategy.start(grid, arrays, num_rounds=ROUNDS)
    updates = ROUNDS * config.in_flight
    loop = elapsed.seconds - aggregator.seconds - grid.seconds
    return [
        Figure("loop_ms", loop / updates * 1e3, 5),
        Figure("aggregation_ms_main_job", aggregator.seconds / updates * 1e3),
    ]


class _Elapsed(Callback):
    """Measures from the first dispatch to the end."""

    seconds = 0.0

    def on_start(self, state: RunState) -> None:
        """Start."""
        self._started = time.perf_counter()

    def on_end(self, state: RunState) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - self._started


class _TimedGrid(LocalGrid):
    """A LocalGrid in this process that adds up the time of its clients."""

    seconds = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push, and time it."""
        return self._timed(super().push_messages, messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the client if need be, and time it."""
        return self._timed(super().pull_messages, message_ids)

    def wait_any(
        self, message_ids: Collection[str], timeout: float | None = None
    ) -> bool:
        """Run the client if need be, and time it."""
        return self._timed(super().wait_any, message_ids, timeout)

    def _timed(self, call: Callable[..., T], *arguments: object) -> T:
        started = time.perf_counter()
        result = call(*arguments)
        self.seconds += time.perf_counter() - started
        return result


class _Timed(Aggregator):
    """Adds up the time that an aggregator takes."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self.seconds = 0.0

    def merge(self, state: State, update: Update) -> bool:
        """Merge, and time it."""
        started = time.perf_counter()
        changed = self._aggregator.merge(state, update)
        self.seconds += time.perf_counter() - started
        return changed
