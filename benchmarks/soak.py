"""The memory of a run of 20,000 updates, on devices that come, go and drop out.

    python -m benchmarks.soak

The clients do nothing, so that the server and its grid do as much as they can. It
saves itself every 200 updates. Looked at every 500; the figures leave out what the
first tenth of the run takes, in which caches and pools fill.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord

from benchmarks.figures import Figure, say, show
from benchmarks.usage import resident_bytes
from flwr_asyncdrop import FedBuff, LocalGrid, speed_levels
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState

__all__ = ["Memory", "soak_figures"]

UPDATES = 20_000
NODES = 200
IN_FLIGHT = 40
WEIGHTS = 10_000
CHECKPOINT_EVERY = 5  # rounds of as many updates as devices are in flight
_LOOK_EVERY = 500
_WARM_UP = 0.1
_BYTES_PER_MB = 1e6
_DROPOUT = 0.05
_AVAILABILITY = 0.5


class Memory(Callback):
    """Looks at the resident memory of this process and its workers now and then."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.megabytes: list[float] = []

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Look."""
        if state.updates % _LOOK_EVERY == 0:
            self.updates.append(state.updates)
            self.megabytes.append(resident_bytes() / _BYTES_PER_MB)
            say(f"{state.updates:,} updates, {self.megabytes[-1]:.0f} MB")


def soak_figures(updates: int = UPDATES) -> list[Figure]:
    """Run it, and fit a line through what memory it takes.

    Parameters
    ----------
    updates : int
        Updates to merge; a multiple of the devices in flight.
    """
    memory = Memory()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalGrid("benchmarks.noop:client_app", num_nodes=NODES, workers=1) as grid,
    ):
        strategy = FedBuff(
            in_flight=IN_FLIGHT,
            fraction_evaluate=0.0,
            fleet=_fleet,
            checkpointer=Checkpointer(Path(folder), every=CHECKPOINT_EVERY),
            callbacks=[HistoryWriter(Path(folder) / "history.jsonl"), memory],
        )
        strategy.start(
            grid,
            ArrayRecord({"weights": torch.zeros(WEIGHTS)}),
            num_rounds=updates // IN_FLIGHT,
        )
    return figures_of(memory)


def figures_of(memory: Memory) -> list[Figure]:
    """Return where the line begins and ends, and how steep it is."""
    begin = int(_WARM_UP * len(memory.updates))
    updates = np.array(memory.updates[begin:])
    megabytes = np.array(memory.megabytes[begin:])
    slope = np.polyfit(updates, megabytes, 1)[0]
    return [
        Figure("soak_updates", int(updates[-1])),
        Figure("rss_start_mb", megabytes[0]),
        Figure("rss_end_mb", megabytes[-1]),
        Figure("rss_mb_per_10k_updates", slope * 1e4, 2),
    ]


def _fleet(count: int) -> Sequence[DeviceProfile]:
    return speed_levels(count, jitter=0.3, dropout=_DROPOUT, availability=_AVAILABILITY)


def main() -> int:
    """Run, and print; the exit status says whether the line is flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=UPDATES)
    arguments = parser.parse_args()
    if arguments.updates < 2 * _LOOK_EVERY:
        parser.error(
            f"--updates {arguments.updates}: a line needs {2 * _LOOK_EVERY:,} or more, "
            f"as the memory is looked at every {_LOOK_EVERY}"
        )
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    figures = show({"soak": partial(soak_figures, arguments.updates)})
    return int(any(figure.verdict == "missed" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
