"""What a report of a long run costs: 100,000 updates of as many devices."""

import heapq
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict

from benchmarks.figures import Figure, show
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import UnitGroup
from flwr_asyncdrop.wire import Reply

__all__ = ["report_figures", "write_long_history"]

UPDATES = 100_000
RANKS = 64
FAILS_EVERY = 20
_BYTES = 300_000
_KIB_PER_GB = 1e9 / 1024
_GROUP = UnitGroup("features.0", 64, "internal")


def report_figures() -> Iterator[Figure]:
    """Draw a run and report on it, in a process of its own.

    CPU seconds of that process, and the most memory that it had.
    """
    with TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        write_long_history(runs / "hetero-asyncdrop/seed-0/history.jsonl", UPDATES)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.reports", str(runs)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    yield Figure("report_100k_cpu_s", found["cpu_s"], 15)
    yield Figure("report_100k_rss_gb", found["rss_gb"], 0.5)


def write_long_history(
    path: Path,
    updates: int,
    *,
    devices: int | None = None,
    ranks: int = RANKS,
    evaluate_every: int = RANKS,
    **options: object,
) -> None:
    """Write the history of a run by the writer that runs have.

    Parameters
    ----------
    path : Path
        The file.
    updates : int
        Updates that are merged; a task is lost after every `FAILS_EVERY` of them.
    devices : int, optional
        Size of the fleet; by default each update comes from a device of its own.
    ranks : int
        Speed ranks, and tasks in flight.
    evaluate_every : int
        Updates between two evaluations.
    options
        Of the `HistoryWriter`.
    """
    generator = np.random.default_rng(0)
    devices = devices or updates
    config = {
        "dataset": "fashion-mnist",
        "model": "mlp",
        "clock": "virtual",
        "in-flight": ranks,
        "num-rounds": updates // ranks,
    }
    run = {"algorithm": "hetero-asyncdrop", "config": config}
    writer = HistoryWriter(path, run, **options)  # type: ignore[arg-type]
    state = RunState.start_from({"w": torch.zeros(_BYTES // 4)}, seed=0)
    state.num_devices = devices
    writer.on_start(state)
    writer.on_begin(state)
    parts = [_part(rank / ranks) for rank in range(ranks)]
    # When each rank's task ends, when it began, and from which version.
    out = [(float(generator.uniform(0, 2)), rank, 0.0, 0) for rank in range(ranks)]
    heapq.heapify(out)
    for number in range(1, updates + updates // FAILS_EVERY + 1):
        state.time, rank, began, version = out[0]
        seconds = (1 + rank / ranks) * float(generator.uniform(0.8, 1.2))
        order = _order(number % devices, rank, ranks, began, parts[rank])
        if number % (FAILS_EVERY + 1) == 0:
            state.failures["dropout"] = state.failures.get("dropout", 0) + 1
            writer.on_failure(state, order, "dropout", "the simulated device lost it")
        else:
            _merge(writer, state, order, version)
            if state.updates % evaluate_every == 0:
                noise = float(generator.normal(0, 0.004))
                _evaluate(writer, state, state.updates // evaluate_every, noise)
        entry = (state.time + seconds, rank, state.time, state.version)
        heapq.heapreplace(out, entry)
    writer.on_end(state)


def _merge(writer: HistoryWriter, state: RunState, order: Order, version: int) -> None:
    state.bytes_down += order.cost.bytes_down
    state.bytes_up += order.cost.bytes_up
    state.updates += 1
    staleness, state.version = state.version - version, state.version + 1
    record = MetricRecord({"num-examples": 600, "train-loss": _loss(state.updates)})
    metrics = RecordDict({"metrics": record})
    reply = Reply({}, 600, metrics, order.cost.bytes_up)
    number = 1 + (state.updates - 1) // order.num_ranks
    writer.on_update(state, Merged(order, reply, staleness, number))


def _evaluate(
    writer: HistoryWriter, state: RunState, number: int, noise: float
) -> None:
    accuracy = 0.9 - 0.8 / (1 + state.updates / 2000) + noise
    metrics = MetricRecord({"loss": _loss(state.updates), "accuracy": accuracy})
    writer.on_evaluation_due(state, "server", number)
    done = Evaluation("server", number, state.updates, state.time, metrics)
    writer.on_evaluation(state, done)


def _loss(update: int) -> float:
    return 2.0 / float(update**0.3)


def _part(place: float) -> tuple[Part, TaskCost]:
    """Return what a rank trains: the slower, the less of the one group there is."""
    share = 1 - place / 2
    units = torch.arange(round(_GROUP.size * share))
    num_bytes = round(_BYTES * share)
    part = Part(None, {}, {}, kept={_GROUP: units})
    return part, TaskCost(share, num_bytes, num_bytes)


def _order(
    device: int, rank: int, ranks: int, began: float, trained: tuple[Part, TaskCost]
) -> Order:
    part, cost = trained
    return Order(
        number=0,
        device=device,
        node_id=device,
        rank=rank,
        num_ranks=ranks,
        round=1,
        base_version=0,
        lr_factor=1.0,
        part=part,
        cost=cost,
        timing=Timing(began, due=began),
    )


def main() -> None:
    """Draw and report the runs of a folder; print what it took as JSON."""
    from flwr_asyncdrop.report import draw_run, write_report

    runs = Path(sys.argv[1])
    history = next(runs.rglob("history.jsonl"))
    draw_run(history, runs / "run.png")
    drawn = time.process_time()
    write_report([runs], runs / "report")
    cpu = time.process_time()
    rss = _peak_kib() / _KIB_PER_GB
    print(json.dumps({"cpu_s": cpu, "drawing_cpu_s": drawn, "rss_gb": rss}))


def _peak_kib() -> int:
    """Return the most memory that this program had.

    The kernel's ``ru_maxrss`` begins with what the process had before its ``exec``:
    that of the benchmarks which have started it.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
    else:
        show({"reports": report_figures})
