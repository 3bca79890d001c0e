"""What an update of a large model costs the server: CPU milliseconds.

    python -m benchmarks.large

A stub of a grid answers with arrays in which every weight has moved. Its CPU time does
not count: what is left is the server's own work, from choosing a device to merging its
reply. One thread, the mean of an update, the best of some runs.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import nn

from benchmarks.figures import Figure, say, show
from benchmarks.scale import InstantGrid
from flwr_asyncdrop import (
    AsyncDropPlus,
    AsyncFedAvg,
    FedBuff,
    HeteroAsyncDrop,
    speed_levels,
    wire,
)
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy
from flwr_asyncdrop.submodel import State

__all__ = ["TrainingGrid", "large_figures"]

IN_FLIGHT = 8
BUFFER = 4
NODES = 32
ROUNDS = 5
REPEATS = 2
INPUT = (3, 32, 32)
_MOVED = np.float32(0.999)

GOALS = {"85mb": 40.0, "350mb": 170.0}

Builder = Callable[..., AsyncStrategy]


class TrainingGrid(InstantGrid):
    """Nodes that return every weight moved a little, in memory of its own.

    A reply is made when it is pulled, as one that lies elsewhere until then. `seconds`
    is the CPU time that this takes.
    """

    seconds = 0.0

    def reply(self, message: Message) -> Message:
        """Keep the message for now."""
        return message

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Train on those that are asked for."""
        began = time.process_time()
        replies = []
        for message in super().pull_messages(message_ids):
            reply = super().reply(message)
            reply.content["arrays"] = self.trained(
                message.content.array_records["arrays"]
            )
            replies.append(reply)
        self.seconds += time.process_time() - began
        return replies

    def trained(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what training makes of some arrays."""
        return ArrayRecord({name: _moved(array) for name, array in arrays.items()})


def _moved(array: Array) -> Array:
    values = array.numpy()
    if values.dtype.kind == "f":
        values = values * _MOVED.astype(values.dtype)
    return wire.to_record({"": torch.from_numpy(np.array(values))})[""]


class _CpuTime(Callback):
    """The CPU time of each update, less that of the grid.

    A task that is lost costs something, and is in no figure: RuntimeError.
    """

    def __init__(self, grid: TrainingGrid) -> None:
        self._grid = grid
        self._marks: list[float] = []

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Note the time."""
        self._marks.append(time.process_time() - self._grid.seconds)
        if state.failures:
            raise RuntimeError(f"the stub's tasks are lost: {state.failures}")

    @property
    def ms_per_update(self) -> float:
        """The mean but for the first round and the last, which sends no tasks."""
        marks = self._marks[IN_FLIGHT:-IN_FLIGHT]
        return (marks[-1] - marks[0]) / (len(marks) - 1) * 1e3


def measure(build: Builder, state: State, **options: Any) -> float:
    """Return the CPU milliseconds of an update."""
    grid = TrainingGrid(NODES)
    cpu = _CpuTime(grid)
    strategy = build(
        in_flight=IN_FLIGHT,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        log_rounds=False,
        callbacks=[cpu],
        **options,
    )
    strategy.start(grid, wire.to_record(state), num_rounds=ROUNDS)
    return cpu.ms_per_update


def transformer_state() -> State:
    """Return 346 MB of weights in the shapes of ViT-B's blocks."""
    shapes = [(2304, 768), (768, 768), (3072, 768), (768, 3072), (2304,), (768,)]
    generator = torch.Generator().manual_seed(0)
    state = {
        f"blocks.{block}.{number}": torch.randn(shape, generator=generator)
        for block in range(12)
        for number, shape in enumerate(shapes)
    }
    state["embedding"] = torch.randn(1_900, 768, generator=generator)
    return state


def _resnet() -> nn.Module:
    return build_model("resnet34", INPUT, 10, seed=0)


def large_figures() -> list[Figure]:
    """Measure ResNet34 (85 MB) and a transformer (346 MB)."""
    torch.set_num_threads(1)
    model = _resnet()
    dropping = {"model": model, "example_inputs": torch.zeros(1, *INPUT)}
    buffered = {"buffer_size": BUFFER}
    resnet, transformer = model.state_dict(), transformer_state()
    cases: list[tuple[str, str, Builder, State, dict[str, Any]]] = [
        ("fedavg", "85mb", AsyncFedAvg, resnet, {}),
        ("fedbuff", "85mb", FedBuff, resnet, buffered),
        ("hetero", "85mb", HeteroAsyncDrop, resnet, dropping),
        ("plus", "85mb", AsyncDropPlus, resnet, dropping),
        ("fedavg", "350mb", AsyncFedAvg, transformer, {}),
        ("fedbuff", "350mb", FedBuff, transformer, buffered),
    ]
    figures = []
    for name, size, build, state, options in cases:
        say(f"{name}, {size}")
        best = min(measure(build, state, **options) for _ in range(REPEATS))
        figure = f"server_ms_per_update_{size}_{name}"
        figures.append(Figure(figure, best, GOALS[size]))
    return figures


def main() -> None:
    """Measure, and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    show({"large": large_figures})


if __name__ == "__main__":
    main()
