"""The event loop's own time per update, aggregation and evaluation aside."""

import time
from collections.abc import Callable, Collection, Iterable
from itertools import count

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from benchmarks.figures import Figure
from benchmarks.noop import echo
from flwr_asyncdrop.aggregation import Aggregator, Update
from flwr_asyncdrop.config import RunConfig
from flwr_asyncdrop.experiment import initial_model
from flwr_asyncdrop.server.app import build_strategy
from flwr_asyncdrop.submodel import State

__all__ = ["loop_figures"]

NODES = 104
ROUNDS = 30


def loop_figures() -> list[Figure]:
    """Run the main job on a grid that answers at once; time what is left.

    What is left is all that the server does for an update beside merging it: pick a
    device, score the units, draw the mask, slice the arrays, write the message, read
    and check the reply, and keep the books.
    """
    config = RunConfig(num_rounds=ROUNDS)
    strategy = build_strategy(config)
    strategy.aggregator = timed = _Timed(strategy.aggregator)
    arrays = ArrayRecord(initial_model(config).state_dict())
    started = time.perf_counter()
    strategy.start(_InstantGrid(), arrays, num_rounds=ROUNDS)
    elapsed = time.perf_counter() - started - _InstantGrid.settling
    updates = ROUNDS * config.in_flight
    return [
        Figure("loop_ms", (elapsed - timed.seconds) / updates * 1e3, 5),
        Figure("aggregation_ms_main_job", timed.seconds / updates * 1e3),
    ]


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
