"""A ClientApp that does nothing, and a ServerApp that counts its updates."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flwr_asyncdrop import AsyncFedAvg, speed_levels
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState

__all__ = ["UpdateRate", "client_app", "make_client_app", "run_strategy", "server_app"]

MEGABYTE_OF_FLOATS = 250_000
_OUTPUT = "ASYNCDROP_BENCH_OUTPUT"
_ROUNDS = "ASYNCDROP_BENCH_ROUNDS"

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def echo(message: Message, context: Context) -> Message:
    """Send the arrays back untouched."""
    content = RecordDict(
        {
            "arrays": message.content["arrays"],
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=message)


def make_client_app() -> ClientApp:
    """Return the ClientApp, for LocalGrid's workers."""
    return client_app


class UpdateRate(Callback):
    """Measures updates a second after a warm-up."""

    def __init__(
        self, warm_up: int, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._warm_up = warm_up
        self._timer = timer
        self._first = self._last = 0.0
        self._updates = 0

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Note the time."""
        self._last = self._timer()
        if state.updates == self._warm_up:
            self._first = self._last
        self._updates = state.updates

    @property
    def value(self) -> float:
        """Updates a second between the end of the warm-up and the last one."""
        return (self._updates - self._warm_up) / (self._last - self._first)


def run_strategy(grid: Grid, num_rounds: int, megabytes: int = 1) -> float:
    """Run asynchronous FedAvg on so many MB of weights; return updates a second."""
    rate = UpdateRate(warm_up=16)
    strategy = AsyncFedAvg(
        in_flight=8, fleet=speed_levels, fraction_evaluate=0.0, callbacks=[rate]
    )
    arrays = ArrayRecord({"weights": torch.zeros(megabytes * MEGABYTE_OF_FLOATS)})
    strategy.start(grid, arrays, num_rounds=num_rounds)
    return rate.value


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Write the rate where the benchmark looks for it."""
    value = run_strategy(grid, int(os.environ[_ROUNDS]))
    Path(os.environ[_OUTPUT]).write_text(json.dumps(value))
