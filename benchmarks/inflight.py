"""The memory of tasks in flight under FedBuff, over that of the versions they have.

python -m benchmarks.inflight
"""

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterable

import psutil
import torch
from flwr.app import Message

from benchmarks.figures import Figure, show
from benchmarks.large import TrainingGrid
from flwr_asyncdrop import FedBuff, wire
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

__all__ = ["inflight_figures"]

IN_FLIGHT = 128
BUFFER = 64
VERSIONS = 3  # that 128 devices have which take as long, when 64 updates make one
TENSORS, FLOATS = 40, 200_000  # 32 MB
UPDATES = 384


def inflight_figures() -> list[Figure]:
    """Measure in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.inflight", "alone"],
        check=True,
        # Tensors go back to the system at once, so that what is seen is in use.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "100000"},
        stdout=subprocess.PIPE,
        text=True,
    )
    peak, kept, versions = map(float, done.stdout.split()[-3:])
    return [
        Figure("inflight_bytes_ratio", peak, 1.5),
        Figure("inflight_kept_ratio", kept),
        Figure("inflight_versions", versions),
    ]


def equally_fast(count: int) -> list[DeviceProfile]:
    """Devices that take about as long, in the order in which they are asked."""
    return [DeviceProfile(1 + rank / count / 100) for rank in range(count)]


class _Watched(TrainingGrid):
    """Looks at the memory when a reply has come, and when a task leaves."""

    most = kept = 0

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes)
        gc.collect()
        self._before = psutil.Process().memory_info().rss

    def begin(self) -> None:
        """Note what there is at the start of the run."""
        self._before = psutil.Process().memory_info().rss

    def look(self, *, is_reply_there: bool) -> None:
        """Remember the most above that: of all, and of what no reply takes."""
        more = psutil.Process().memory_info().rss - self._before
        self.most = max(self.most, more)
        if not is_reply_there:
            self.kept = max(self.kept, more)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Look when the reply is there."""
        replies = super().pull_messages(message_ids)
        self.look(is_reply_there=True)
        return replies


class _Peak(Callback):
    """Looks while a reply is merged, and when a task leaves; counts the versions."""

    versions = 0

    def __init__(self, grid: _Watched) -> None:
        self._grid = grid

    def on_start(self, state: RunState) -> None:
        """Begin: the model is there, and a copy of its start."""
        self._grid.begin()

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Look: the reply and what was made of it are still there."""
        self._grid.look(is_reply_there=True)

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Look: a version may have been made."""
        self._grid.look(is_reply_there=False)
        here = {each.base_version for each in state.in_flight.values()}
        self.versions = max(self.versions, len(here))


def main() -> None:
    """Print the figure; with an argument, measure it in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if len(sys.argv) == 1:
        show({"inflight": inflight_figures})
        return
    torch.set_num_threads(1)
    grid = _Watched(2 * IN_FLIGHT)
    peak = _Peak(grid)
    strategy = FedBuff(
        buffer_size=BUFFER,
        in_flight=IN_FLIGHT,
        fleet=equally_fast,
        fraction_evaluate=0.0,
        log_rounds=False,
        callbacks=[peak],
    )
    state = {str(number): torch.randn(FLOATS) for number in range(TENSORS)}
    size = sum(tensor.nbytes for tensor in state.values())
    strategy.start(grid, wire.to_record(state), num_rounds=UPDATES // IN_FLIGHT)
    models = VERSIONS * size
    print(grid.most / models, grid.kept / models, peak.versions)


if __name__ == "__main__":
    main()
