"""A whole simulation, MLP + Fashion-MNIST, beside a bare PyTorch loop.

    python -m benchmarks.simulation --data-dir DATA

A run is all from opening the grid to closing it: worker processes start, read the
data set and build the model; 304 updates of 50 steps at batch size 128, 8 in flight;
10 evaluations and that of the initial model. The bare loop begins with its data in
memory as floats. Imports have been made before, and no picture is drawn. Two bare loops
of half the rounds, side by side, say what this machine's second core is worth.
"""

import argparse
import logging
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch
from flwr.app import ConfigRecord

from benchmarks.bare import FloatData, bare_loop
from benchmarks.figures import Figure, say, show
from benchmarks.synthetic import write_fashion_mnist
from benchmarks.usage import Usage, usage_of
from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluation import CentralTest
from flwr_asyncdrop.app.experiment import initial_model, load_data, partitions
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.simulation import LocalGrid

__all__ = ["DATA_DIR_HELP", "simulation_figures"]

DATA_DIR = "ASYNCDROP_BENCH_DATA"
DATA_DIR_HELP = (
    f"torchvision's root of Fashion-MNIST; else ${DATA_DIR}, or random images"
)

Value = str | int | float

NODES = 104
WORKERS = 2
PAIRS = 3
SETTINGS: dict[str, Value] = {
    "algo": "async-fedavg",
    "dataset": "fashion-mnist",
    "model": "mlp",
    "num-rounds": 38,
    "evaluate-every": 4,
    "in-flight": 8,
    "local-steps": 50,
    "batch-size": 128,
    "lr": 0.01,
    "momentum": 0.9,
}


def simulation_figures(
    data_dir: Path | None = None, pairs: int = PAIRS
) -> list[Figure]:
    """Run them in turn, and compare with the bare loop of the same turn.

    Parameters
    ----------
    data_dir : Path, optional
        torchvision's root folder; else `DATA_DIR` says where it is, and without that
        the images are random.
    pairs : int
        Turns.
    """
    with _data(data_dir) as folder:
        settings = {**SETTINGS, "data-dir": str(folder)}
        _warm_up({**settings, "num-rounds": 1, "local-steps": 1})
        turns = []
        for turn in range(1, pairs + 1):
            say(f"turn {turn} of {pairs}: bare loop")
            alone = _bare(settings)
            say(f"turn {turn} of {pairs}: simulation")
            simulated = usage_of(lambda: _simulate(settings))
            say(f"turn {turn} of {pairs}: two bare loops side by side")
            turns.append((alone, simulated, _bare_side_by_side(settings)))
            say(f"sim_wall_ratio_2 of this turn: {simulated.wall / alone.wall:.3f}")
    bare, ours, side_by_side = zip(*turns, strict=True)
    return [
        Figure("sim_wall_ratio_2", _ratio(ours, bare, "wall"), 0.55),
        Figure("sim_cpu_ratio", _ratio(ours, bare, "cpu"), 1.06),
        Figure("bare_wall_ratio_2", _ratio(side_by_side, bare, "wall")),
        Figure("bare_cpu_ratio", _ratio(side_by_side, bare, "cpu")),
        Figure("sim_wall_s", statistics.median(run.wall for run in ours)),
        Figure("sim_bare_s", statistics.median(run.wall for run in bare)),
    ]


def _ratio(runs: Sequence[Usage], bare: Sequence[Usage], of: str) -> float:
    """Return the median ratio of the ``"wall"`` or ``"cpu"`` seconds of the turns."""
    seconds = attrgetter(of)
    pairs = zip(runs, bare, strict=True)
    ratios: list[float] = [seconds(run) / seconds(least) for run, least in pairs]
    return statistics.median(ratios)


def _warm_up(settings: Mapping[str, Value]) -> None:
    """Make the imports of both."""
    _bare(settings)
    _simulate(settings)


def _simulate(settings: Mapping[str, Value]) -> None:
    config = RunConfig.parse(settings)
    torch.set_num_threads(config.threads)
    test = CentralTest(config)
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=NODES,
        workers=WORKERS,
        run_config=settings,
    ) as grid:
        build_strategy(config, [test]).start(
            grid,
            wire.to_record(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
            evaluate_fn=test,
        )


def _bare_side_by_side(settings: Mapping[str, Value]) -> Usage:
    """Share the rounds among as many bare loops as the simulation has workers."""
    rounds = int(settings["num-rounds"]) // WORKERS
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, spawn) as pool:
        loops = list(
            pool.map(_warm_bare, [{**settings, "num-rounds": rounds}] * WORKERS)
        )
    return Usage(max(loop.wall for loop in loops), sum(loop.cpu for loop in loops))


def _warm_bare(settings: Mapping[str, Value]) -> Usage:
    """Make the imports of a new process first."""
    _bare({**settings, "num-rounds": 1, "local-steps": 1})
    return _bare(settings)


def _bare(settings: Mapping[str, Value]) -> Usage:
    config = RunConfig.parse(settings)
    data = load_data(config)
    floats = FloatData.of(data)
    shares = list(partitions(config, NODES))
    model = build_model(config.model, data.input_shape, data.num_classes, config.seed)
    return usage_of(lambda: bare_loop(model, floats, shares, config))


@contextmanager
def _data(folder: Path | None) -> Iterator[Path]:
    """Yield the folder with Fashion-MNIST, or with what passes for it."""
    if folder is None and DATA_DIR in os.environ:
        folder = Path(os.environ[DATA_DIR])
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        write_fashion_mnist(Path(made))
        yield Path(made)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help=DATA_DIR_HELP)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="turns")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    measure = partial(simulation_figures, arguments.data_dir, arguments.pairs)
    show({"simulation": measure})


if __name__ == "__main__":
    main()
