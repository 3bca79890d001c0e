"""What ten and a hundred thousand virtual devices take, 256 of them in flight.

    python -m benchmarks.crowd
    python -m benchmarks.crowd 100000

With a number of devices it runs in this process, and prints gigabytes and milliseconds.
"""

import logging
import subprocess
import sys
import time

import torch
from flwr.app import ConfigRecord

from benchmarks.figures import Figure, show
from benchmarks.usage import resident_bytes
from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.simulation import LocalGrid

__all__ = ["crowd_figures"]

SIZES = {"10k": 10_000, "100k": 100_000}
WORKERS = 2
SETTINGS: dict[str, str | int] = {
    "model": "mlp",
    "in-flight": 256,
    "num-rounds": 2,
    "local-steps": 5,
}
_UPDATES_PER_LOOK = 64
_BYTES_PER_GB = 1e9


def crowd_figures() -> list[Figure]:
    """Run two rounds of the main job's data and method, in processes of their own."""
    figures = []
    for name, size in SIZES.items():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.crowd", str(size)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        gigabytes, milliseconds = map(float, done.stdout.split()[-2:])
        figures += [
            Figure(f"sim_{name}_rss_gb", gigabytes, 4),
            Figure(f"sim_{name}_ms_per_update", milliseconds),
        ]
    return figures


class _Peak(Callback):
    """Looks at the memory of all processes now and then, and at this one's CPU time."""

    num_bytes = 0
    _updates = 0

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Look, and remember the most."""
        if self._updates == 0:
            self._first = time.process_time()
        self._updates += 1
        self._last = time.process_time()
        if state.updates % _UPDATES_PER_LOOK == 0:
            self.num_bytes = max(self.num_bytes, resident_bytes())

    @property
    def ms_per_update(self) -> float:
        """CPU milliseconds of an update, of this process with its grid."""
        return (self._last - self._first) / (self._updates - 1) * 1e3


def main() -> None:
    """Print the figures; with a number of devices, measure it in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if len(sys.argv) == 1:
        show({"crowd": crowd_figures})
        return
    config, peak = RunConfig.parse(SETTINGS), _Peak()
    torch.set_num_threads(config.threads)
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=int(sys.argv[1]),
        workers=WORKERS,
        run_config={**SETTINGS},
    ) as grid:
        build_strategy(config, [peak]).start(
            grid,
            wire.to_record(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
        )
    print(peak.num_bytes / _BYTES_PER_GB, peak.ms_per_update)


if __name__ == "__main__":
    main()
