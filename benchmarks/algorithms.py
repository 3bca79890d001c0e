"""The main job with every algorithm and several seeds: what each reaches, and when.

    python -m benchmarks.algorithms --seeds 3

The virtual clock decides all of it, so the table is the same on any machine.
"""

import argparse
import logging
import statistics
import tempfile
from pathlib import Path
from typing import Any

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.config import RunConfig
from flwr_asyncdrop.history import read_history
from flwr_asyncdrop.server.app import run_experiment
from flwr_asyncdrop.simulation import LocalGrid

NODES = 104


def main() -> None:
    """Run all, print one line each and then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.9, help="accuracy")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = {
        name: [
            measure(run(name, seed, arguments.workers), arguments.target)
            for seed in range(arguments.seeds)
        ]
        for name, rules in ALGORITHMS.items()
        if rules.units == "channels"  # the main job's CNN has no residual blocks
    }
    print(f"{'algorithm':<18} {'final':>14} {'best':>14} {'s to':>8} {'MB to':>8}")
    for name, runs in rows.items():
        columns = list(zip(*runs, strict=True))
        final, best = (_spread(column) for column in columns[:2])
        seconds, megabytes = (_mean(column) for column in columns[2:])
        print(f"{name:<18} {final:>14} {best:>14} {seconds:>8} {megabytes:>8}")
    print(f"(target: {arguments.target:.0%}; {arguments.seeds} seeds; mean ± std)")


def run(algorithm: str, seed: int, workers: int) -> list[dict[str, Any]]:
    """Run the main job on a LocalGrid; return its history."""
    with tempfile.TemporaryDirectory() as out:
        values: dict[str, bool | int | float | str] = {
            "algo": algorithm,
            "seed": seed,
            "out-dir": out,
        }
        with LocalGrid(
            "flwr_asyncdrop.client.app:app",
            num_nodes=NODES,
            workers=workers,
            run_config=values,
        ) as grid:
            run_experiment(grid, RunConfig.parse(values))
        return list(read_history(Path(out) / "history.jsonl"))


def measure(
    history: list[dict[str, Any]], target: float
) -> tuple[float, float, float, float]:
    """Return final and best accuracy, and virtual seconds and MB to the target."""
    accuracies, sent = [], 0
    seconds = megabytes = float("inf")
    for line in history:
        if line["event"] == "update":
            sent += line["bytes_down"] + line["bytes_up"]
        if line["event"] == "evaluation":
            accuracies.append(line["metrics"]["accuracy"])
            if accuracies[-1] >= target and seconds == float("inf"):
                seconds, megabytes = line["time"], sent / 1e6
    print(
        f"  final {accuracies[-1]:.4f} best {max(accuracies):.4f} "
        f"{seconds:.0f} s {megabytes:.1f} MB",
        flush=True,
    )
    return accuracies[-1], max(accuracies), seconds, megabytes


def _spread(values: tuple[float, ...]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1%} ± {deviation:.1%}"


def _mean(values: tuple[float, ...]) -> str:
    return f"{statistics.mean(values):.0f}"


if __name__ == "__main__":
    main()
