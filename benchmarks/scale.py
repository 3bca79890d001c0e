"""What an update costs the server, from a hundred devices to a hundred thousand.

    python -m benchmarks.scale

The nodes are a stub that answers at once, with 10 kB of weights and 8 tasks in flight:
what is left is the server's own work. CPU time, so that other load matters little.
"""

import argparse
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from benchmarks.figures import Figure, show
from flwr_asyncdrop import AsyncFedAvg, speed_levels
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.flower_internals.identity import assume_identity, stamp
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState

__all__ = ["InstantGrid", "ms_per_update", "scale_figures"]

SIZES = (100, 1_000, 10_000, 100_000)
IN_FLIGHT = 8
FLOATS = 2_500
UPDATES = 400
WARM_UP = 40
REPEATS = 3
_FIRST_NODE_ID = 1000
_RUN_ID = 1

FleetBuilder = Callable[[int], Sequence[DeviceProfile]] | None


class InstantGrid(Grid):
    """So many nodes that return what they get, at once."""

    answers_at_once: ClassVar[bool] = True

    def __init__(self, num_nodes: int) -> None:
        assume_identity(_RUN_ID)
        self._node_ids = [_FIRST_NODE_ID + number for number in range(num_nodes)]
        self._numbers = itertools.count()
        self._replies: dict[str, Message] = {}
        self.waiting: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """Return all of them, in a list of its own."""
        return list(self._node_ids)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer messages."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            stamp(message, message_id=message_id, run_id=_RUN_ID)
            self._replies[message_id] = self.reply(message)
            self.waiting[message_id] = message
            ids.append(message_id)
        return ids

    def reply(self, message: Message) -> Message:
        """Answer a message."""
        content = RecordDict(
            {
                "arrays": message.content["arrays"],
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        return Message(content, reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies, each one once."""
        here = [name for name in message_ids if name in self._replies]
        for name in here:
            del self.waiting[name]
        return [self._replies.pop(name) for name in here]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Do a round."""
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Create a message."""
        return Message(*arguments, **options)

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """Ignore it."""


class _CpuTime(Callback):
    """The CPU time from the end of the warm-up to the last update."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Note the time."""
        self._marks.append(time.process_time())

    @property
    def ms_per_update(self) -> float:
        """Milliseconds an update."""
        marks = self._marks[WARM_UP:]
        return (marks[-1] - marks[0]) / (len(marks) - 1) * 1e3


def ms_per_update(
    num_devices: int, fleet: FleetBuilder, updates: int = UPDATES, **options: Any
) -> float:
    """Return the CPU milliseconds of an update; `options` are the strategy's."""
    cpu = _CpuTime()
    strategy = AsyncFedAvg(
        in_flight=IN_FLIGHT,
        fleet=fleet,
        fraction_evaluate=0.0,
        log_rounds=False,
        **{**options, "callbacks": [cpu, *options.get("callbacks", ())]},
    )
    arrays = ArrayRecord({"weights": torch.zeros(FLOATS)})
    strategy.start(InstantGrid(num_devices), arrays, num_rounds=updates // IN_FLIGHT)
    return cpu.ms_per_update


def scale_figures() -> list[Figure]:
    """Measure fleets of all sizes by both clocks; the best of some runs counts."""
    torch.set_num_threads(1)
    figures = []
    for clock, fleet in (("sim", speed_levels), ("wall", None)):
        best = {
            size: min(ms_per_update(size, fleet) for _ in range(REPEATS))
            for size in SIZES
        }
        figures += [
            Figure(f"server_ms_{clock}_{_short(size)}", value)
            for size, value in best.items()
        ]
        ratio = best[SIZES[-1]] / best[SIZES[0]]
        figures.append(Figure(f"{clock}_100k_over_100", ratio, 1.5))
    return figures


def _short(size: int) -> str:
    return str(size) if size < 1_000 else f"{size // 1_000}k"


def main() -> None:
    """Measure, and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    show({"scale": scale_figures})


if __name__ == "__main__":
    main()
