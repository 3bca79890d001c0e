"""The memory that ten thousand virtual devices take, 256 of them in flight."""

import logging
import subprocess
import sys

import torch
from flwr.app import ConfigRecord

from benchmarks.figures import Figure
from benchmarks.usage import resident_bytes
from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.simulation import LocalGrid

__all__ = ["crowd_figures"]

NODES = 10_000
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
    """Run two rounds of the main job's data and method in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.crowd"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [Figure("sim_10k_rss_gb", float(done.stdout.split()[-1]), 4)]


class _Peak(Callback):
    """Looks at the memory of all processes now and then."""

    num_bytes = 0

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Look, and remember the most."""
        if state.updates % _UPDATES_PER_LOOK == 0:
            self.num_bytes = max(self.num_bytes, resident_bytes())


def main() -> None:
    """Run, and print gigabytes."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config, peak = RunConfig.parse(SETTINGS), _Peak()
    torch.set_num_threads(config.threads)
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=NODES,
        workers=WORKERS,
        run_config={**SETTINGS},
    ) as grid:
        build_strategy(config, [peak]).start(
            grid,
            wire.to_record(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
        )
    print(peak.num_bytes / _BYTES_PER_GB)


if __name__ == "__main__":
    main()
